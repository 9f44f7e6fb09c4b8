"""gRPC as HTTP/2 frames: a client that can misbehave.

It is written from RFC 9113, section 6, and the gRPC protocol over HTTP/2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self
from urllib.parse import unquote

import trio
from hpack import Decoder, Encoder

from chaos.wires.http import Broken, Connection

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 0x1
END_HEADERS: Final = 0x4
INITIAL_WINDOW_SIZE: Final = 4
CANCEL: Final = 8

SERVICE: Final = "/inference.GRPCInferenceService/"

_HEAD: Final = 9


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def message(body: bytes) -> bytes:
    """Return a message of gRPC as it lies in DATA frames: not compressed, with its length ahead."""
    return b"\0" + len(body).to_bytes(4, "big") + body


@dataclass(slots=True)
class GrpcAnswer:
    """What has come of one call. `status` is gRPC's number; -1 until its trailers have come."""

    status: int = -1
    details: str = ""
    data: bytearray = field(default_factory=bytearray)

    @property
    def body(self) -> bytes:
        """The message of a unary call, without its length."""
        return bytes(self.data[5:])

    def take_message(self) -> bytes | None:
        """Return the next message without its length, None if it is not whole yet."""
        end = 5 + int.from_bytes(self.data[1:5], "big")
        if len(self.data) < max(5, end):
            return None
        taken = bytes(self.data[5:end])
        del self.data[:end]
        return taken


class Calls(Connection):
    """A connection on which calls of gRPC are written by hand, one frame at a time. `begin` comes first."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._answers: dict[int, GrpcAnswer] = {}

    async def begin(self, *, window: int = 65_535) -> Self:
        """Send what comes first on a connection. Raises Broken.

        The server may send `window` bytes of each answer before it is granted more.
        """
        setting = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big")
        await self.send(PREFACE + frame(SETTINGS, payload=setting))
        return self

    def headers(self, stream: int, method: str, metadata: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """Return the frame that opens a call. They must be sent in the order in which they were made."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata.items(),
        ]
        return frame(HEADERS, END_HEADERS, stream, self._encoder.encode(fields))

    def grant(self, stream: int, more: int) -> bytes:
        """Return the frame that lets the server send so many more bytes.

        For stream 0 that is so many on the whole connection.
        """
        return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))

    def cancel(self, stream: int) -> bytes:
        """Return the frame by which a client takes a call back."""
        return frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))

    async def call(self, stream: int, method: str, body: bytes) -> None:
        """Make a whole unary call. Raises Broken."""
        await self.send(
            self.headers(stream, method) + frame(DATA, END_STREAM, stream, message(body)),
        )

    def so_far(self, stream: int) -> GrpcAnswer:
        """Return what has come of a call; it grows as frames are taken."""
        return self._answers.setdefault(stream, GrpcAnswer())

    async def finished(self, stream: int) -> GrpcAnswer:
        """Return what came of a call, once it has ended. Raises Broken if it does not end in order."""
        answer = self.so_far(stream)
        while answer.status < 0:
            await self.step()
        return answer

    async def receive(self, stream: int) -> bytes | None:
        """Return the next message of a call, or None if it has ended. Raises Broken."""
        answer = self.so_far(stream)
        while (body := answer.take_message()) is None:
            if answer.status >= 0:
                if answer.data:
                    raise Broken(f"{len(answer.data)} bytes of half a message before the trailers")
                return None
            await self.step()
        return body

    async def step(self) -> int:
        """Take one frame, and return its kind.

        Raises Broken for the end, a goodbye with an error, and a reset call.
        """
        head = await self.take(_HEAD)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
        payload = await self.take(int.from_bytes(head[:3], "big"))
        if kind == DATA:
            self.so_far(stream).data += payload
        elif kind == HEADERS:
            self._told(stream, payload)
        elif kind == RST_STREAM:
            raise Broken(f"the server has reset call {stream}: {int.from_bytes(payload, 'big')}")
        elif kind == GOAWAY and (code := int.from_bytes(payload[4:8], "big")):
            raise Broken(f"the server has said goodbye: {code} {payload[8:]!r}")
        elif kind in (SETTINGS, PING) and not flags & ACK:
            await self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
        return kind

    def _told(self, stream: int, block: bytes) -> None:
        fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
        if "grpc-status" in fields:
            answer = self.so_far(stream)
            answer.status = int(fields["grpc-status"])
            answer.details = unquote(fields.get("grpc-message", ""))
