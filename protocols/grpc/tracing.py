"""What the gRPC frontend notes of a traced request: when it came, and when its answer was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from actors.values.errors import Cancelled
from actors.values.tracing.spans import (
    GRPC_SEND_END,
    GRPC_SEND_START,
    GRPC_WAITREAD_END,
    GRPC_WAITREAD_START,
    RESPONSE_COMPLETE,
    Trace,
    Tracer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.values.requests import InferRequest


def begin(
    tracer: Tracer, request: InferRequest, fields: Sequence[tuple[bytes, bytes]], came_at: float
) -> Trace | None:
    """Trace `request` if it is to be traced. `fields` are its metadata; its first byte came at `came_at`."""
    parent = state = ""
    if tracer.reads_context:
        parent, state = _text(fields, b"traceparent"), _text(fields, b"tracestate")
    span = tracer.begin(request, trio.current_time(), parent=parent, state=state)
    if span is None:
        return None
    trace = span.trace
    trace.note(GRPC_WAITREAD_START, min(came_at, request.accepted_at))
    trace.note(GRPC_WAITREAD_END, request.accepted_at)
    return trace


def _text(fields: Sequence[tuple[bytes, bytes]], key: bytes) -> str:
    return next((value.decode("latin-1") for name, value in fields if name == key), "")


def answering(trace: Trace) -> None:
    """The first response is here, and is about to be sent; later ones count for nothing."""
    if trace.moments[-1][0] == GRPC_WAITREAD_END:
        now = trio.current_time()
        trace.note(RESPONSE_COMPLETE, now)
        trace.note(GRPC_SEND_START, now)


def finished(request: InferRequest, outcome: object) -> None:
    """`request` is over: it has its last response or an error, or its client has left."""
    span = request.span
    if span is None:
        return
    span.refused(outcome, trio.current_time())
    if not isinstance(outcome, Cancelled):
        answering(span.trace)


def over(trace: Trace) -> None:
    """All of the answer was sent, or what is left of it never will be."""
    now = trio.current_time()
    if trace.moments[-1][0] == GRPC_SEND_START:
        trace.note(GRPC_SEND_END, now)
    trace.sent(now)
