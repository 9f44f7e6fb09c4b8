"""A stream of events on its way to one client, and the task that shows quiet streams to be alive.

A plain piece that comes while the task waits for it is written in the same turn, without the task. Parts are
released once their events are written. So a client that does not read stalls its own stream: the
model's credit for it runs out, and no more waits here than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from actors.seams.slices import in_slices
from actors.values.errors import TritiumError
from actors.values.requests import InferResponse, release
from protocols.http.answers import Send
from protocols.http.fields import Header
from protocols.http.generate import Exchange, Part, PartsPort
from protocols.openai.chunks import KEEP_ALIVE, Chunks
from protocols.openai.faults import event
from protocols.openai.quiet import QuietStreams

EVENTS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies pass each event on as it comes
]

# Events that came together are written together, up to about this many bytes.
_WRITTEN_AT_ONCE: Final = 64 * 1024


class StreamPort(PartsPort):
    """Takes the parts of one stream. Its task can be woken without a part."""

    __slots__ = ()

    def nudge(self) -> None:
        """Have `take` return nothing, if a task waits in it."""
        self._wake()


class KeepAlive:
    """Wakes streams that have been quiet for too long. `run` is a task of the owner's."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._streams: QuietStreams[StreamPort] = QuietStreams(patience)

    def wrote(self, port: StreamPort) -> None:
        """Note that a stream wrote, or begins."""
        self._streams.wrote(port, trio.current_time())

    def over(self, port: StreamPort) -> None:
        """Forget a stream."""
        self._streams.over(port)

    async def run(self) -> None:
        """Wake them, again and again."""
        while True:
            # A stream that begins while this sleeps is due after it, however long this sleeps.
            await trio.sleep_until(min(self._streams.next_due(), trio.current_time() + self._patience))
            for port in self._streams.due(trio.current_time()):
                port.nudge()


class EventWriter:
    """Writes one stream: `write` from the submission to the end of the answer."""

    def __init__(
        self,
        exchange: Exchange,
        port: StreamPort,
        chunks: Chunks,
        send: Send,
        headers: list[Header],
        alive: KeepAlive,
        *,
        more: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`more` writes what follows without the task: `tritium.more` of `protocols.http.app`."""
        self._exchange = exchange
        self._port = port
        self._chunks = chunks
        self._send = send
        self._headers = headers
        self._alive = alive
        self._more = more
        self._started = False
        self._stuck: list[InferResponse] = []  # passed on, and not yet taken by the socket

    async def write(self) -> None:
        """Write events until the answer is complete or the client has left.

        Raises TritiumError only while nothing has been sent. Later, an error is an event.
        """
        self._alive.wrote(self._port)
        try:
            over = False
            while not over and not self._exchange.left:
                parts, over = await self._exchange.take()
                try:
                    if self._stuck:
                        await self._put(b"")
                        self._unstick()
                    elif not parts and not over:
                        await self._put(KEEP_ALIVE)
                    if over:
                        self._exchange.tell_end()
                    over = await self._write_all(parts, over=over)
                finally:
                    for part in parts:
                        release(part)
        except TritiumError as error:
            if not self._started:
                raise
            self._exchange.tell(error)
            await self._end(event(error))
        finally:
            self._port.passes_on = None
            self._unstick()
            self._alive.over(self._port)

    def _pass_on(self, part: InferResponse) -> bool:
        """Write a part in the turn that it comes in. See `PartsPort.passes_on`."""
        assert self._more is not None, "it is not called without"
        event = self._chunks.plain(part.generated)
        if not event:
            return False
        if self._more(event):
            release(part)
        else:
            self._stuck.append(part)
            self._port.nudge()
        self._alive.wrote(self._port)
        return True

    def _unstick(self) -> None:
        for part in self._stuck:
            release(part)
        self._stuck.clear()

    async def _write_all(self, parts: Sequence[Part], *, over: bool) -> bool:
        """Write the events of `parts`, and the end of the stream if it is `over`. Return whether it is.

        Raises TritiumError for one that came, or that the events met.
        """
        at = 0
        while at < len(parts) and not self._exchange.left:
            begin, at, text = at, *(await self._encoded(parts, at))
            if text:
                await self._put(text)
            for part in parts[begin:at]:
                release(part)
            if at < len(parts):
                await trio.lowlevel.checkpoint()
        if over and not self._exchange.left:
            await self._end(self._chunks.end())
        return over

    async def _encoded(self, parts: Sequence[Part], at: int) -> tuple[int, bytes]:
        """Return the place behind the parts that go together from `at` on, and their events."""
        events: list[bytes] = []
        size = 0
        try:
            while at < len(parts) and size < _WRITTEN_AT_ONCE:
                part = parts[at]
                if not isinstance(part, InferResponse):
                    raise part
                known = len(events)
                if not self._chunks.take(part.generated, events):
                    await in_slices(self._chunks.take_long(part.generated, events))
                size += sum(map(len, events[known:]))
                at += 1
        except TritiumError:
            # The client gets what came before.
            if events:
                await self._put(b"".join(events))
            raise
        return at, b"".join(events)

    async def _put(self, text: bytes) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            if self._more is not None:
                self._port.passes_on = self._pass_on
        await self._send({"type": "http.response.body", "body": text, "more_body": True})
        self._alive.wrote(self._port)

    async def _end(self, text: bytes) -> None:
        await self._put(text)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
