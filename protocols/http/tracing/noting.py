"""What the HTTP frontend notes of a traced request: when it came, and when its answer was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from actors.values.tracing.spans import (
    HTTP_RECV_END,
    HTTP_RECV_START,
    HTTP_SEND_END,
    HTTP_SEND_START,
    RESPONSE_COMPLETE,
    Span,
    Trace,
    Tracer,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping
    from typing import Any

    from actors.values.requests import InferRequest

KEY = "tritium.trace"
"""The trace of a request, in its scope: what sends the answer notes that on it."""

NO_CONTEXT: tuple[str, str] = ("", "")


def context_in(fields: Mapping[bytes, bytes]) -> tuple[str, str]:
    """Return the fields `traceparent` and `tracestate` of a head; empty ones where there are none."""
    parent = fields.get(b"traceparent")
    if parent is None:
        return NO_CONTEXT
    return parent.decode("latin-1"), fields.get(b"tracestate", b"").decode("latin-1")


def begin(tracer: Tracer, request: InferRequest, context: tuple[str, str], came_at: float) -> Trace | None:
    """Trace `request` if it is to be traced.

    `came_at` is when its first bytes came; negative: all came at once.
    """
    span: Span | None = tracer.begin(request, trio.current_time(), parent=context[0], state=context[1])
    if span is None:
        return None
    trace = span.trace
    trace.note(HTTP_RECV_START, came_at if came_at >= 0 else request.accepted_at)
    trace.note(HTTP_RECV_END, request.accepted_at)
    return trace


def begin_in(scope: MutableMapping[str, Any], tracer: Tracer, request: InferRequest) -> Trace | None:
    """Do as `begin` for a request that the application has, and leave its trace in `scope`."""
    if not tracer.active:
        return None
    trace = begin(tracer, request, context_in(dict(scope["headers"])), scope.get("tritium.came_at", -1.0))
    if trace is not None:
        scope[KEY] = trace
    return trace


def answered(request: InferRequest, outcome: object) -> None:
    """The answer to `request` is here; None: the client has left."""
    span = request.span
    if span is not None and outcome is not None:
        now = trio.current_time()
        span.refused(outcome, now)
        span.trace.note(RESPONSE_COMPLETE, now)


def sending(trace: Trace) -> None:
    """The answer is about to be sent."""
    trace.note(HTTP_SEND_START, trio.current_time())


def over(trace: Trace, *, sent: bool) -> None:
    """The frontend is done. `sent`: whatever it began to send has been sent."""
    now = trio.current_time()
    if sent and trace.moments[-1][0] == HTTP_SEND_START:
        trace.note(HTTP_SEND_END, now)
    trace.sent(now)


def noting(
    trace: Trace, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]
) -> Callable[[MutableMapping[str, Any]], Awaitable[None]]:
    """Return a `send` that notes when the answer, which is sent piece by piece, begins."""
    begun = False

    async def noted(message: MutableMapping[str, Any]) -> None:
        nonlocal begun
        if not begun:
            begun = True
            now = trio.current_time()
            trace.note(RESPONSE_COMPLETE, now)
            trace.note(HTTP_SEND_START, now)
        await send(message)

    return noted
