"""Requests that a model sends to other models (BLS; contract, python_backend.md section 7).

A call is made on behalf of the request that is being executed (`call_context`). That request's deadline and
cancellation are then the call's as well, and so is its trace if the model passes none.
"""

from __future__ import annotations

import contextvars
import json
import operator
import struct
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from actors.values.errors import ErrorCode
from engine.worker.backends.python.host import SERVING, call_context, checked_text, current_host
from engine.worker.backends.python.loop import go_on, running_loop
from engine.worker.backends.python.tensors import TritonModelException
from engine.worker.backends.python.tracing import within_open_span
from engine.worker.calls import CallRequest, CallResponse

if TYPE_CHECKING:
    from asyncio import Future  # noqa: TID251  # for annotations: the user's coroutines are written for it
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from actors.values.requests import Parameter
    from engine.worker.backends.base import Output
    from engine.worker.backends.python.host import Host

Response = TypeVar("Response")

# From, and below: what the server accepts for these values of a request.
_NUMBERS = {
    "model_version": (-(2**63), 2**63),
    "correlation_id": (0, 2**64),
    "flags": (0, 2**31),
    "timeout": (0, 2**63),
}

ONLY_IN_EXECUTE = "BLS is only supported during the 'execute' function."


def prepare(
    model: str,
    inputs: Sequence[Output],
    *,
    version: int,
    requested_outputs: Sequence[str],
    request_id: str,
    correlation_id: int | str,
    flags: int,
    timeout: int,
    parameters: Mapping[str, Parameter],
    trace: str | None,
    decoupled: bool,
) -> CallRequest:
    """Return a call on behalf of the request being executed.

    `trace` is an OpenTelemetry context as JSON text. Raises TritonModelException outside `execute` (contract
    section 7), and for values that no request can have.
    """
    if current_host().phase != SERVING:
        raise TritonModelException(ONLY_IN_EXECUTE)
    context = call_context.get()
    return CallRequest(
        checked_text("model_name", model),
        inputs,
        version=_checked_number("model_version", version),
        requested_outputs=[checked_text("a requested output's name", each) for each in requested_outputs],
        id=checked_text("request_id", request_id),
        correlation_id=checked_text("correlation_id", correlation_id)
        if isinstance(correlation_id, str)
        else _checked_number("correlation_id", correlation_id),
        flags=_checked_number("flags", flags),
        timeout=_checked_number("timeout", timeout),
        parameters=parameters,
        trace=within_open_span(traceparent_of(trace) or ("" if context is None else context.traceparent)),
        decoupled=decoupled,
        parent=None if context is None else context.parent,
        blocking=context is not None and context.running,
    )


