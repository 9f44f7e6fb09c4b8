"""The generate extension: one JSON object in; one JSON object or any number of server-sent events out.

A response of a decoupled model is encoded and written, and only then given back. The model's credit depends
on that. While a client does not read, its model waits, and no more waits here than the model may have under
way. A response of any other model is given back as soon as it is encoded, so that no slow reader holds a
model's memory.

An error found before the model has the request is an ordinary HTTP error. After that the first response
decides the status, and an error that comes later is an event among others.

Contract: http.md section 10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from actors.seams.slices import in_slices
from actors.values.errors import Cancelled, Internal, InvalidArgument, TritiumError
from actors.values.interfaces import Models
from actors.values.requests import InferRequest, InferResponse, ReplyPort, ServedModel, release
from actors.values.tensors import Buffer
from actors.values.tracing.spans import Span
from protocols.http.bodies import ONLY_IDENTITY, read_body
from protocols.http.fields import EVENTS, JSON, Header, failure_fields, peer_of, put_marks, server_timing
from protocols.http.options import V2Options
from protocols.http.reply import DisconnectHook, Receive, carried_out
from protocols.http.routes import Endpoint, Route
from protocols.http.tracing.noting import begin_in, noting
from protocols.kserve import metadata
from protocols.kserve.documents import TooLong
from protocols.kserve.generate import (
    NOT_ONE_RESPONSE,
    decode_generate,
    decode_long_generate,
    encode_generated,
    event,
)
from protocols.kserve.long_answers import encode_long_generated, is_long_generated
from protocols.status import http_status

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Part = InferResponse | TritiumError

# Events that came together are written together, up to about this many bytes.
_WRITTEN_AT_ONCE: Final = 64 * 1024
_PLAIN: Final = frozenset((b"", b"identity"))


class Generator:
    """Answers requests of the generate extension by `models`."""

    def __init__(self, models: Models, options: V2Options) -> None:
        self._models = models
        self._options = options

    async def answer(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, unless the client leaves.

        Raises TritiumError only while nothing has been sent.
        """
        self._models.resolve(route.model, route.version)
        body = await read_body(receive)
        if body is None:
            return
        if dict(scope["headers"]).get(b"content-encoding", b"") not in _PLAIN:
            raise InvalidArgument(ONLY_IDENTITY)
        model = self._models.resolve(route.model, route.version)  # it may have been replaced meanwhile
        port = PartsPort()
        given: dict[str, Any] = {
            "max_input_size": self._options.max_input_size,
            "requested_version": int(route.version) if route.version else -1,
            "reply": port,
            "accepted_at": trio.current_time(),
        }
        try:
            request = decode_generate(body, model.spec, **given)
        except TooLong:
            request = await in_slices(decode_long_generate(body, model.spec, **given))
            model = self._models.resolve(route.model, route.version)  # once more, for the same reason
        # The body may be long, and the stream that answers it may last long.
        del body
        if model.marks is not None:
            put_marks(
                model.marks, request, scope["headers"], scope.get("client"), scope.get("tritium.caller")
            )
        trace = begin_in(scope, self._options.tracer, request)
        if trace is not None:
            send = noting(trace, send)
        exchange = Exchange(model, request, port, self._told(scope))
        if route.endpoint is Endpoint.GENERATE_STREAM:
            write = partial(_write_events, exchange, send)
        else:
            write = partial(_write_one, exchange, send, timed=self._options.server_timing)
        work = partial(exchange.run, write)
        await carried_out(work, request, scope, receive)

    def _told(self, scope: Scope) -> Callable[[InferRequest, Part], None] | None:
        """Return the hook that is told the outcome of the request of `scope`."""
        on_finished = self._options.endings.hook
        if on_finished is None:
            return None
        return lambda request, outcome: on_finished(request, outcome, peer_of(scope.get("client")))


