"""Shared memory between the server and one worker: segments that carry tensors, and a control page.

Every slot of an instance owns two segments: `INPUT`, which the server fills and the worker reads, and
`OUTPUT`, the other way round. A segment is a memfd that only the server makes, of fixed size and sealed
against shrinking and growing. A worker that truncates it gets EPERM; if it were unsealed, the worker could
kill the server by SIGBUS. So growing means a new generation: another memfd takes the slot's place. That is
safe because a slot is replaced only while it has no other lease. The kernel frees a segment with its last
mapping. No segment has a name or lies in a file system.

The control page has four parts. It has one 64-bit word per lane, where the worker keeps the id of the batch
that it executes (0: none). It has one *claim* per slot, see below. It has one 64-bit word per slot, where the
worker says when it began with the batch there. It has one byte per slot and request, where the server says
"cancelled".

**Claims.** A batch that the server has sent may be taken back until the worker begins with it. Both sides may
want the batch in the same instant, and the worker may hang, so neither can ask the other. The claim decides.
It is a semaphore of the C library (`sem_t`, shared between processes) that lies in the page. The side that is
first to take it down from 1 to 0 has the batch. `sem_trywait` is one atomic compare-and-exchange on one word:
exactly one side succeeds on every processor, and neither waits.

1. Server, `offer`: it sets the claim to 1, then sends the `Execute` frame. The socket orders the two.
2. Worker, `begin`: before anything of the model sees the batch it takes the claim. If it succeeds, it writes
   the batch's id into its lane's word and executes; the answer is a `Result`. If it fails, the server has the
   batch: the worker executes nothing and answers with a `Skipped` frame.
3. Server, `take_back`: it takes the claim. If it succeeds, the model will never see this batch, and its
   requests may run elsewhere or be answered, at once. If it fails, the worker has begun.
4. The slot of a batch that was taken back stays leased until `Skipped` has come, because the old `Execute`
   frame still lies in the socket. So `offer` never happens while either side may still take the claim of the
   batch before.

A worker that dies between its claim and its word (step 2) has shown nothing to the model, and the word says
so. A hostile worker that writes into its claims only runs what it was told not to run. Its `Result` is then
for a batch that was not asked for, which is a `FrameError`.

The contents of a segment may change at any time, since the worker writes there. Offsets and lengths come in
frames, and are checked once against the segment's size. Bytes are used as opaque tensor data, or copied
before they are interpreted.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUT: Final = 0
OUTPUT: Final = 1

PAGE: Final = mmap.PAGESIZE
MAX_LANES: Final = 64
MAX_SLOTS: Final = 3 * MAX_LANES
# Requests per slot that have a cancel flag; later ones run to their end.
MAX_CANCELLABLE: Final = 4096

# Python's mappings keep a descriptor of their own unless they are told not to.
_UNTRACKED: Final = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_F_ADD_SEALS: Final = 1033
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_TRIMMED_AT_ONCE: Final = 1024 * 1024
_ALIGNMENT: Final = 64  # tensors start on cache lines

# Bytes of a `sem_t` on 64-bit Linux, in glibc and in musl. Its first word is the count.
_CLAIM: Final = 32
_CLAIMS_AT: Final = MAX_LANES * 8
_TIMES_AT: Final = _CLAIMS_AT + MAX_SLOTS * _CLAIM
_FLAGS_AT: Final = _TIMES_AT + MAX_SLOTS * 8
# The interpreter's lock is held during the call, which takes a fraction of a microsecond and never waits.
_TRYWAIT: Final = ctypes.PyDLL(None).sem_trywait
_TRYWAIT.argtypes = [ctypes.c_void_p]
_TRYWAIT.restype = ctypes.c_int


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
    """One mapped memfd. `view` is writable on both sides; its maker must close the descriptor."""

    __slots__ = ("_address", "_map", "fd", "size", "view")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size, **_UNTRACKED)
        self._address = 0
        self.view = memoryview(self._map)

    @property
    def address(self) -> int:
        """Where it is mapped in this process."""
        if not self._address:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        return self._address

    @classmethod
    def create(cls, size: int, name: str = "tritium") -> Segment:
        """Make a sealed segment of `size` bytes (a multiple of the page size).

        Raises OSError out of memory.
        """
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
        """Unmap it. Allowed only if there is no view of `view`."""
        self.view.release()
        self._map.close()

    def trimming(self) -> Iterator[None]:
        """Give the pages back to the kernel; they read as zeros afterwards. For idle segments only.

        Yields before every piece: it takes some 0.3 ms per MiB.
        """
        for at in range(0, self.size, _TRIMMED_AT_ONCE):
            yield
            self._map.madvise(mmap.MADV_REMOVE, at, min(_TRIMMED_AT_ONCE, self.size - at))


class ControlPage:
    """Which batches a worker executes, which side has which batch, and which requests are cancelled.

    See the module.
    """

    __slots__ = (
        "_addresses",
        "_anchor",
        "_begun",
        "_cancelled",
        "_claims",
        "_executing",
        "_per_slot",
        "lanes",
        "segment",
    )

    def __init__(self, segment: Segment, lanes: int, per_slot: int) -> None:
        self.segment = segment
        self.lanes = lanes
        self._per_slot = per_slot
        self._executing = segment.view[:_CLAIMS_AT].cast("Q")
        self._claims = segment.view[_CLAIMS_AT:_TIMES_AT].cast("Q")
        self._begun = segment.view[_TIMES_AT:_FLAGS_AT].cast("Q")
        self._cancelled = segment.view[_FLAGS_AT:]
        # It keeps the page mapped as long as there are addresses.
        self._anchor: ctypes.Array[ctypes.c_char] | None = (ctypes.c_char * segment.size).from_buffer(
            segment.view
        )
        base = ctypes.addressof(self._anchor) + _CLAIMS_AT
        self._addresses = [base + slot * _CLAIM for slot in range(MAX_SLOTS)]

    @staticmethod
    def size_for(slots: int, per_slot: int) -> int:
        """Return the bytes that a page for so many slots takes, whole pages.

        Raises ValueError for too many slots.
        """
        if slots > MAX_SLOTS:
            raise ValueError(f"a worker has up to {MAX_SLOTS} slots, not {slots}")
        return -(-(_FLAGS_AT + slots * per_slot) // PAGE) * PAGE

    def begin(self, lane: int, batch_id: int, slot: int, now: int = 0) -> bool:
        """Worker: the model is about to see this batch, `now` on the machine's steady clock, in nanoseconds.

        False if it must not: the server has taken the batch back.
        """
        if _TRYWAIT(self._addresses[slot]):
            return False
        self._begun[slot] = now
        self._executing[lane] = batch_id
        return True

    def take_back(self, slot: int) -> bool:
        """Server: the batch in `slot` is not to run. False if the worker has begun with it."""
        return not _TRYWAIT(self._addresses[slot])

    def end(self, lane: int) -> None:
        """Worker: the batch's result has been sent."""
        self._executing[lane] = 0

    def executing(self) -> frozenset[int]:
        """Server: ids of the batches that models are working on."""
        return frozenset(batch_id for batch_id in self._executing[: self.lanes].tolist() if batch_id)

    def begun(self, slot: int) -> int:
        """Server: when the worker began with the last batch in `slot`, as it says; 0 where it did not say."""
        return self._begun[slot]

    def cancel(self, slot: int, index: int) -> None:
        """Server: the client of request `index` in `slot` has gone."""
        if index < self._per_slot:
            self._cancelled[slot * self._per_slot + index] = 1

    def cancelled(self, slot: int, index: int) -> bool:
        """Worker: whether the client of that request has gone."""
        return index < self._per_slot and self._cancelled[slot * self._per_slot + index] != 0

    def flags(self, slot: int) -> tuple[int, int]:
        """Worker: where the flags of the requests in `slot` begin, a byte each; and how many there are."""
        return self.segment.address + _FLAGS_AT + slot * self._per_slot, self._per_slot

    def close(self) -> None:
        """Let go of the page."""
        self._addresses.clear()
        self._anchor = None
        self._executing.release()
        self._claims.release()
        self._begun.release()
        self._cancelled.release()
        self.segment.close()

    def offer(self, slot: int, count: int) -> None:
        """Server: the slot holds a new batch of `count` requests, all wanted, for the worker to begin."""
        self._claims[slot * _CLAIM // 8] = 1
        base = slot * self._per_slot
        count = min(count, self._per_slot)
        self._cancelled[base : base + count] = bytes(count)