def _checked_number(what: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TritonModelException(f"{what} must be an int, got {type(value).__name__}") from None
    low, high = _NUMBERS[what]
    if not low <= number < high:
        raise TritonModelException(f"{what} must be from {low} to {high - 1}, got {number}")
    return number


def traceparent_of(context: str | None) -> str:
    """Return the W3C `traceparent` in an OpenTelemetry context, JSON text; empty if it has none."""
    if not context:
        return ""
    try:
        found = json.loads(context)
    except ValueError:
        return ""
    parent = found.get("traceparent", "") if isinstance(found, dict) else ""
    return parent if isinstance(parent, str) and parent.isascii() else ""


class Stream(Protocol):
    """The part of `engine.worker.calls.CallStream` that is used here."""

    def __next__(self) -> CallResponse:
        """Wait for the next response."""

    def cancel(self) -> None:
        """Ask the callee for an end."""

    def give_up(self) -> None:
        """Say that the caller reads no further."""


class _Refusal:
    """The stream of a call that could not be sent."""

    def __init__(self, response: CallResponse) -> None:
        self._response = response

    def __next__(self) -> CallResponse:
        return self._response

    def cancel(self) -> None:
        """Nothing: it is over."""

    def give_up(self) -> None:
        """Nothing: it is over."""


class ResponseIterator(Generic[Response]):
    """The responses to a BLS request, as they come: `for`, `async for`, or `next`.

    A second iteration gives the responses again from the first, so they are kept for as long as this object
    lives. The last response may have no tensors. Dropping this object before its end gives the call up.
    """

    def __init__(self, stream: Stream, read: Callable[[CallResponse], Response]) -> None:
        """`read` makes a response of what came from the server."""
        self._stream = stream
        self._read = read
        self._host = current_host()
        self._turn = threading.Lock()
        self._seen: list[Response] = []
        self._at = 0  # of the next response in `_seen`
        self._finished = False

    def __iter__(self) -> Iterator[Response]:
        """Go on, or begin again if all responses have been seen."""
        with self._turn:
            if self._finished and self._at == len(self._seen):
                self._at = 0
        return self

    def __next__(self) -> Response:
        """Wait for the next response. Raises StopIteration after the last one.

        In a coroutine, the others of its event loop go on meanwhile.
        """
        loop = running_loop()
        if loop is not None and self._lacks_one():
            go_on(loop, loop.run_in_executor(self._host.readers, self._fetch).done)
        with self._turn:
            if self._at == len(self._seen):
                if self._finished:
                    raise StopIteration
                self._receive()
            self._at += 1
            return self._seen[self._at - 1]

    def _lacks_one(self) -> bool:
        return self._at == len(self._seen) and not self._finished

    def _fetch(self) -> None:
        """Have the next response there when it is asked for."""
        with self._turn:
            if self._lacks_one():
                self._receive()

    def _receive(self) -> None:
        response = next(self._stream)
        self._finished = response.final
        self._seen.append(self._read(response))

    def __aiter__(self) -> AsyncIterator[Response]:
        """Iterate in a coroutine, whose event loop goes on meanwhile."""
        iter(self)
        return self

    async def __anext__(self) -> Response:
        """Wait for the next response on a thread of `async_exec`'s.

        Raises StopAsyncIteration after the last.
        """
        import asyncio  # noqa: TID251  # as above

        ended = object()
        found = await asyncio.get_running_loop().run_in_executor(self._host.pool, next, self, ended)
        if found is ended:
            raise StopAsyncIteration
        return found  # type: ignore[return-value]  # it is not `ended`

    def cancel(self) -> None:
        """Ask the callee for an end. Never waits.

        What the callee still sends arrives, its last response in any case.
        """
        self._stream.cancel()


class Call(Generic[Response]):
    """One call under way: run it on any thread, cancel it from any other."""

    def __init__(self, host: Host, request: CallRequest, read: Callable[[CallResponse], Response]) -> None:
        self._host = host
        self._request = request
        self._read = read
        self._cancelled = False
        self._stream: Stream | None = None

    def run(self) -> Response | ResponseIterator[Response]:
        """Wait for the response and return it; of a decoupled call, return an iterator at once.

        Errors of the callee are responses. Raises TritonModelException for what can't be sent at all.
        """
        stream = self._stream = self._begin()
        if self._cancelled:
            stream.give_up()
        if self._request.decoupled:
            return ResponseIterator(stream, self._read)
        return self._read(next(stream))

    def _begin(self) -> Stream:
        try:
            return self._host.calls.infer(self._request)
        except (ValueError, struct.error) as error:  # of too long a name
            message = f"request to model '{self._request.model}': {error}"
            return _Refusal(CallResponse((), None, ErrorCode.INVALID_ARG, message, final=True))

    def cancel(self) -> None:
        """Give the call up."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.give_up()

    def run_async(self) -> Future[Response | ResponseIterator[Response]]:
        """Begin it on a thread of the host's pool, and return what a coroutine awaits.

        Cancelling that cancels the call. A decoupled call is made at once, without a thread, because its
        iterator has nothing to wait for. Raises RuntimeError if no event loop runs in this thread.
        """
        import asyncio  # noqa: TID251  # as above

        loop = asyncio.get_running_loop()
        if self._request.decoupled:
            made: Future[Response | ResponseIterator[Response]] = loop.create_future()
            made.set_result(self.run())
            return made
        future = loop.run_in_executor(self._host.pool, contextvars.copy_context().run, self.run)
        future.add_done_callback(self._when_done)
        return future

    def _when_done(self, future: Future[Any]) -> None:
        if future.cancelled():
            self.cancel()
