"""HTTP/1.1 as bytes on a socket: a client that can misbehave, and notices an answer too many.

`httptools` parses. A client library does the same for 16 times the processor time (0.8 ms a request instead
of 0.05). Both the client and the server run on the same machine, so that time would be taken from the server.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import httptools
import trio

LOOPBACK: Final = "127.0.0.1"

# SO_LINGER with no time at all: the end is a reset.
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Broken(Exception):
    """The connection ended before what was waited for, or brought something else."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Names of `fields` are lower case."""

    status: int
    fields: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return what the body says. Raises ValueError if it is no JSON."""
        return json.loads(self.body)


class _Reading:
    """The answers of a connection, as httptools parses them."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.fields: dict[str, str] = {}
        self.body = bytearray()
        # The answers that are whole, each with whether the server keeps the connection.
        self.whole: deque[tuple[Reply, bool]] = deque()
        self.begun = False

    def on_message_begin(self) -> None:
        self.fields, self.body, self.begun = {}, bytearray(), True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        # The parser forgets both once the next answer begins.
        reply = Reply(self.parser.get_status_code(), self.fields, bytes(self.body))
        self.whole.append((reply, self.parser.should_keep_alive()))
        self.begun = False


async def connect(address: int | bytes, *, receive_buffer: int = 0) -> trio.SocketStream:
    """Connect to a port of the loopback address, or to a Unix socket by its name. Raises OSError.

    The kernel keeps at most about `receive_buffer` unread bytes if that is given.
    """
    family = socket.AF_UNIX if isinstance(address, bytes) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connected = trio.socket.from_stdlib_socket(sock)
        if isinstance(address, bytes):
            await _connect_unix(sock, address)
        else:
            await connected.connect((LOOPBACK, address))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(connected)


async def _connect_unix(sock: socket.socket, name: bytes) -> None:
    while True:
        try:
            sock.connect(name)
        except BlockingIOError:  # the backlog is full, and no event tells when it has room
            await trio.sleep(0.01)
        else:
            return


class Connection:
    """One connection to the server. As a context manager it is closed at the end of the block.

    After any exception of its methods, and after a cancelled `ask`, close it.
    """

    def __init__(
        self, stream: trio.SocketStream, tls: trio.SSLStream[trio.SocketStream] | None = None
    ) -> None:
        """`tls` is what is spoken over the stream, if it is not spoken in the clear."""
        self._raw = stream
        self._tls = tls
        self._stream = tls or stream
        self._waiting = bytearray()
        self._reading = _Reading()
        self._sending = trio.Lock()
        self._kept = True

    @classmethod
    async def open(
        cls, address: int | bytes, *, receive_buffer: int = 0, trust: ssl.SSLContext | None = None
    ) -> Self:
        """Connect as `connect` does, and speak TLS, trusting `trust`. Raises OSError, and Broken."""
        stream = await connect(address, receive_buffer=receive_buffer)
        if trust is None:
            return cls(stream)
        tls = trio.SSLStream(stream, trust, server_hostname="localhost", https_compatible=True)
        try:
            await tls.do_handshake()
        except BaseException as error:
            stream.socket.close()
            if isinstance(error, trio.BrokenResourceError):
                raise Broken(f"no TLS with the server: {error.__cause__ or error}") from error
            raise
        return cls(stream, tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def shown(self) -> str:
        """The common name of the certificate that the server has shown; empty in the clear."""
        certificate = {} if self._tls is None else self._tls.getpeercert()
        return str(dict(part[0] for part in certificate.get("subject", ())).get("commonName", ""))

    @property
    def kept(self) -> bool:
        """Whether the server keeps the connection for another request, as far as it has said."""
        return self._kept

    async def unasked(self) -> bytes | None:
        """Return bytes that the server has sent and no request asked for.

        Returns b"" if the server has closed the connection, and None for neither. Returns at once.
        """
        if not self._raw.socket.is_readable():
            return None
        try:
            return await self.read()
        except Broken:
            return b""

    def close(self) -> None:
        """Leave, without saying anything."""
        self._raw.socket.close()

    def reset(self) -> None:
        """Leave by a reset."""
        self._raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._raw.socket.close()

    async def half_close(self) -> None:
        """Say that nothing more comes. Raises Broken."""
        try:
            await self._raw.send_eof()
        except trio.BrokenResourceError as error:
            raise Broken("the connection broke before its end was said") from error

    async def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises Broken."""
        try:
            async with self._sending:
                await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise Broken(f"the connection broke while {len(data)} bytes were sent") from error

    async def trickle(self, data: bytes, *, pieces: int, pause: float) -> None:
        """Send bytes in so many pieces, with a pause after each. Raises Broken."""
        size = -(-len(data) // pieces)
        for at in range(0, len(data), size):
            await self.send(data[at : at + size])
            await trio.sleep(pause)

    async def read(self, size: int = 65536) -> bytes:
        """Return some bytes; none if the server has ended the connection. Raises Broken for a reset."""
        try:
            return bytes(await self._stream.receive_some(size))
        except trio.BrokenResourceError as error:
            raise Broken(f"the server has reset the connection: {error.__cause__ or error}") from error

    async def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises Broken."""
        while len(self._waiting) < size:
            if not (data := await self.read()):
                raise Broken(f"the connection ended after {bytes(self._waiting[:100])!r}")
            self._waiting += data
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    async def answer(self, *, piece: int = 65536, pause: float = 0.0) -> Reply:
        """Return the next answer, read in pieces with a pause ahead of each, without a limit of time.

        Answers to further requests may stand behind it. Raises Broken.
        """
        reading = self._reading
        while not reading.whole:
            if pause:
                await trio.sleep(pause)
            if not (data := await self.read(piece)):
                raise Broken(f"the connection was closed after {len(reading.body)} bytes of a body")
            try:
                reading.parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise Broken(f"no answer of HTTP: {error}") from error
        reply, self._kept = reading.whole.popleft()
        return reply

    async def ask(self, request: bytes) -> Reply:
        """Send a request and wait for its answer, as `answer` does. Raises Broken for a second answer, too.

        The server may answer and leave before it has read everything. Its answer can still be read.
        """
        with contextlib.suppress(Broken):
            await self.send(request)
        reply = await self.answer()
        if self._reading.whole or self._reading.begun:
            raise Broken("more than one answer came to one request")
        return reply

    async def wait_ended(self) -> bytes:
        """Read until the server has ended the connection in any way; return what it sent before."""
        said = bytes(self._waiting)
        with contextlib.suppress(Broken):
            while piece := await self.read():
                said += piece
        return said


async def ask(
    address: int | bytes, method: str, path: str, body: bytes = b"", *, trust: ssl.SSLContext | None = None
) -> Reply:
    """Send one request on a connection of its own (`Connection.open`). Raises OSError and Broken."""
    async with await Connection.open(address, trust=trust) as connection:
        return await connection.ask(request(method, path, body))


def request(method: str, path: str, body: bytes = b"", **fields: str) -> bytes:
    """Return the bytes of a request; `_` in the names of fields stands for `-`."""
    given = {"host": "localhost", "content-length": str(len(body)), **fields}
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items()]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


def chunked(path: str, body: bytes) -> bytes:
    """Return the bytes of a POST whose body comes in chunks of one byte each."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
