"""Sockets for clients that misbehave.

They carry HTTP as bytes, sent and taken in pieces, which a library would not allow.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import trio

HOST: Final = "127.0.0.1"
# SO_LINGER with no time at all: the end is a reset.
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Broken(Exception):
    """The connection ended before what was waited for."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return what the body says. Raises ValueError if it is no JSON."""
        return json.loads(self.body)


class Connection:
    """One connection to a port of the server. As a context manager it is closed at the end of the block."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._waiting = bytearray()
        self._sending = trio.Lock()

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int = 0) -> Self:
        """Connect, with the kernel keeping at most about `receive_buffer` unread bytes if that is given.

        Raises OSError.
        """
        sock = trio.socket.socket()
        try:
            if receive_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await sock.connect((HOST, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return cls(trio.SocketStream(sock))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave without a word."""
        self._stream.socket.close()

    def reset(self) -> None:
        """Leave by a reset."""
        self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._stream.socket.close()

    async def half_close(self) -> None:
        """Say that nothing more comes. Raises Broken."""
        try:
            await self._stream.send_eof()
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
            raise Broken("the server has reset the connection") from error

    async def take(self, size: int, *, piece: int = 65536, pause: float = 0.0) -> bytes:
        """Return the next `size` bytes, read in pieces with a pause ahead of each. Raises Broken."""
        while len(self._waiting) < size:
            await self._more(piece, pause)
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    async def answer(self, *, piece: int = 65536, pause: float = 0.0) -> HttpAnswer:
        """Return the next HTTP answer, read as `take` does. Raises Broken."""
        while (end := self._waiting.find(b"\r\n\r\n")) < 0:
            await self._more(piece, pause)
        first, *lines = (await self.take(end + 4)).decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", 0))
        body = await self.take(size, piece=piece, pause=pause)
        return HttpAnswer(int(first.split(" ")[1]), headers, body)

    async def wait_ended(self) -> bytes:
        """Read until the server has ended the connection in any way; return what it sent before."""
        said = bytes(self._waiting)
        try:
            while piece := await self.read():
                said += piece
        except Broken:
            pass
        return said

    async def _more(self, piece: int, pause: float) -> None:
        if pause:
            await trio.sleep(pause)
        data = await self.read(piece)
        if not data:
            raise Broken(f"the connection ended before the answer, after {bytes(self._waiting[:100])!r}")
        self._waiting += data


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of an HTTP request; `_` in the headers' names stands for `-`."""
    fields = {"host": HOST, "content-length": str(len(body)), **headers}
    lines = [
        f"{method} {path} HTTP/1.1",
        *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(path: str, body: bytes) -> bytes:
    """Return the bytes of a POST whose body comes in chunks of one byte each."""
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
