"""The memory that the server shares with one worker: slots for batches, and the control page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from actors.seams.steps import Steps
from actors.serving.instances.pipe import Pipe
from actors.wire import frames
from actors.wire.arena import MAX_CANCELLABLE, OUTPUT, ControlPage, Segment
from actors.wire.frames import FrameError
from actors.wire.slots import Slot

SPARE_SLOTS: Final = 2
"""Slots beyond those that may execute or wait behind others.

So responses that are being sent don't hold up the next batch.
"""


class WorkerMemory:
    """The slots and the control page of one worker."""

    def __init__(
        self, pipe: Pipe, slots: int, *, lanes: int, max_batch_size: int, on_free: Callable[[], None]
    ) -> None:
        """`on_free` is called whenever a slot is free again.

        Raises OSError where the system has no memory or descriptor for the control page.
        """
        self._pipe = pipe
        self._on_free = on_free
        self.slot_count = slots
        self.cancellable = min(MAX_CANCELLABLE, max(1, max_batch_size))
        page = Segment.create(ControlPage.size_for(slots, self.cancellable), "tritium-control")
        self.control = ControlPage(page, lanes, self.cancellable)
        self._slots: list[Slot] = []
        self.free: list[Slot] = []  # slots that nothing leases

    def make_slots(self) -> None:
        """Make the slots and tell the worker of them."""
        self._slots = [
            Slot(index, self._send_segment, self._freed, self.control) for index in range(self.slot_count)
        ]
        self.free = self._slots[::-1]

    def _send_segment(self, slot: int, side: int, segment: Segment) -> None:
        self._pipe.send_nowait(frames.encode_segment(slot, side, segment.size), (segment.fd,))

    def _freed(self, slot: Slot) -> None:
        if not self._pipe.closed:
            self.free.append(slot)
            self._on_free()

    @property
    def in_use(self) -> int:
        """How many slots are leased: by batches, and by responses that view data in them."""
        return len(self._slots) - len(self.free)

    def spilled(self, packet: bytes) -> bytes:
        """Return the frame that the worker left in a slot because it is too long for a packet.

        Raises FrameError.
        """
        slot, side, offset, nbytes = frames.decode_spilled(packet)
        if slot >= len(self._slots) or side != OUTPUT or not 0 < nbytes <= frames.MAX_SPILLED:
            raise FrameError(f"a worker spilled {nbytes} bytes into slot {slot}, side {side}")
        view = self._slots[slot].segments[OUTPUT].view
        if offset + nbytes > len(view):
            raise FrameError(f"a worker spilled to byte {offset + nbytes} of a segment of {len(view)} bytes")
        return bytes(view[offset : offset + nbytes])

    def trimming(self) -> Steps[None]:
        """Return memory of slots that nothing used for a while. Yields between pieces of work."""
        for slot in tuple(self.free):
            for _ in slot.trimming():
                yield None

    def emptying(self) -> Steps[None]:
        """The worker is dead, and all that it held is settled: return the memory of its slots.

        Yields like `trimming`; `close` would do it in one piece.
        """
        for slot in self._slots:
            for _ in slot.emptying():
                yield None

    def close(self) -> None:
        """Let go of the segments that no response views."""
        self._slots.clear()
        self.free.clear()
        self.control.segment.close_fd()  # the worker may never have been sent it
        self.control.close()
