"""A ring of frames in memory that two processes share: one writes, one reads, without system calls.

Counters of bytes written and read lie in cache lines of their own. A reader that finds nothing sets
`ASLEEP` and looks once more. A writer that finds it set takes it back and rings an eventfd. So a busy
reader costs a writer no system call, and a sleeping one costs a single call for all frames until it looks.

Two processes may miss each other only if a store is still on its way when the next load is made: hence the
fence. Taking and freeing a lock is one on x86. Elsewhere this would need an atomic of its own.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from typing import Final

import trio

from actors.wire.arena import Segment

_READ: Final = 0  # words of eight bytes, each at the start of a cache line
_WRITTEN: Final = 8
_ASLEEP: Final = 16
_HEADER: Final = 4096
_LENGTH: Final = struct.Struct("<Q")
_WRAPPED: Final = 2**64 - 1  # in place of a length: the next frame is at the start
_fence: Final = threading.Lock()


class Ring:
    """One direction between two processes. Each process uses one end only."""

    def __init__(self, segment: Segment, doorbell: int) -> None:
        """`doorbell` is an eventfd that does not block. The segment is a power of two and a header."""
        self._words = segment.view[:_HEADER].cast("Q")
        self._data = segment.view[_HEADER:]
        self._size = len(self._data)
        assert self._size & (self._size - 1) == 0
        self.doorbell = doorbell
        self._at = 0  # of this end
        self._other = 0  # of the other end, when it was last looked at
        self._ringer: trio.lowlevel.Task | None = None
        self._owed = False

    # The writer's end

    def put(self, frame: bytes) -> bool:
        """Write a frame; False, and nothing has happened, where there is no room."""
        need = (len(frame) + 15) & ~7
        at = self._at & (self._size - 1)
        skipped = self._size - at if need > self._size - at else 0
        if self._at + skipped + need - self._other > self._size:
            self._other = self._words[_READ]
            if self._at + skipped + need - self._other > self._size:
                return False
        data = self._data
        if skipped:
            _LENGTH.pack_into(data, at, _WRAPPED)
            at = 0
        _LENGTH.pack_into(data, at, len(frame))
        data[at + 8 : at + 8 + len(frame)] = frame
        self._at += skipped + need
        self._words[_WRITTEN] = self._at
        return True

    def ring(self) -> None:
        """Wake the reader if it sleeps."""
        _fence.acquire()
        _fence.release()
        if self._words[_ASLEEP]:
            self._words[_ASLEEP] = 0
            os.eventfd_write(self.doorbell, 1)

    def ring_soon(self) -> None:
        """Have `ring_when_told` wake the reader, in the next turn of the loop, for all frames of this one.

        Rung for each frame, a quick reader would take one frame, sleep, and have to be woken for the next.
        """
        self._owed = True
        if self._ringer is not None:
            trio.lowlevel.reschedule(self._ringer)
            self._ringer = None

    async def ring_when_told(self) -> None:
        """Ring once for each turn in which `ring_soon` was called, for ever."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._ringer = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            if self._owed:
                self._owed = False
                self.ring()
            self._ringer = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    # The reader's end

    def take(self) -> memoryview | None:
        """Return the next frame, a view that is good until `done`; None where there is none."""
        if self._at == self._other:
            self._other = self._words[_WRITTEN]
            if self._at == self._other:
                return None
        at = self._at & (self._size - 1)
        (length,) = _LENGTH.unpack_from(self._data, at)
        if length == _WRAPPED:
            self._at += self._size - at
            return self.take()
        self._at += (length + 15) & ~7
        return self._data[at + 8 : at + 8 + length]

    def done(self) -> None:
        """Give the room of all frames that were taken back to the writer."""
        self._words[_READ] = self._at

    def may_sleep(self) -> bool:
        """Announce that this reader is going to sleep; False where a frame has come."""
        self._words[_ASLEEP] = 1
        _fence.acquire()
        _fence.release()
        if self._words[_WRITTEN] != self._at:
            self._words[_ASLEEP] = 0
            return False
        return True

    def awake(self) -> None:
        """Note that this reader is at work again, and take back what the doorbell rang."""
        self._words[_ASLEEP] = 0
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.doorbell)

    async def wait(self) -> None:
        """Sleep until there may be a frame."""
        if self.may_sleep():
            await trio.lowlevel.wait_readable(self.doorbell)
            self.awake()
        else:
            await trio.lowlevel.checkpoint()
