"""Shared memory between the server and one worker: segments that carry tensors, and a control page.

Every slot of an instance owns two segments: `INPUT`, which the server fills and the worker reads, and `OUTPUT`, the other
way round. A segment is a memfd that only the server makes, of fixed size and sealed against shrinking and growing: a worker
that truncates it gets EPERM, where an unsealed one would let it kill the server by SIGBUS. Growing therefore is a new
generation: another memfd takes the slot's place, which is safe because a slot is replaced only while nobody else leases it.
The kernel frees a segment with its last mapping; nothing has a name, nothing lies in a file system.

The control page has one 64-bit word per lane, in which the worker keeps the id of the batch it is executing (0: none), then one
byte per slot and request, in which the server says "cancelled".

What a worker writes into a segment may change at any time. Offsets and lengths come in frames, are checked once against the
segment's size, and bytes are used as opaque tensor data or copied before they are interpreted.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from typing import Final

INPUT: Final = 0
OUTPUT: Final = 1

PAGE: Final = mmap.PAGESIZE
MAX_LANES: Final = 64
MAX_CANCELLABLE: Final = 4096  # requests per slot whose cancel flag has room; later ones run to their end

# Python's mappings keep a descriptor of their own where they can't be told not to.
_UNTRACKED: Final = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_F_ADD_SEALS: Final = 1033
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_ALIGNMENT: Final = 64  # tensors start on cache lines


def align(offset: int) -> int:
    """Return the next offset at which a tensor may start."""
    return (offset + _ALIGNMENT - 1) & -_ALIGNMENT


def segment_size(nbytes: int) -> int:
    """Return the size of a segment that shall hold `nbytes`: a power of two from 64 KiB, then whole MiB."""
    size = 64 * 1024
    while size < nbytes and size < 1024 * 1024:
        size *= 2
    return size if size >= nbytes else -(-nbytes // (1024 * 1024)) * 1024 * 1024


class Segment:
    """One mapped memfd. `view` is writable on both sides; the descriptor is the maker's to close."""

    __slots__ = ("_map", "fd", "size", "view")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size, **_UNTRACKED)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, size: int, name: str = "tritium") -> Segment:
        """Make a sealed segment of `size` bytes (a multiple of the page size). Raises OSError out of memory."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    def close_fd(self) -> None:
        """Close the descriptor; the mapping lives until the last view of it is gone."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Unmap it. Only where nothing made a view of `view`."""
        self.view.release()
        self._map.close()

    def trim(self) -> None:
        """Give the pages back to the kernel; they read as zeros afterwards. For idle segments only."""
        self._map.madvise(mmap.MADV_REMOVE)


class ControlPage:
    """What a worker is executing, and what the server no longer wants. See the module's theory of operation."""

    __slots__ = ("_cancelled", "_executing", "_per_slot", "lanes", "segment")

    def __init__(self, segment: Segment, lanes: int, per_slot: int) -> None:
        self.segment = segment
        self.lanes = lanes
        self._per_slot = per_slot
        self._executing = segment.view[: MAX_LANES * 8].cast("Q")
        self._cancelled = segment.view[MAX_LANES * 8 :]

    @staticmethod
    def size_for(slots: int, per_slot: int) -> int:
        """Return the bytes that a page for so many slots takes, whole pages."""
        return -(-(MAX_LANES * 8 + slots * per_slot) // PAGE) * PAGE

    def begin(self, lane: int, batch_id: int) -> None:
        """Worker: the model is about to see this batch."""
        self._executing[lane] = batch_id

    def end(self, lane: int) -> None:
        """Worker: the batch's result has been sent."""
        self._executing[lane] = 0

    def executing(self) -> frozenset[int]:
        """Server: ids of the batches that models are working on."""
        return frozenset(batch_id for batch_id in self._executing[: self.lanes].tolist() if batch_id)

    def cancel(self, slot: int, index: int) -> None:
        """Server: the client of request `index` in `slot` has gone."""
        if index < self._per_slot:
            self._cancelled[slot * self._per_slot + index] = 1

    def cancelled(self, slot: int, index: int) -> bool:
        """Worker: whether the client of that request has gone."""
        return index < self._per_slot and self._cancelled[slot * self._per_slot + index] != 0

    def close(self) -> None:
        """Let go of the page."""
        self._executing.release()
        self._cancelled.release()
        self.segment.close()

    def clear(self, slot: int, count: int) -> None:
        """Server: the slot holds a new batch of `count` requests, all wanted."""
        base = slot * self._per_slot
        count = min(count, self._per_slot)
        self._cancelled[base : base + count] = bytes(count)
