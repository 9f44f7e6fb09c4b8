"""The floor under the gRPC figures: an HTTP/2 responder on trio that finds the ends of requests, no more.

Each request is answered with as many bytes of a made-up message as the path says, `/unary/<n>` or
`/stream/<n>`: one answer at the end of a call, or one for each message of a stream, and trailers at its end.
Only the path of a connection's first call is read. After that it looks at no header block, no message, and no
window but its own, which is given back at once.

    python -m benchmarks.grpc.bare        # prints the port it got, serves until SIGTERM or SIGINT
"""

from __future__ import annotations

import signal
import struct
from typing import Final

import trio
from hpack import Decoder, Encoder

from benchmarks.grpc.payloads import PREFIX_SIZE, framed
from benchmarks.grpc.wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    MAX_STREAMS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

RECEIVE_SIZE: Final = 256 * 1024
_FRAME: Final = struct.Struct(">IBI")
_WINDOW: Final = 2**31 - 1
# Bytes of an answer in one frame: what a peer takes unless it says otherwise.
_PIECE: Final = 16_384


def path_of(block: bytes) -> bytes:
    """Return the path of a connection's first header block."""
    return dict(Decoder().decode(block, raw=True)).get(b":path", b"")


class Answers:
    """The answers of one connection, byte by byte but for the stream's number. Pure."""

    def __init__(self, path: bytes) -> None:
        way, _, size = path.lstrip(b"/").partition(b"/")
        self.streaming = way == b"stream"
        number = int(size) if size.isdigit() else 0
        message = framed(b"\x12" + bytes(max(0, number - 1)) if number else b"")
        self._pieces = [message[start : start + _PIECE] for start in range(0, len(message), _PIECE)]
        encoder = Encoder()
        encoder.header_table_size = 0  # the blocks are the same on every stream
        self._head = encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
        self._trailers = Encoder().encode([("grpc-status", "0")], huffman=False)

    def head(self, stream: int) -> bytes:
        """Return the block that opens an answer."""
        return frame(HEADERS, END_HEADERS, stream, self._head)

    def message(self, stream: int) -> bytes:
        """Return one message."""
        return b"".join(frame(DATA, 0, stream, piece) for piece in self._pieces)

    def trailers(self, stream: int) -> bytes:
        """Return the block that ends an answer."""
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, self._trailers)


class Responder:
    """One connection without its socket: bytes in, bytes out. Pure."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = len(PREFACE)
        self._answers: Answers | None = None
        self._part = b""

    def begin(self) -> bytes:
        """Return what a server sends first: wide windows and many streams."""
        settings = struct.pack(">HIHI", MAX_STREAMS, 1024, INITIAL_WINDOW, _WINDOW)
        update = (_WINDOW - 65_535).to_bytes(4, "big")
        return frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, update)

    def receive(self, data: bytes) -> bytes:
        """Return the answers to what came."""
        data = self._rest + data if self._rest else data
        position, end, received = 0, len(data), 0
        if self._skip:
            if end < self._skip:
                self._rest = data
                return b""
            position, self._skip = self._skip, 0
        output: list[bytes] = []
        while end - position >= 9:
            kind, flags, stream = _FRAME.unpack_from(data, position)
            stop = position + 9 + (kind >> 8)
            if stop > end:
                break
            if kind & 0xFF == DATA:
                received += kind >> 8
            output += self._frame(kind & 0xFF, flags, stream, data, position + 9, stop)
            position = stop
        self._rest = data[position:]
        if received:
            output.append(frame(WINDOW_UPDATE, 0, 0, received.to_bytes(4, "big")))
        return b"".join(output)

    def _frame(self, what: int, flags: int, stream: int, data: bytes, start: int, stop: int) -> list[bytes]:
        if what == DATA and self._answers is not None:
            return self._data(self._answers, flags, stream, data, start, stop)
        if what == HEADERS:
            if self._answers is None:
                self._answers = Answers(path_of(data[start:stop]))
            if self._answers.streaming:
                return [self._answers.head(stream)]
        elif what == SETTINGS and not flags & ACK:
            return [frame(SETTINGS, ACK, 0)]
        elif what == PING and not flags & ACK:
            return [frame(PING, ACK, 0, data[start:stop])]
        return []

    def _data(
        self, answers: Answers, flags: int, stream: int, data: bytes, start: int, stop: int
    ) -> list[bytes]:
        if not answers.streaming:
            if not flags & END_STREAM:
                return []
            return [answers.head(stream), answers.message(stream), answers.trailers(stream)]
        part = self._part + data[start:stop] if self._part else data[start:stop]
        position, output = 0, []
        while len(part) - position >= PREFIX_SIZE:
            following = position + PREFIX_SIZE + int.from_bytes(part[position + 1 : position + 5], "big")
            if following > len(part):
                break
            output.append(answers.message(stream))
            position = following
        self._part = part[position:]
        return [*output, answers.trailers(stream)] if flags & END_STREAM else output


async def serve(stream: trio.SocketStream) -> None:
    """Answer one connection until the client closes it."""
    responder = Responder()
    async with stream:
        try:
            await stream.send_all(responder.begin())
            while data := await stream.receive_some(RECEIVE_SIZE):
                if answer := responder.receive(data):
                    await stream.send_all(answer)
        except trio.BrokenResourceError:
            return  # the load client went away


async def main() -> None:
    """Serve on a free port of 127.0.0.1 until asked to stop."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
    print(listeners[0].socket.getsockname()[1], flush=True)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            async for _ in signals:
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
