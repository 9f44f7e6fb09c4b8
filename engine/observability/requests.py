"""From how a request ended to its canonical log line."""

from __future__ import annotations

from typing import Final

import trio

from actors.serving.records import RequestEnd, RequestRecord, record_of
from actors.values.errors import ErrorCode, TritiumError
from actors.values.events import Event
from actors.values.requests import InferRequest, InferResponse
from actors.values.tracing.spans import Span
from engine.observability.structured import structlog

RequestHook = RequestEnd

_TIMES: Final = ("queue_us", "compute_input_us", "compute_infer_us", "compute_output_us")
_NO_TIME: Final = (0, 0, 0, 0)
_OUTCOMES: Final = {
    ErrorCode.CANCELLED: Event.REQUEST_CANCELLED,
    ErrorCode.UNAVAILABLE: Event.REQUEST_REJECTED,
    ErrorCode.INVALID_ARG: Event.REQUEST_REJECTED,
    ErrorCode.POISONED: Event.REQUEST_POISONED,
}


def request_hook(protocol: str = "", *, failures_only: bool = False) -> RequestHook:
    """Return what is called at the end of each request, if `--log-requests` or `--log-verbose` asks for it.

    `protocol` is that of the frontend which calls it; empty for requests that the server makes of itself.
    With `failures_only` it tells at the first verbose level why requests failed, as Triton does, and nothing
    else.
    """
    log = structlog.get_logger()

    def failed(request: InferRequest, outcome: InferResponse | TritiumError, peer: str) -> None:
        if isinstance(outcome, TritiumError) and outcome.message:
            log.debug(
                Event.REQUEST_FAILED,
                request_id=request.id,
                message=outcome.message,
                model=request.model_name,
            )

    def finished(request: InferRequest, outcome: InferResponse | TritiumError, peer: str) -> None:
        """Write the canonical line."""
        now = trio.current_time()
        record = record_of(request)
        about: dict[str, object] = {"protocol": protocol, "peer": peer} if protocol else {}
        if record is not None:
            about.update(_course(record, request.accepted_at))
        if isinstance(outcome, TritiumError):
            version, times = request.requested_version, (_waited(record, request.accepted_at, now), 0, 0, 0)
            event, message = _OUTCOMES.get(outcome.code, Event.REQUEST_FAILED), outcome.message
            about["code"] = outcome.code.name
        else:
            version, times = outcome.model_version, outcome.timing or _NO_TIME
            event, message = Event.REQUEST_COMPLETED, ""
        if request.caller is not None:
            about["caller"] = request.caller.name
        if request.correlation_id:
            about["correlation_id"] = request.correlation_id
        if request.attempts > 1:
            about["attempts"] = request.attempts
        if request.span is not None:
            about.update(_traced(request.span))
        if message:
            about["message"] = message
        log.info(
            event,
            request_id=request.id,
            model=request.model_name,
            version=version,
            rows=request.rows,
            outcome=event.value.removeprefix("request_"),
            **{name: ns // 1000 for name, ns in zip(_TIMES, times, strict=True)},
            total_us=int((now - request.accepted_at) * 1e9) // 1000,
            **about,
        )

    return failed if failures_only else finished


def _waited(record: RequestRecord | None, since: float, now: float) -> int:
    """Return the nanoseconds that a failed request had waited before its last execution, if there was one."""
    if record is None:
        return 0
    return int(((now if record.last_dispatch is None else record.last_dispatch) - since) * 1e9)


def _traced(span: Span) -> dict[str, object]:
    """Return what names the request in its trace: as OpenTelemetry does, or as Triton's file does."""
    trace = span.trace
    if trace.exported:
        return {"trace_id": f"{trace.w3c_id:032x}", "span_id": f"{span.w3c_id:016x}"}
    return {"trace": span.id}


def _course(record: RequestRecord, accepted_at: float) -> dict[str, object]:
    """Return what a record adds to the line: only what there is."""
    told: dict[str, object] = {"serial": record.serial}
    if record.relation:
        told["relation"] = record.relation
        told["parent"] = record.parent
        told["parent_id"] = record.parent_id
    if record.cached:
        told["cached"] = True
    if record.first_dispatch is not None and record.last_dispatch is not None:
        told["instance"] = record.instance
        told["pid"] = record.pid
        told["batch"] = record.batch
        told["batch_requests"] = record.batch_requests
        told["batch_rows"] = record.batch_rows
        if record.last_dispatch > record.first_dispatch:
            told["earlier_us"] = int((record.last_dispatch - record.first_dispatch) * 1e6)
    if record.first_response is not None:
        told["responses"] = record.responses
        told["first_response_us"] = int((record.first_response - accepted_at) * 1e6)
    return told
