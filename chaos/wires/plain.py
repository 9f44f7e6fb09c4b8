"""What clients put on sockets and read from them: HTTP/1.1, and gRPC over HTTP/2.

It is written here by hand, so that the server's own code is on one side only. Every exchange has a connection
of its own.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

import trio
from hpack import Decoder

STATUS: Final = {
    400: "INVALID_ARG",
    404: "NOT_FOUND",
    422: "POISONED",
    500: "INTERNAL",
    501: "UNSUPPORTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
GRPC_STATUS: Final = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARG",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    9: "POISONED",
    12: "UNSUPPORTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
}
_PIECE: Final = 65_536


class Lost(Exception):
    """The connection has ended without an answer."""


@asynccontextmanager
async def _connected(address: bytes) -> AsyncIterator[socket.socket]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(address)
            except BlockingIOError:  # the backlog is full
                await trio.sleep(0.01)
            else:
                break
        yield sock
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()


async def _send(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


async def _receive(sock: socket.socket) -> bytes:
    """Return what has come. Raises Lost at the end of the connection."""
    while True:
        try:
            data = sock.recv(_PIECE)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        if not data:
            raise Lost("the server has closed the connection")
        return data


# -- HTTP


async def ask_http(address: bytes, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request; return the answer's status and body. Raises Lost, OSError."""
    head = f"{method} {path} HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n\r\n"
    async with _connected(address) as sock:
        await _send(sock, head.encode() + body)
        return await _read_answer(sock)


async def _read_answer(sock: socket.socket) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _receive(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    while len(body) < length:
        body += await _receive(sock)
    if len(body) > length:
        raise Lost(f"{len(body) - length} bytes too many behind an answer")
    return int(lines[0].split()[1]), body


# -- gRPC

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_LARGE: Final = 2**30


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _headers(method: str, deadline: float, metadata: Mapping[str, str]) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/inference.GRPCInferenceService/{method}"),
        (":authority", "here"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *metadata.items(),
    ]
    if deadline:
        fields.append(("grpc-timeout", f"{round(deadline * 1000)}m"))
    # Literals that no table remembers (RFC 7541, section 6.2.2).
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    """Return a string literal without Huffman coding, shorter than 127 bytes (RFC 7541, section 5.2)."""
    return bytes((len(text),)) + text.encode()


class GrpcCall:
    """One call, on a connection of its own. `trailers` are there once `receive` has returned None."""

    def __init__(self, sock: socket.socket) -> None:
        self.trailers: dict[str, str] = {}
        self._sock = sock
        self._decoder = Decoder()
        self._data = b""  # of frames that are not whole yet
        self._body = b""  # of messages that are not whole yet
        self._over = False

    @classmethod
    @asynccontextmanager
    async def to(
        cls,
        address: bytes,
        method: str,
        *,
        deadline: float = 0.0,
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[GrpcCall]:
        """Begin a call of `method`, which may take `deadline` seconds; 0 is without a limit."""
        async with _connected(address) as sock:
            settings = (4).to_bytes(2, "big") + _LARGE.to_bytes(4, "big")  # INITIAL_WINDOW_SIZE
            await _send(
                sock,
                _PREFACE
                + _frame(_SETTINGS, 0, 0, settings)
                + _frame(_WINDOW, 0, 0, _LARGE.to_bytes(4, "big"))
                + _frame(_HEADERS, _END_HEADERS, 1, _headers(method, deadline, metadata)),
            )
            yield cls(sock)

    @property
    def status(self) -> tuple[str, str]:
        """The status' name, empty if all is well, and its message."""
        number = int(self.trailers.get("grpc-status", "2"))
        name = GRPC_STATUS.get(number, f"gRPC {number}") if number else ""
        return name, unquote(self.trailers.get("grpc-message", ""))

    async def send(self, message: bytes, *, last: bool) -> None:
        """Send a message. Raises OSError."""
        body = b"\0" + len(message).to_bytes(4, "big") + message
        await _send(self._sock, _frame(_DATA, _END_STREAM if last else 0, 1, body))

    async def receive(self) -> bytes | None:
        """Return the next message, or None if the call has ended. Raises Lost, OSError."""
        while len(self._body) < 5 or len(self._body) < 5 + int.from_bytes(self._body[1:5], "big"):
            if self._over:
                if self._body:
                    raise Lost(f"{len(self._body)} bytes of half a message before the trailers")
                return None
            await self._read_frame()
        end = 5 + int.from_bytes(self._body[1:5], "big")
        message, self._body = self._body[5:end], self._body[end:]
        return message

    async def _read_frame(self) -> None:
        while len(self._data) < 9 or len(self._data) < 9 + int.from_bytes(self._data[:3], "big"):
            self._data += await _receive(self._sock)
        length, kind, flags = int.from_bytes(self._data[:3], "big"), self._data[3], self._data[4]
        payload, self._data = self._data[9 : 9 + length], self._data[9 + length :]
        if kind == _SETTINGS and not flags & _ACK:
            await _send(self._sock, _frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            await _send(self._sock, _frame(_PING, _ACK, 0, payload))
        elif kind == _DATA:
            self._body += payload
        elif kind == _HEADERS:
            self.trailers |= {str(name): str(value) for name, value in self._decoder.decode(payload)}
            self._over = bool(flags & _END_STREAM)
        elif kind == _RST:
            raise Lost(f"the call was reset with code {int.from_bytes(payload, 'big')}")


async def ask_grpc(
    address: bytes, method: str, message: bytes, *, deadline: float = 0.0
) -> tuple[str, str, bytes]:
    """Make a unary call; return its status' name, empty if all is well, its message, and the answer.

    Raises Lost, OSError.
    """
    async with GrpcCall.to(address, method, deadline=deadline) as call:
        await call.send(message, last=True)
        found: list[bytes] = []
        while (part := await call.receive()) is not None:
            found.append(part)
        if len(found) > 1:
            raise Lost(f"{len(found)} answers to a call that has one")
        return *call.status, b"".join(found)
