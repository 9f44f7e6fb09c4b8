"""One HTTP/1.1 connection. Its task reads, awaits the application and writes; nothing else runs for it.

A connection is always in one of the `Phase`s. Each phase but `ANSWERING` has a deadline, which the listener's
sweep enforces: it shuts the socket down, so that the task wakes up and sees `expired`. Requests that a client
sent ahead are answered in order, and the socket is not read while any of them is left.
"""

from __future__ import annotations

import math
import select
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

import trio

from actors.seams import faults
from actors.seams.slices import in_slices
from protocols.http.admission import DISCARD_PAUSE, DISCARD_TIME, MOST_DISCARDED, Admit, HttpRefusal, refused
from protocols.http.fields import JSON, SOON
from protocols.http.parser import Request, RequestLimits, RequestParser
from protocols.kserve.metadata import error
from protocols.transport.buffers import behind, copying
from protocols.transport.lost import LOST
from protocols.transport.room import LAST_CALL, PATIENCE

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
Header = tuple[bytes, bytes]

# Answers up to this size are copied together, which is cheaper than a scattered write.
_JOINED: Final = 32 * 1024
_READ_AT_ONCE: Final = 1024 * 1024  # of a long body; keeps the loop's turns short
_MOST_BUFFERS: Final = 512  # half of what one sendmsg takes
# Pipelined requests answered before other tasks get a turn.
_IN_A_ROW: Final = 8

