"""One connection's side of ASGI: a request is put to the application, and what it sends is written.

The conversation is the `tritium.disconnect` hook of its own requests (`protocols.http.app`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import trio

from actors.seams.slices import in_slices
from actors.values.callers import Peer
from actors.values.tensors import Buffer
from protocols.http.answers import Answer, error_answer
from protocols.http.fields import Header
from protocols.http.parser import Head, Request
from protocols.http.patience import STATUS_LINES, Patience
from protocols.transport.buffers import copying
from protocols.transport.clients import Clients
from protocols.transport.sockets import ConnectionLost, Transport

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_ASGI: Final = {"version": "3.0", "spec_version": "2.5"}
_BUG: Final = error_answer(500, "internal server error")
_BODILESS: Final = frozenset((204, 304))
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
        b"WWW-Authenticate",
    )
}


class Conversation:
    """Answers the requests of one connection, one after the other.

    `ahead` are the requests that are answered next. `keep_alive` says whether the connection goes on behind
    the answer. `address` is the other end of the connection; `clients`, if given, says whose each request is.
    `answered` says whether the answer to the last request has begun.
    """

    __slots__ = (
        "_app",
        "_clients",
        "_extensions",
        "_gone",
        "_left_over",
        "_patience",
        "_peer",
        "_request",
        "_scheme",
        "_server",
        "_started",
        "_status_lines",
        "_streaming",
        "_transport",
        "address",
        "ahead",
        "answered",
        "buffered",
        "disconnected",
        "keep_alive",
        "on_disconnect",
    )

    def __init__(
        self,
        transport: Transport,
        peer: Peer,
        app: Application,
        patience: Patience,
        ahead: Collection[Request],
        clients: Clients | None = None,
        status_lines: Mapping[int, bytes] = STATUS_LINES,
    ) -> None:
        self.keep_alive = True
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None
        self.buffered = 0  # bytes of an answer that wait here for a slow reader
        self._transport = transport
        self._app = app
        self._patience = patience
        self._status_lines = status_lines
        self.ahead = ahead
        self.address, self._server = transport.endpoints()
        self._peer = peer
        self._clients = clients
        self._scheme = "https" if transport.secured else "http"
        self._extensions = {
            "tritium.response": {},
            "tritium.disconnect": self,
            "tritium.peer": peer,
            "tritium.more": self.write_more,
        }
        self._request = Request(Head())
        # Set while an application waits to learn of the disconnect.
        self._gone: trio.Event | None = None
        self._started: tuple[int, list[Header]] | None = None  # a standard answer that waits for its body
        # The bytes behind a standard answer's last part: those of a chunked answer, or none.
        self._streaming: bytes | None = None
        self._left_over: list[Buffer] = []  # of a part, that the socket has not taken yet
        self.answered = False

    def begin(self, request: Request) -> None:
        """Take up the request that is answered next."""
        self._request = request
        self.keep_alive = request.head.keep_alive
        self.answered = False
        self._started = self._streaming = None
        self._left_over = []

    async def answer(self, request: Request) -> None:
        """Have the application answer a request. Its exception is answered 500 and raised."""
        head = request.head
        path = head.path
        scope: Message = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.http_version,
            "method": head.method,
            "scheme": self._scheme,
            "path": (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self.client(head),
            "server": self._server,
            "extensions": self._extensions,
            "tritium.raw_headers": head.raw_headers,
            "tritium.caller": request.caller,
            "tritium.size": request.size,
            "tritium.came_at": self._patience.came_at,
            "tritium.of_page": head.of_page,
        }
        if self._clients is not None:
            scope["extensions"] = {**self._extensions, "tritium.peer": self.peer(head)}
        try:
            await self._app(scope, self._receive_body(request), self._send)
        except Exception:
            await self.tell_bug()
            raise
        finally:
            self.on_disconnect = None
            request.body = b""  # the application may not have asked for it
            self.give_back()  # and it may not have answered
            if self._gone is not None:
                self._gone.set()
                self._gone = None
        if not self.answered:
            self.keep_alive = False

    def give_up(self, last: Answer) -> None:
        """Answer with `last`, as the process is about to end; an answer that has begun is left as it is."""
        if self.answered or self._started or self._streaming is not None:
            return
        self.answered, self.keep_alive = True, False
        try:
            head = self._head(last.status, last.headers, sum(map(len, last.buffers)))
            unsent = self._transport.send([head, *last.buffers])
        except ConnectionLost:
            return
        if not unsent:
            self._transport.finish()  # an answer of the application now comes too late

    def peer_left(self) -> None:
        """The client closed, or half-closed, its side."""
        if self.disconnected:
            return
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
        if self._gone is not None:
            self._gone.set()

    def close(self) -> None:
        """Leave no part of the connection to the garbage collector."""
        self._extensions = {}

    def peer(self, head: Head) -> Peer:
        """Return whose request it is."""
        return self._peer if self._clients is None else self._clients.of(head.headers)

    def client(self, head: Head) -> tuple[str, int] | None:
        """Return the address and port of the client; None for a Unix socket."""
        if self._clients is None:
            return self.address
        peer = self._clients.of(head.headers)
        return self.address if peer is self._peer else (peer.address, peer.port)

    @property
    def came_at(self) -> float:
        """When the first bytes of the request came; negative where it came in one piece."""
        return self._patience.came_at

    def rest(self, *, used: bool) -> None:
        """Note that no request is under way. `used`: there was one on this connection."""
        now = trio.current_time()
        self._patience.rest(now)
        watch = self._transport.watch
        if watch is not None and used:
            watch.use(now)

    async def tell_bug(self) -> None:
        """Answer 500, unless an answer has begun, and end the connection."""
        self.keep_alive = False
        if not self.answered and self._streaming is None:
            self.answered = True
            await self.respond(_BUG)

    def give_back(self) -> None:
        """Give back the room that the request's body had on its way."""
        release, self._request.release = self._request.release, None
        if release is not None:
            release()

    # ASGI

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
            if not self.disconnected and not self.answered:
                self._gone = self._gone or trio.Event()
                await self._gone.wait()
            return {"type": "http.disconnect"}

        return receive

    def _send(self, message: Message) -> Awaitable[None]:
        if message["type"] != "tritium.response":
            return self._send_standard(message)
        self.answered = True
        return self.respond(
            Answer(message["status"], message["headers"], message["body"], message["release"])
        )

    async def _send_standard(self, message: Message) -> None:
        match message["type"]:
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
                self.answered = True
                headers = [header for header in headers if header[0].lower() != b"content-length"]
                await self.respond(Answer(status, headers, (part,)))
                return
            buffers: list[Buffer] = [self._streamed_head(status, headers)]
        elif self._streaming is None:
            raise RuntimeError("an ASGI answer begins with http.response.start")
        else:
            buffers = []
        buffers += self._framed(part)
        if not more:
            self.answered = True
            buffers.append(self._streaming or b"")
        await self.write(buffers)

    def _framed(self, part: bytes) -> tuple[bytes, ...]:
        return (b"%x\r\n" % len(part), part, b"\r\n") if self._streaming and part else (part,)

    def write_more(self, part: bytes) -> bool:
        """Write part of a standard ASGI answer that has begun, without the task: extension `tritium.more`.

        False: the socket has not taken all of it. The task has to send another part, which may be empty, and
        until then nothing more may be written here.
        """
        buffers = self._framed(part)
        try:
            self._left_over = self._transport.send(buffers)
        except (ConnectionLost, OSError):
            self._left_over = list(buffers)  # the task finds that out, too, and the trouble is its own
        return not self._left_over

    def _streamed_head(self, status: int, headers: list[Header]) -> bytes:
        self._streaming = b""
        if not any(name.lower() == b"content-length" for name, _ in headers):
            if self._request.head.http_version == "1.1":
                self._streaming = b"0\r\n\r\n"
                headers = [*headers, (b"transfer-encoding", b"chunked")]
            else:
                self.keep_alive = False
        return self._head(status, headers, None)

    # Writing

    async def respond(self, answer: Answer) -> None:
        """Send a whole answer. Its `release` is called as soon as its buffers are no longer read."""
        rest = self.respond_at_once(answer)
        if rest:
            await self.write_rest(rest, answer.release)

    def respond_at_once(self, answer: Answer) -> list[Buffer]:
        """Send what the socket takes of an answer; return the rest, which is for `write_rest`."""
        buffers = answer.buffers
        head = self._head(answer.status, answer.headers, sum(map(len, buffers)))
        if self._request.head.method == "HEAD" or answer.status in _BODILESS:
            buffers = ()
        return self._write_at_once((head, *buffers), answer.release)

    def _head(self, status: int, headers: Sequence[Header], size: int | None) -> bytes:
        if self._request.release is not None:
            self.give_back()
        parts = [self._status_lines.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in headers:
            parts += (_SPELLING.get(name, name), b": ", value, b"\r\n")
        if size is not None and status not in _BODILESS:
            parts.append(b"Content-Length: %d\r\n" % size)
        # Requests that were sent ahead are answered before the end.
        if self._patience.ending and not self.ahead:
            self.keep_alive = False
        if not self.keep_alive:
            parts.append(b"Connection: close\r\n")
        elif self._request.head.http_version == "1.0":
            parts.append(b"Connection: keep-alive\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    async def write(self, buffers: Sequence[Buffer]) -> None:
        """Send `buffers`. Once the client is gone, the rest is dropped."""
        if self._left_over:
            buffers = (*self._left_over, *buffers)
            self._left_over = []
        rest = self._write_at_once(buffers, None)
        if rest:
            await self.write_rest(rest, None)

    def _write_at_once(self, buffers: Sequence[Buffer], release: Callable[[], None] | None) -> list[Buffer]:
        """Send what the socket takes; return the rest. Where nothing is left, `release` is called."""
        rest: list[Buffer] = []
        try:
            rest = self._transport.send(buffers)
        except ConnectionLost:
            self._lost()
        finally:
            if release is not None and not rest:
                release()
        return rest

    async def write_rest(self, rest: list[Buffer], release: Callable[[], None] | None) -> None:
        """Send what the socket did not take.

        What it does not take within one turn of the loop is copied. A slow reader then costs memory of this
        connection and not of a model.
        """
        try:
            await trio.lowlevel.checkpoint()
            rest = self._transport.send(rest)
            if release is not None:
                rest = await in_slices(copying(rest))
        except ConnectionLost:
            rest = []
            self._lost()
        finally:
            if release is not None:
                release()
        if rest:
            await self._write_slowly(rest)

    async def _write_slowly(self, rest: list[Buffer]) -> None:
        patience = self._patience
        phase = patience.phase
        began = trio.current_time()
        self.buffered = whole = left = sum(map(len, rest))
        try:
            while rest:
                patience.write(began, whole - left)
                await self._transport.wait_writable()
                rest = self._transport.send(rest)
                left = sum(map(len, rest))
        except ConnectionLost:
            self._lost()
        finally:
            self.buffered = 0
            patience.work(phase)

    def _lost(self) -> None:
        """The client is gone: the rest of an answer that is still being made is dropped."""
        self.keep_alive = False
        self.peer_left()
