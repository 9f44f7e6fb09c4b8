"""Frames of `actors.wire.text_frames` on a stream socket that blocks."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from actors.wire.text_frames import LENGTHS_BYTES, encode, lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors.wire.frames import Buffer

_READ: Final = 256 * 1024


class LineEnded(Exception):
    """The other side has gone."""


class Line:
    """One end of a connection. Nothing here runs beside anything else."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._room = bytearray(_READ)
        self._held = bytearray()

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, head: Sequence[Any], body: Buffer = b"") -> None:
        """Send a frame. Raises LineEnded."""
        self.send_pieces(encode(head, body))

    def send_pieces(self, pieces: Sequence[Buffer]) -> None:
        """Send what a frame is made of. Raises LineEnded."""
        try:
            if sum(map(len, pieces)) <= _READ:
                self._socket.sendall(b"".join(pieces))
            else:
                for piece in pieces:
                    self._socket.sendall(piece)
        except OSError as error:
            raise LineEnded from error

    def read(self) -> None:
        """Take in what has come. Waits if nothing has. Raises LineEnded."""
        try:
            count = self._socket.recv_into(self._room)
        except OSError as error:
            raise LineEnded from error
        if not count:
            raise LineEnded
        with memoryview(self._room) as room:
            self._held += room[:count]

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield head and body of each frame that has come whole. Raises FrameError."""
        held, at = self._held, 0
        while len(held) - at >= LENGTHS_BYTES:
            head, body = lengths(bytes(held[at : at + LENGTHS_BYTES]))
            start = at + LENGTHS_BYTES
            if len(held) < start + head + body:
                break
            at = start + head + body
            with memoryview(held) as view:
                frame = bytes(view[start : start + head]), bytes(view[start + head : at])
            yield frame
        del held[:at]

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for a frame, where the other side sends no more than one. Raises LineEnded and FrameError."""
        while True:
            for frame in list(self.frames()):
                return frame
            self.read()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
