"""What a server would cost that does nothing: it reads requests and refuses each when it has come.

python -m benchmarks.hostile.sink        # prints its port, which takes both HTTP/1.1 and HTTP/2
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Final

from benchmarks.grpc.wire import PREFACE, frame

_HEADERS, _DATA, _SETTINGS, _PING, _WINDOW_UPDATE = 1, 0, 4, 6, 8
_END_STREAM: Final = 1
_ACK: Final = 1
_WIDEST: Final = 2**31 - 1
_REFUSED: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"
# :status 200, content-type: application/grpc, grpc-status: 3; literals without indexing (RFC 7541 section
# 6.2.2).
_TRAILERS: Final = b"\x88\x0f\x10\x10application/grpc\0\x0bgrpc-status\x013"


class _Reader:
    """Reads a socket, and keeps only what it is asked for."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def _more(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            held = self._end - self._start
            self._buffer[:held] = self._buffer[self._start : self._end]
            self._start, self._end = 0, held
        count = self._sock.recv_into(self._view[self._end :])
        if not count:
            raise EOFError
        self._end += count

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises EOFError."""
        while self._end - self._start < count:
            self._more()
        self._start += count
        return bytes(self._view[self._start - count : self._start])

    def until(self, mark: bytes) -> bytes:
        """Return everything up to and with `mark`. Raises EOFError."""
        while (at := self._buffer.find(mark, self._start, self._end)) < 0:
            self._more()
        return self.take(at + len(mark) - self._start)

    def skip(self, count: int) -> None:
        """Pass over the next `count` bytes. Raises EOFError."""
        while count > self._end - self._start:
            count -= self._end - self._start
            self._start = self._end
            self._more()
        self._start += count


def _serve(sock: socket.socket) -> None:
    reader = _Reader(sock)
    try:
        begin = reader.take(3)
        if PREFACE.startswith(begin):
            reader.skip(len(PREFACE) - 3)
            _http2(sock, reader)
        else:
            _http1(sock, reader, begin)
    except (EOFError, OSError):
        sock.close()


def _http1(sock: socket.socket, reader: _Reader, begin: bytes) -> None:
    while True:
        head = (begin + reader.until(b"\r\n\r\n")).lower()
        length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        reader.skip(int(length or 0))
        sock.sendall(_REFUSED)
        begin = b""


def _http2(sock: socket.socket, reader: _Reader) -> None:
    wide = frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, _WIDEST))
    sock.sendall(wide + frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WIDEST - 65_535)))
    taken = 0
    while True:
        size_and_kind, flags, stream = struct.unpack(">IBI", reader.take(9))
        size, kind = size_and_kind >> 8, size_and_kind & 0xFF
        if kind == _PING and not flags & _ACK:
            sock.sendall(frame(_PING, _ACK, 0, reader.take(size)))
            continue
        reader.skip(size)
        if kind == _SETTINGS and not flags & _ACK:
            sock.sendall(frame(_SETTINGS, _ACK, 0))
        if kind == _DATA:
            taken += size
            if taken > 1 << 28:
                sock.sendall(frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", taken)))
                taken = 0
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            sock.sendall(frame(_HEADERS, 4 | _END_STREAM, stream, _TRAILERS))


def main() -> None:
    """Serve on a free port of 127.0.0.1 until ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    main()
