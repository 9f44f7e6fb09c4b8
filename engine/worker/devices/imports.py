"""Device memory of other processes, opened by its handle: once each, and kept for the next batch.

Opening takes the driver far longer than a copy. But what is open keeps its memory, whether or not the process
that allocated it has freed it, or has gone. So an allocation that no batch has used for a while is closed
when another is used, and there is a bound on how many are open.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

from engine.worker.devices.cuda import CudaError

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_OPEN = 512
IDLE = 60.0
"""Seconds without use after which an allocation is closed."""


class Opener(Protocol):
    """What of a `Driver` is needed. Each call raises CudaError if the driver says no."""

    def open_exported(self, device: int, handle: bytes) -> tuple[int, int]:
        """Open another process's allocation; return its address here, and its bytes."""

    def close_exported(self, device: int, address: int) -> None:
        """Let go of it."""


class _Entry:
    """One allocation of another process."""

    __slots__ = ("address", "device", "handle", "nbytes", "used_at", "users")

    def __init__(self, device: int, handle: bytes, address: int, nbytes: int) -> None:
        self.device = device
        self.handle = handle
        self.address = address
        self.nbytes = nbytes
        self.users = 0
        self.used_at = 0.0


class Opened:
    """An allocation of another process, which stays open as long as this lives."""

    __slots__ = ("_entry", "_returned", "address", "nbytes")

    def __init__(self, entry: _Entry, returned: deque[_Entry]) -> None:
        self.address = entry.address
        self.nbytes = entry.nbytes
        self._entry = entry
        self._returned = returned

    def __del__(self) -> None:
        """It may come on any thread, and in the midst of anything: so it takes no lock."""
        self._returned.append(self._entry)


class Imports:
    """The allocations that this worker has open. Any thread may call it."""

    def __init__(self, opener: Callable[[], Opener], *, most: int = MOST_OPEN, idle: float = IDLE) -> None:
        """`opener` gives the driver, or raises CudaError. `most` is exceeded only by what is in use."""
        self._opener = opener
        self._most = most
        self._idle = idle
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[int, bytes], _Entry] = OrderedDict()  # last used, last in order
        self._returned: deque[_Entry] = deque()
        self._leaving: list[_Entry] = []  # to be closed once nothing uses them

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    def take(self, device: int, handle: bytes, now: float) -> Opened:
        """Return an allocation. Raises CudaError."""
        key = device, handle
        with self._lock:
            self._settle()
            entry = self._open.get(key)
            if entry is None:
                entry = self._open[key] = self._opened(device, handle)
            else:
                self._open.move_to_end(key)
            entry.users += 1
            entry.used_at = now
            self._trim(now)
            return Opened(entry, self._returned)

    def forget(self, handle: bytes) -> None:
        """Close the allocations with this handle; those in use, once they are not."""
        with self._lock:
            self._settle()
            for entry in [each for each in self._open.values() if each.handle == handle]:
                del self._open[entry.device, entry.handle]
                if entry.users:
                    self._leaving.append(entry)
                else:
                    self._end(entry)

    def _settle(self) -> None:
        """Take note of what is in use no longer."""
        while self._returned:
            self._returned.popleft().users -= 1
        for entry in [each for each in self._leaving if not each.users]:
            self._leaving.remove(entry)
            self._end(entry)

    def close(self) -> None:
        """Close all of them, in use or not."""
        with self._lock:
            for entry in (*self._open.values(), *self._leaving):
                self._end(entry)
            self._open.clear()
            self._leaving.clear()

    def _opened(self, device: int, handle: bytes) -> _Entry:
        opener = self._opener()
        try:
            return _Entry(device, handle, *opener.open_exported(device, handle))
        except CudaError:
            # The driver may be short of something that unused ones hold: of memory, or, where the owner has
            # freed one and allocated anew, of its very address.
            if not self._close_unused():
                raise
            return _Entry(device, handle, *opener.open_exported(device, handle))

    def _close_unused(self) -> bool:
        unused = [entry for entry in self._open.values() if not entry.users]
        for entry in unused:
            self._drop(entry)
        return bool(unused)

    def _trim(self, now: float) -> None:
        over = len(self._open) - self._most
        going = []
        for entry in self._open.values():
            if over <= 0 and now - entry.used_at <= self._idle:
                break
            if not entry.users:
                going.append(entry)
                over -= 1
        for entry in going:
            self._drop(entry)

    def _drop(self, entry: _Entry) -> None:
        del self._open[entry.device, entry.handle]
        self._end(entry)

    def _end(self, entry: _Entry) -> None:
        with contextlib.suppress(CudaError):  # its memory is gone, or the GPU is lost
            self._opener().close_exported(entry.device, entry.address)