_TOO_SLOW: Final = 408, "Request Timeout"
_EXITING: Final = 503, "Server exiting", (JSON, SOON)
_CROWDED: Final = (
    "the server has as many connections as it takes, and all of them are busy; see --max-connections"
)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON: Final = ((b"content-type", b"application/json"),)
_ASGI: Final = {"version": "3.0", "spec_version": "2.5"}
_BODILESS: Final = frozenset((204, 304))
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
# ASGI spells names in lower case; the wire gets the spelling that Triton's clients print and match.
_SPELLING: Final = {
    name.lower(): name
    for name in (
        b"Accept-Encoding",
        b"Allow",
        b"Cache-Control",
        b"Content-Encoding",
        b"Content-Length",
        b"Content-Type",
        b"Inference-Header-Content-Length",
        b"Location",
        b"Retry-After",
        b"Server-Timing",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How patient a connection is. Times are seconds.

    A body or an answer may take `grace`, and one second more for each `minimum_rate` bytes that moved.
    """

    request: RequestLimits = field(default_factory=RequestLimits)
    idle_timeout: float = 600.0  # clients keep pools of connections, and Triton lets them
    head_timeout: float = 30.0
    grace: float = 60.0
    minimum_rate: float = 1024.0


class Phase(Enum):
    """What a connection is doing."""

    IDLE = "idle"  # between requests
    READING = "reading"  # a request is here in part
    ANSWERING = "answering"  # the application has it
    WRITING = "writing"  # the client is slow to take the answer
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Guest:
    """The treatment of a connection that was let in although all others are busy.

    While the server is still `crowded`, a request is answered only if its path `is_welcome`. That answer is
    the connection's last. Requests for other paths are refused, and `turned_away` is told of each.
    """

    crowded: Callable[[], bool]
    is_welcome: Callable[[bytes], bool]
    turned_away: Callable[[], None]


class Connection:
    """Serves one accepted socket. It is the `tritium.disconnect` hook of its own requests."""

    __slots__ = (
        "_answered",
        "_app",
        "_client",
        "_draining",
        "_extensions",
        "_gone",
        "_guest",
        "_hurried",
        "_idle_since",
        "_keep_alive",
        "_limits",
        "_parser",
        "_request",
        "_scratch",
        "_server",
        "_socket",
        "_started",
        "_streaming",
        "_withdrawn",
        "_yielding",
        "buffered",
        "deadline",
        "disconnected",
        "expired",
        "on_disconnect",
        "phase",
        "served",
    )

    def __init__(
        self,
        sock: socket.socket,
        app: Application,
        limits: ConnectionLimits,
        scratch: memoryview,
        admit: Admit | None = None,
    ) -> None:
        self.phase = Phase.IDLE
        self.deadline = math.inf
        self.expired = False
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None
        self.buffered = 0  # bytes of an answer that wait here for a slow reader
        self._socket = sock
        self._app = app
        self._limits = limits
        self._scratch = scratch  # shared: nothing in it outlives a call of the parser
        self._parser = RequestParser(limits.request, admit)
        self._client = _address(sock.getpeername)
        self._server = _address(sock.getsockname)
        self._extensions = {"tritium.response": {}, "tritium.disconnect": self}
        self.served = False  # a request came on it
        self._idle_since = trio.current_time()
        self._guest: Guest | None = None
        self._yielding = False  # it was told to give way to another connection
        self._draining = False
        self._withdrawn = False  # the server is about to drain
        # While the server ends: when the body would be due if no part of it had come.
        self._hurried: float | None = None
        self._request = Request()
        self._keep_alive = True
        # Set while an application waits to learn of the disconnect.
        self._gone: trio.Event | None = None
        self._started: tuple[int, list[Header]] | None = None  # a standard answer that waits for its body
        # The bytes behind a standard answer's last part: those of a chunked answer, or none.
        self._streaming: bytes | None = None
        self._answered = False

    @property
    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    # Told by the listener

    def peer_left(self) -> None:
        """The client closed, or half-closed, its side."""
        if self.disconnected:
            return
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
        if self._gone is not None:
            self._gone.set()

    def expire(self) -> None:
        """The deadline passed: have the task wake up and end the connection."""
        self.expired = True
        self.deadline = math.inf
        if self.phase is Phase.WRITING:
            # Closing must drop the bytes that the kernel holds for a client that reads nothing.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._shutdown(socket.SHUT_RDWR)
        else:
            self._shutdown(socket.SHUT_RD)

    @property
    def yields_at(self) -> float:
        """The time from which on it may be ended for another connection (`protocols.transport.room.Occupant`)."""
        if self._yielding:
            return math.inf
        limits = self._limits
        if self.phase is Phase.IDLE:
            return self._idle_since
        if self.phase is Phase.READING:
            usual = limits.grace if self._parser.in_body else limits.head_timeout
        elif self.phase is Phase.WRITING:
            usual = limits.grace
        else:
            return math.inf
        return self.deadline - usual + PATIENCE

    def give_way(self) -> None:
        """Come to an end, so that another connection has room.

        An idle connection ends at once. A request that is here already is answered first, and so is one whose
        rest comes on within `PATIENCE`.
        """
        self._yielding = True
        if self.phase is Phase.IDLE:
            trio.lowlevel.notify_closing(self._socket)  # the task that waits for a request looks once more
        else:
            self.expire()

    def squeeze_in(self, guest: Guest) -> None:
        """Note that there is no room for this connection: its requests are answered as `guest` says."""
        self._guest = guest

    def withdraw(self) -> None:
        """End with the next answer, so that the client's next connection may be to another server."""
        self._withdrawn = True

    def drain(self) -> None:
        """Answer the requests that the client has sent already, and close; close at once if there are none.

        A partly received request is waited for only as long as `_hurry` says.
        """
        self._draining = True
        if self.phase is Phase.IDLE:
            trio.lowlevel.notify_closing(self._socket)  # the task that waits for a request looks once more
        elif self.phase is Phase.READING:
            self._hurry()

    def give_up(self) -> None:
        """Refuse the request that is here, because the process is about to end.

        A request whose answer has begun is left as it is.
        """
        if self.phase is Phase.READING:
            self.expire()
        elif self.phase is Phase.ANSWERING and not (
            self._answered or self._started or self._streaming is not None
        ):
            self._answered, self._keep_alive = True, False
            last = refused(*_EXITING)
            try:
                self._socket.send(self._head(last.status, last.headers, len(last.body)) + last.body)
                self._socket.shutdown(socket.SHUT_WR)  # an answer of the application now comes too late
            except OSError:  # the client has gone, or reads nothing
                return

    def _hurry(self) -> None:
        """Shorten the deadline of a partly received request, because the server is to end.

        A head has `LAST_CALL` seconds to be complete. A body that
        keeps the pace has as long for its next bytes.
        """
        now = trio.current_time()
        self.deadline = min(self.deadline, now + LAST_CALL)
        if self._parser.in_body:
            paid = self._parser.received / self._limits.minimum_rate
            if self._hurried is None:
                self._hurried = now + LAST_CALL - paid
            self.deadline = min(self.deadline, self._hurried + paid)

    def _shutdown(self, how: int) -> None:
        try:
            self._socket.shutdown(how)
        except OSError:  # the client was quicker
            return

    # The task

    async def serve(self) -> None:
        """Answer requests until the connection ends, then close the socket.

        An exception of the application is answered 500 and raised.
        """
        if faults.points is not None:
            faults.points.passing("http.connection")
        try:
            in_a_row = 0
            while (request := await self._next()) is not None:
                await self._answer(request)
                if not self._keep_alive:
                    break
                in_a_row += 1
                if in_a_row >= _IN_A_ROW and self._parser.ready:
                    in_a_row = 0
                    await trio.lowlevel.checkpoint()
        except OSError as failure:
            if failure.errno not in LOST:
                raise
        finally:
            self.phase = Phase.CLOSED
            self.deadline = math.inf

    def close(self) -> None:
        """Close the socket, and leave no part of the connection to the garbage collector."""
        self._socket.close()
        self._parser.close()
        self._extensions = {}

    async def _next(self) -> Request | None:
        """Return the next request; None where there will be none."""
        parser = self._parser
        if parser.ready:
            return parser.ready.popleft()
        started = trio.current_time()
        limits = self._limits
        self._hurried = None
        self.phase = Phase.IDLE
        self._idle_since = started
        self.deadline = started + limits.idle_timeout
        while not parser.ready:
            if parser.refusal is not None:
                await self._refuse(parser.refusal.as_answer())
                return None
            if parser.skipped is not None:
                await self._answer_early(*parser.skipped)
            if parser.begun:
                if self.phase is Phase.IDLE:
                    self.phase = Phase.READING
                    started = trio.current_time()
                    self.deadline = started + (PATIENCE if self._yielding else limits.head_timeout)
                    if self._draining:
                        self._hurry()
                if parser.in_body:
                    grace = PATIENCE if self._yielding else limits.grace
                    self.deadline = started + grace + parser.received / limits.minimum_rate
                    if self._draining:
                        self._hurry()
                    if parser.awaits_continue:
                        parser.awaits_continue = False
                        await self._write([_CONTINUE])
            elif self._draining or self._yielding:
                if not self._read() or not self._has_come():
                    return None
                continue
            try:
                await trio.lowlevel.wait_readable(self._socket)
            except trio.ClosedResourceError:
                continue  # woken by `drain`
            if self.expired or not self._read():
                if self.expired and parser.begun:
                    await self._refuse(refused(*(_EXITING if self._draining else _TOO_SLOW)))
                return None
        self.deadline = math.inf
        return parser.ready.popleft()

    def _has_come(self) -> bool:
        """Whether any bytes of another request are here, or bytes that are no request."""
        parser = self._parser
        return parser.begun or bool(parser.ready) or parser.refusal is not None

    def _read(self) -> bool:
        """Take the bytes that the socket has; False at the end of the stream."""
        direct = self._parser.direct
        try:
            if direct is not None:
                at = self._parser.received
                count = self._socket.recv_into(direct[at : at + _READ_AT_ONCE])
                self._parser.fill(count)
            else:
                count = self._socket.recv_into(self._scratch)
                if count:
                    self._parser.feed(self._scratch[:count])
        except BlockingIOError:
            return True
        return count > 0

    async def _answer(self, request: Request) -> None:
        self.phase = Phase.ANSWERING
        self._request = request
        self._keep_alive = request.keep_alive
        self._answered = False
        self._started = self._streaming = None
        self.served = True
        if self._guest is not None and await self._turned_away(self._guest, request):
            return
        path = request.path
        scope: Message = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": request.http_version,
            "method": request.method,
            "scheme": "http",
            "path": (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
            "client": self._client,
            "server": self._server,
            "extensions": self._extensions,
            "tritium.raw_headers": request.raw_headers,
        }
        try:
            await self._app(scope, self._receive_body(request), self._send)
        except Exception:
            self._keep_alive = False
            if not self._answered and self._streaming is None:
                self._answered = True
                await self._respond(500, _JSON, [error("internal server error")], None)
            raise
        finally:
            self.on_disconnect = None
            request.body = b""  # the application may not have asked for it
            if self._gone is not None:
                self._gone.set()
                self._gone = None
        if not self._answered:
            self._keep_alive = False

    async def _turned_away(self, guest: Guest, request: Request) -> bool:
        """Refuse a request for which there is no room; False where it may go on after all."""
        if not guest.crowded():
            self._guest = None
            return False
        self._yielding = True  # the connection ends with this answer
        if guest.is_welcome(request.path):
            return False
        guest.turned_away()
        self._keep_alive = False
        await self._respond(503, [JSON, SOON], [error(_CROWDED)], None)
        return True

    def _receive_body(self, request: Request) -> Callable[[], Awaitable[Message]]:
        """Return an ASGI `receive`: the whole body once, then the disconnect."""
        taken = False

        async def receive() -> Message:
            nonlocal taken
            if not taken:
                taken = True
                # The application owns the body from here on, and drops it when it needs it no longer.
                body, request.body = request.body, b""
                return {"type": "http.request", "body": body, "more_body": False}
            if not self.disconnected and not self._answered:
                self._gone = self._gone or trio.Event()
                await self._gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "tritium.response":
                self._answered = True
                await self._respond(
                    message["status"], message["headers"], list(message["body"]), message["release"]
                )
            case "http.response.start":
                self._started = (message["status"], list(message.get("headers", ())))
            case "http.response.body":
                await self._send_part(message.get("body", b""), more=message.get("more_body", False))
            case kind:
                raise RuntimeError(f"unexpected ASGI message {kind}")

    async def _send_part(self, part: bytes, *, more: bool) -> None:
        """Send part of a standard ASGI answer."""
        if self._started is not None:
            status, headers = self._started
            self._started = None
            if not more:
                self._answered = True
                headers = [header for header in headers if header[0].lower() != b"content-length"]
                await self._respond(status, headers, [part], None)
                return
            buffers: list[Buffer] = [self._streamed_head(status, headers)]
        elif self._streaming is None:
            raise RuntimeError("an ASGI answer begins with http.response.start")
        else:
            buffers = []
        framed = self._streaming and part
        buffers += (b"%x\r\n" % len(part), part, b"\r\n") if framed else (part,)
        if not more:
            self._answered = True
            buffers.append(self._streaming or b"")
        await self._write(buffers)

    def _streamed_head(self, status: int, headers: list[Header]) -> bytes:
        self._streaming = b""
        if not any(name.lower() == b"content-length" for name, _ in headers):
            if self._request.http_version == "1.1":
                self._streaming = b"0\r\n\r\n"
                headers = [*headers, (b"transfer-encoding", b"chunked")]
            else:
                self._keep_alive = False
        return self._head(status, headers, None)

    async def _respond(
        self,
        status: int,
        headers: Sequence[Header],
        body: list[Buffer],
        release: Callable[[], None] | None,
    ) -> None:
        size = sum(map(len, body))
        head = self._head(status, headers, size)
        if self._request.method == "HEAD" or status in _BODILESS:
            body.clear()
        body.insert(0, head)
        await self._write(body, release)

    def _head(self, status: int, headers: Sequence[Header], size: int | None) -> bytes:
        parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in headers:
            parts += (_SPELLING.get(name, name), b": ", value, b"\r\n")
        if size is not None and status not in _BODILESS:
            parts.append(b"Content-Length: %d\r\n" % size)
        # Requests that were sent ahead are answered before the end.
        if (self._draining or self._withdrawn or self._yielding) and not self._parser.ready:
            self._keep_alive = False
        if not self._keep_alive:
            parts.append(b"Connection: close\r\n")
        elif self._request.http_version == "1.0":
            parts.append(b"Connection: keep-alive\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    async def _write(self, buffers: list[Buffer], release: Callable[[], None] | None = None) -> None:
        """Send `buffers` and call `release` as soon as they are no longer read.

        What the socket does not take within one turn of the loop is copied. A slow reader then costs memory
        of this connection and not of a model. Once the client is gone, the rest is dropped.
        """
        rest: list[Buffer] = []
        try:
            size = sum(map(len, buffers))
            if size <= _JOINED:
                buffers = [b"".join(buffers)]
            sent = self._send_some(buffers)
            if sent < size:
                await trio.lowlevel.checkpoint()
                buffers = behind(buffers, sent)
                sent = self._send_some(buffers)
                rest = behind(buffers, sent)
                if release is not None:
                    rest = await in_slices(copying(rest))
        except OSError as failure:
            self._lost(failure)
        finally:
            if release is not None:
                release()
        if rest:
            await self._write_slowly(rest)

    def _send_some(self, buffers: Sequence[Buffer]) -> int:
        try:
            if len(buffers) == 1:
                return self._socket.send(buffers[0])
            return self._socket.sendmsg(buffers[:_MOST_BUFFERS])
        except BlockingIOError:
            return 0

    async def _write_slowly(self, rest: list[Buffer]) -> None:
        phase, self.phase = self.phase, Phase.WRITING
        started = trio.current_time()
        sent = 0
        self.buffered = sum(map(len, rest))
        try:
            while rest:
                self.deadline = started + self._limits.grace + sent / self._limits.minimum_rate
                await trio.lowlevel.wait_writable(self._socket)
                taken = self._send_some(rest)
                rest = behind(rest, taken)
                sent += taken
        except OSError as failure:
            self._lost(failure)
        finally:
            self.buffered = 0
            self.phase = phase
            self.deadline = math.inf

    def _lost(self, failure: OSError) -> None:
        """The client is gone: the rest of an answer that is still being made is dropped."""
        if failure.errno not in LOST:
            raise failure
        self._keep_alive = False
        self.peer_left()

    async def _answer_early(self, request: Request, answer: HttpRefusal) -> None:
        """Answer a request whose body is still coming, and is dropped as it comes."""
        self._parser.skipped = None
        self._request = request
        self._keep_alive = request.keep_alive
        await self._respond(answer.status, answer.headers, [answer.body], None)

    async def _refuse(self, answer: HttpRefusal) -> None:
        """Send a last answer, also to a client that is still sending (`protocols.http.admission`)."""
        self._keep_alive = False
        self._request = Request()
        await self._respond(answer.status, answer.headers, [answer.body], None)
        self._shutdown(socket.SHUT_WR)
        if self._yielding:
            return
        self.phase = Phase.READING
        self.expired = False
        end = trio.current_time() + DISCARD_TIME
        dropped = 0
        while dropped < MOST_DISCARDED:
            now = trio.current_time()
            if self._draining:
                end = min(end, now + LAST_CALL)
            self.deadline = min(now + DISCARD_PAUSE, end)
            await trio.lowlevel.wait_readable(self._socket)
            if self.expired:
                return
            try:
                count = self._socket.recv_into(self._scratch)
            except BlockingIOError:
                continue
            if not count:
                return
            dropped += count


def _address(ask: Callable[[], Any]) -> tuple[str, int] | None:
    try:
        address = ask()
    except OSError:
        return None
    return (address[0], address[1]) if isinstance(address, tuple) else None


def watched_events() -> int:
    """Return the epoll events that tell of a client that left. They are edges only, as each comes once."""
    return select.EPOLLRDHUP | select.EPOLLET
