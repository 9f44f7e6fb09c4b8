"""Letters from a worker, put together from the frames of one connection. Passive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.calls.account import Account
from actors.calls.call_pipe import CallPipe
from actors.wire import frames
from actors.wire.call_frames import LARGEST_LETTER, Letter
from actors.wire.call_segments import map_segment
from actors.wire.frames import FrameError

if TYPE_CHECKING:
    from actors.values.tensors import Buffer


class LetterReader:
    """Reads the letters of one connection. Every method raises FrameError for what breaks the protocol."""

    def __init__(self, pipe: CallPipe, account: Account) -> None:
        self.highest = 0  # the highest number that the worker has used
        self._pipe = pipe
        self._account = account
        self._segment: Buffer | None = None  # the bytes of the next letter
        self._letter: Letter | None = None  # the letter whose bytes are still coming
        self._assembled = bytearray()

    def begin(self, packet: bytes) -> Letter | None:
        """Take a letter's first frame; return the letter if that is all of it."""
        if self._letter is not None:
            raise FrameError(f"a frame of kind {packet[0]} within another letter")
        if not self._account.reads:
            raise FrameError("a worker calls again and again and never reads the answers")
        letter = Letter.decode(packet)
        if (letter.kind != frames.TELL) is not (letter.number > self.highest):
            raise FrameError(
                f"a letter of kind {letter.kind} has number {letter.number} after {self.highest}"
            )
        self.highest = max(self.highest, letter.number)
        if self._segment is not None:
            if letter.data or len(self._segment) != letter.nbytes:
                raise FrameError(f"a letter of {letter.nbytes} bytes after a segment of {len(self._segment)}")
            letter.data, self._segment = self._segment, None
        if letter.complete:
            return letter
        self._letter, self._assembled = letter, bytearray(letter.data)
        return None

    def go_on(self, packet: bytes) -> Letter | None:
        """Take a letter's next frame; return the letter if that was the last."""
        number, _, data = frames.decode_more(packet)
        letter = self._letter
        if letter is None or number != letter.number or len(self._assembled) + len(data) > letter.nbytes:
            raise FrameError(f"{len(data)} bytes too many for letter {number}")
        self._assembled += data
        if len(self._assembled) < letter.nbytes:
            return None
        letter.data = self._assembled
        self.close()
        return letter

    def take_segment(self, packet: bytes) -> None:
        """Take the segment with the bytes of the next letter."""
        _, _, size = frames.decode_segment(packet)
        if self._letter is not None or self._segment is not None or size > LARGEST_LETTER:
            raise FrameError(f"a segment of {size} bytes that nothing asked for")
        view = map_segment(self._pipe.take_descriptor(), size, writable=False)
        if len(self._account.mapped) < self._account.limits.segments:
            self._account.mapped.add(view.obj)
            self._segment = view
        else:
            self._segment = bytes(view)

    def close(self) -> None:
        """Let go of what has come."""
        self._letter, self._assembled, self._segment = None, bytearray(), None
