"""Buffers on a GPU in which this worker leaves outputs for workers of other models.

A buffer is allocated once, exported once, told to the server once, and used again and again: it is lent from
`take` until the server says that nothing reads it any longer. Nothing ever waits for one. Where none is free
and there is no room for another, the output goes by host memory.

Sizes are whole 2 MiB, which the driver allocates by itself: it exports whole allocations, and what shares one
with a smaller buffer would be exported too (CUDA C++ Programming Guide, "Interprocess Communication").
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

from engine.worker.devices.cuda import CudaError

if TYPE_CHECKING:
    from collections.abc import Callable

POOL_BYTES = 256 * 1024 * 1024
"""Device memory for buffers, unless the model says otherwise (`tritium.gpu_tensor_pool_bytes`)."""

MOST = 128
"""Buffers of one worker."""

GRANULE = 2 * 1024 * 1024
_ROOMY = 4  # a buffer so many times larger than need be is left for a tensor that needs it


class Memory(Protocol):
    """What of a `Driver` is needed. Each call raises CudaError if the driver says no."""

    def allocate(self, device: int, nbytes: int) -> int:
        """Return the address of fresh device memory."""

    def free(self, device: int, address: int) -> None:
        """Give memory back."""

    def export(self, device: int, address: int) -> bytes:
        """Return the handle by which other processes open an allocation."""


class Buffer:
    """One allocation, and the number by which the server knows it."""

    __slots__ = ("address", "device", "handle", "nbytes", "number")

    def __init__(self, number: int, device: int, address: int, nbytes: int, handle: bytes) -> None:
        self.number = number
        self.device = device
        self.address = address
        self.nbytes = nbytes
        self.handle = handle


def rounded(nbytes: int) -> int:
    """Return the size of a buffer for `nbytes`: at most a quarter more, in whole granules."""
    step = max(GRANULE, 1 << max(0, nbytes.bit_length() - 3))
    return -(-nbytes // step) * step


class Exports:
    """The buffers of this worker. Any thread may call it."""

    def __init__(
        self,
        memory: Callable[[], Memory],
        tell: Callable[[Buffer], None],
        warn: Callable[[str], None],
        *,
        most_bytes: int = POOL_BYTES,
        most: int = MOST,
    ) -> None:
        """`memory` gives the driver, or raises CudaError.

        `tell` is called with each new buffer before it is given to anyone, `warn` once for each GPU whose
        memory can't be exported.
        """
        self._memory = memory
        self._tell = tell
        self._warn = warn
        self._most_bytes = most_bytes // GRANULE * GRANULE
        self._most = most
        self._lock = threading.Lock()
        self._lent: dict[int, Buffer] = {}
        self._free: dict[int, Buffer] = {}  # the one that has been free for longest comes first
        self._by_handle: dict[bytes, Buffer] = {}
        self._numbers: list[int] = []  # of buffers that were freed
        self._bytes = 0
        self._barred: set[int] = set()  # GPUs whose memory can't be exported

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers together."""
        return self._bytes

    @property
    def count(self) -> int:
        """How many buffers there are."""
        return len(self._by_handle)

    def find(self, handle: bytes) -> Buffer | None:
        """Return the buffer that this process has exported by `handle`: it can't open that itself."""
        return self._by_handle.get(handle)

    def take(self, device: int, nbytes: int) -> Buffer | None:
        """Lend a buffer of at least `nbytes`, until `give_back`; None if there is none."""
        size = rounded(nbytes) if nbytes <= self._most_bytes else 0
        if not size:
            return None
        size = min(size, self._most_bytes)
        with self._lock:
            buffer = self._fit(device, nbytes, _ROOMY * size)
            fresh = None
            if buffer is None and device not in self._barred and self._make_room(device, size):
                buffer = fresh = self._allocated(device, size)
            if buffer is None:  # a far too large one is better than the way by the host
                buffer = self._fit(device, nbytes, self._most_bytes)
            if buffer is None:
                return None
            self._free.pop(buffer.number, None)
            self._lent[buffer.number] = buffer
        if fresh is not None:
            self._tell(fresh)
        return buffer

    def give_back(self, number: int) -> None:
        """Nothing reads this buffer any longer. A number that is not lent is ignored."""
        with self._lock:
            buffer = self._lent.pop(number, None)
            if buffer is not None:
                self._free[number] = buffer

    def close(self) -> None:
        """Free all of them, lent or not."""
        with self._lock:
            for buffer in [*self._lent.values(), *self._free.values()]:
                self._forget(buffer)
            self._lent.clear()
            self._free.clear()

    def _fit(self, device: int, nbytes: int, largest: int) -> Buffer | None:
        """Return the smallest of the free buffers that `nbytes` fit in."""
        fitting = [
            buffer
            for buffer in self._free.values()
            if buffer.device == device and nbytes <= buffer.nbytes <= largest
        ]
        return min(fitting, key=lambda buffer: buffer.nbytes, default=None)

    def _make_room(self, device: int, size: int) -> bool:
        """Whether a buffer of `size` may be allocated. Free ones that are too small give way if that helps."""
        if size > self._most_bytes:
            return False
        count, nbytes = self.count, self._bytes
        going = []
        for buffer in self._free.values():
            if count < self._most and nbytes + size <= self._most_bytes:
                break
            if buffer.device != device or buffer.nbytes < size:
                going.append(buffer)
                count -= 1
                nbytes -= buffer.nbytes
        if count >= self._most or nbytes + size > self._most_bytes:
            return False
        for buffer in going:
            del self._free[buffer.number]
            self._forget(buffer)
        return True

    def _allocated(self, device: int, size: int) -> Buffer | None:
        try:
            memory = self._memory()
            address = memory.allocate(device, size)
        except CudaError:  # it is out of memory, say, and may have some again
            return None
        try:
            handle = memory.export(device, address)
        except CudaError as error:
            self._barred.add(device)
            with contextlib.suppress(CudaError):
                memory.free(device, address)
            self._warn(f"outputs on GPU {device} go to other models by host memory: {error}")
            return None
        number = self._numbers.pop() if self._numbers else self.count
        buffer = self._by_handle[handle] = Buffer(number, device, address, size, handle)
        self._bytes += size
        return buffer

    def _forget(self, buffer: Buffer) -> None:
        del self._by_handle[buffer.handle]
        self._numbers.append(buffer.number)
        self._bytes -= buffer.nbytes
        with contextlib.suppress(CudaError):  # a GPU that is lost has nothing to give back
            self._memory().free(buffer.device, buffer.address)