class PartsPort(ReplyPort):
    """Takes the parts of one answer, for the one task that passes them on.

    It sets no bound: a model that may give many parts has credit for
    so many, and gets it back as parts are released.
    """

    __slots__ = ("_parts", "_task", "final", "over", "passes_on")

    def __init__(self) -> None:
        self.passes_on: Callable[[InferResponse], bool] | None = None
        """Is given what comes while the task waits for it. False: nothing has happened, the task gets it."""
        self.over = False  # no more parts will come, or they are not wanted
        self.final: Part | None = None  # the last part, once it has come
        self._parts: list[Part] = []
        self._task: trio.lowlevel.Task | None = None

    def put(self, part: Part, *, final: bool) -> None:
        """Take one part (`actors.values.requests.ReplyPort`). Never raises."""
        if self.over:
            release(part)
            return
        if (
            self._task is not None
            and self.passes_on is not None
            and not final
            and isinstance(part, InferResponse)
            and self.passes_on(part)
        ):
            return
        self._parts.append(part)
        if final:
            self.over, self.final = True, part
        self._wake()

    def close(self) -> None:
        """Parts are not waited for any more: release those that came and those that still come."""
        self.over = True
        for part in self._parts:
            release(part)
        self._parts.clear()
        self._wake()

    async def take(self) -> list[Part]:
        """Wait until there are parts or the end, and return the parts. Always gives other tasks a turn."""
        if self._parts or self.over:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        parts, self._parts = self._parts, []
        return parts

    def _wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Exchange:
    """One request from its submission to the end of its answer, and the hook that is told its outcome."""

    def __init__(
        self,
        model: ServedModel,
        request: InferRequest,
        port: PartsPort,
        on_finished: Callable[[InferRequest, Part], None] | None,
    ) -> None:
        self.left = False  # whether the client left before the model was done
        self._model = model
        self._request = request
        self._port = port
        self._on_finished = on_finished

    @property
    def span(self) -> Span | None:
        """The request's span, if it is traced."""
        return self._request.span

    async def run(self, write: Callable[[], Awaitable[None]], hook: DisconnectHook) -> None:
        """Submit the request and `write` its answer.

        However this ends, the model no longer has the request.
        """
        if hook.disconnected:
            self.tell(Cancelled("the client left"))
            return
        hook.on_disconnect = self._leave
        try:
            await self._model.submit(self._request)
            await write()
            if self.left:
                self.tell(Cancelled("the client left"))
        except TritiumError as error:
            if self._request.span is not None:
                self._request.span.refused(error, trio.current_time())
            self.tell(error)
            raise
        except trio.Cancelled:
            self.tell(Cancelled("the connection was closed by the server"))
            raise
        finally:
            hook.on_disconnect = None
            self._forget()

    def _leave(self) -> None:
        self.left = self.left or not self._port.over
        self._forget()

    def _forget(self) -> None:
        """Release the parts that came and those that still come, and stop the model if it is not done."""
        if not self._port.over:
            self._model.cancel(self._request)
        self._port.close()

    def tell(self, outcome: Part) -> None:
        """Tell the outcome of the request, once."""
        on_finished, self._on_finished = self._on_finished, None
        if on_finished is not None:
            on_finished(self._request, outcome)

    @property
    def decoupled(self) -> bool:
        """Whether the model that has the request may give any number of responses."""
        return (self._request.routed_to or self._model).spec.decoupled

    async def take(self) -> tuple[list[Part], bool]:
        """Wait for more.

        Return the responses and errors that came, and whether there will be no more of them.
        """
        parts = await self._port.take()
        over = self._port.over
        if parts and over and self._is_bare_end(parts[-1]):
            release(parts.pop())
        return parts, over

    def _is_bare_end(self, part: Part) -> bool:
        """Whether a part only says that it is the last, as those of decoupled models may."""
        return (
            part is self._port.final
            and isinstance(part, InferResponse)
            and not part.outputs
            and not part.generated
            and self.decoupled
        )

    def tell_end(self) -> None:
        """Tell the model's last part."""
        if self._port.final is not None:
            self.tell(self._port.final)


