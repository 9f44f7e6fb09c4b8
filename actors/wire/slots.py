"""A live worker's slots on the server's side: a pair of segments each, held by counted leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from actors.wire.arena import INPUT, OUTPUT, ControlPage, Segment, segment_size

SendSegment = Callable[[int, int, Segment], None]

IDLE_KEEP: Final = 1024 * 1024
"""An idle slot keeps segments of up to so many bytes resident; larger ones are trimmed."""


class Slot:
    """One slot: free, or leased by an execution and by every response that still views its output."""

    __slots__ = ("_control", "_leases", "_on_free", "_send", "_used", "index", "segments")

    def __init__(
        self,
        index: int,
        send: SendSegment,
        on_free: Callable[[Slot], None],
        control: ControlPage | None = None,
    ) -> None:
        self.index = index
        self._control = control
        self._send = send
        self._on_free = on_free
        self._leases = 0
        self._used = False  # since the last trim
        self.segments = [Segment.create(segment_size(0)), Segment.create(segment_size(0))]
        for side in (INPUT, OUTPUT):
            self._hand_over(side, self.segments[side])

    def _hand_over(self, side: int, segment: Segment) -> None:
        try:
            self._send(self.index, side, segment)
        finally:
            segment.close_fd()

    def lease(self) -> None:
        """Take one more lease."""
        self._leases += 1
        self._used = True

    @property
    def begun_ns(self) -> int:
        """When the worker began with the last batch in it: see `ControlPage.begun`."""
        return 0 if self._control is None else self._control.begun(self.index)

    @property
    def leased(self) -> bool:
        """Whether it is in use."""
        return self._leases > 0

    def release(self) -> None:
        """End one lease; the last one frees the slot."""
        self._leases -= 1
        if not self._leases:
            self._on_free(self)

    def make_room(self, side: int, nbytes: int) -> None:
        """Make a segment hold `nbytes`, by a new generation if the present one is too small.

        Only for the holder of the single lease: the replaced segment must have no other views.
        """
        if self.segments[side].size < nbytes:
            segment = Segment.create(segment_size(nbytes))
            self._hand_over(side, segment)
            self.segments[side] = segment

    def trimming(self) -> Iterator[None]:
        """Give an idle slot's large segments back to the kernel, if it was not used since the last call.

        Yields between pieces of work, and ends where the slot is leased meanwhile.
        """
        if self._leases or self._used:
            self._used = False
            return
        for segment in self.segments:
            if segment.size > IDLE_KEEP:
                for _ in segment.trimming():
                    yield
                    if self.leased:
                        return

    def emptying(self) -> Iterator[None]:
        """Give back the memory of a slot whose worker is dead, except for outputs that may be viewed.

        Yields like `trimming`.
        """
        for side in (INPUT, OUTPUT):
            if self.segments[side].size > IDLE_KEEP and (side == INPUT or not self._leases):
                yield from self.segments[side].trimming()
