"""The slots that a worker shares with the server: each has a segment for inputs and one for outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.wire.arena import INPUT, OUTPUT, Segment, align

if TYPE_CHECKING:
    from collections.abc import Callable

    AskForRoom = Callable[[Any, int, int], None]


class Slot:
    """One slot's two segments, as the worker has them mapped, and how far the output one is used."""

    __slots__ = ("generation", "index", "segments", "used")

    def __init__(self, index: int) -> None:
        self.index = index
        self.segments: list[Any] = [None, None]  # Segment once the server has sent one
        self.used = 0
        self.generation = 0

    def replace(self, side: int, segment: Segment) -> None:
        """The server gave this slot a larger segment."""
        if side == INPUT:
            self.segments[INPUT] = segment
            return
        old = self.segments[OUTPUT]
        if old is not None and self.used:
            segment.view[: self.used] = old.view[: self.used]
        self.segments[OUTPUT] = segment
        self.generation += 1

    def place(self, nbytes: int, batch_id: int, ask_for_room: AskForRoom) -> int:
        """Return the offset of `nbytes` free bytes in the output segment.

        If need be, it waits for the server to grow the segment.
        """
        offset = align(self.used)
        end = offset + nbytes
        if end > self.segments[OUTPUT].size:
            ask_for_room(self, batch_id, end)
        self.used = end
        return offset