async def _write_one(exchange: Exchange, send: Send, *, timed: bool) -> None:
    """Answer with the only response. Raises the error that came instead, or that encoding it met."""
    parts: list[Part] = []
    try:
        over = False
        while not over and len(parts) < 2:
            more, over = await exchange.take()
            parts += more
        if exchange.left:
            return
        response, headers, texts = _only(exchange, parts, timed=timed)
        if response is not None:
            texts = await _encoded(response)
    finally:
        for part in parts:
            release(part)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for buffer in texts:
        await send({"type": "http.response.body", "body": buffer, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _encoded(response: InferResponse) -> Sequence[Buffer]:
    """Return the text of one response, in buffers. Raises TritiumError."""
    if is_long_generated(response):
        return await in_slices(encode_long_generated(response))
    return (encode_generated(response),)


def _only(
    exchange: Exchange, parts: Sequence[Part], *, timed: bool
) -> tuple[InferResponse | None, list[Header], Sequence[Buffer]]:
    """Return the only one of `parts` with the headers of its answer; otherwise the body of an error."""
    if parts and isinstance(parts[0], TritiumError):
        raise parts[0]
    if len(parts) != 1:
        exchange.tell(Internal(NOT_ONE_RESPONSE))
        return None, [JSON], (metadata.error(NOT_ONE_RESPONSE),)
    (response,) = parts
    assert isinstance(response, InferResponse), "what is no error is a response"
    exchange.tell(response)
    headers = [JSON]
    if timed and response.timing is not None:
        headers.append(server_timing(response.timing, exchange.span))
    return response, headers, ()


async def _write_events(exchange: Exchange, send: Send) -> None:
    """Answer with an event for each response and error, under the status of the first of them."""
    writer = _EventWriter(exchange, send)
    over = False
    while not over:
        parts, over = await exchange.take()
        try:
            if over:
                exchange.tell_end()
            at = 0
            while at < len(parts) and not exchange.left:
                at = await writer.write(parts, at)
        finally:
            for part in parts:
                release(part)
    if not exchange.left:
        await writer.end()


class _EventWriter:
    """Writes server-sent events."""

    def __init__(self, exchange: Exchange, send: Send) -> None:
        self._exchange = exchange
        self._send = send
        self._started = False

    async def write(self, parts: Sequence[Part], at: int) -> int:
        """Write events of `parts` from `at` on, as many as go together, and release their parts.

        Returns the place of the first part that was not written.
        """
        lent = self._exchange.decoupled
        events: list[Buffer] = []
        size = 0
        end = at
        status, headers = 200, [EVENTS]
        while end < len(parts) and size < _WRITTEN_AT_ONCE:
            part = parts[end]
            long = isinstance(part, InferResponse) and is_long_generated(part)
            if long and end > at:
                break
            error, document = await _document(part)
            if not lent:
                release(part)
            if end == at and error is not None:
                status = http_status(error.code)
                headers += failure_fields(error)
            events += event(document)
            size += sum(map(len, document))
            end += 1
            if long:
                break
        await self._start(status, headers)
        for body in events if size > _WRITTEN_AT_ONCE else (b"".join(events),):
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        for part in parts[at:end]:
            release(part)
        return end

    async def end(self) -> None:
        """End the stream, which may have had no events at all."""
        await self._start(200, [EVENTS])
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, status: int, headers: list[Header]) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def _document(part: Part) -> tuple[TritiumError | None, Sequence[Buffer]]:
    """Return `part` as a JSON text in buffers, and the error that it is, or that encoding it met."""
    if isinstance(part, InferResponse):
        try:
            return None, await _encoded(part)
        except TritiumError as error:
            return error, (metadata.error(error.message),)
    return part, (metadata.error(part.message),)
