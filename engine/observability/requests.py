"""From how a request ended to its canonical log line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from actors.messages.errors import ErrorCode, TritiumError
from actors.messages.events import Event
from actors.messages.requests import InferRequest, InferResponse
from engine.observability.logs import RequestLog

RequestHook = Callable[[InferRequest, InferResponse | TritiumError], None]

_OUTCOMES: Final = {
    ErrorCode.CANCELLED: Event.REQUEST_CANCELLED,
    ErrorCode.UNAVAILABLE: Event.REQUEST_REJECTED,
    ErrorCode.INVALID_ARG: Event.REQUEST_REJECTED,
    ErrorCode.POISONED: Event.REQUEST_POISONED,
}


def request_hook(*, failures_only: bool = False) -> RequestHook:
    """Return what a frontend calls at the end of each request, where `--log-requests` or `--log-verbose` asks for it."""
    log = RequestLog(structlog.get_logger(), failures_only=failures_only)

    def finished(request: InferRequest, outcome: InferResponse | TritiumError) -> None:
        total_ns = int((trio.current_time() - request.accepted_at) * 1e9)
        if isinstance(outcome, TritiumError):
            event = _OUTCOMES.get(outcome.code, Event.REQUEST_FAILED)
            log.finished(
                request,
                version=request.requested_version,
                outcome=event,
                total_ns=total_ns,
                message=outcome.message,
            )
            return
        queue_ns, _, infer_ns, _ = outcome.timing or (0, 0, 0, 0)
        log.finished(
            request,
            version=outcome.model_version,
            outcome=Event.REQUEST_COMPLETED,
            queue_ns=queue_ns,
            compute_infer_ns=infer_ns,
            total_ns=total_ns,
        )

    return finished
