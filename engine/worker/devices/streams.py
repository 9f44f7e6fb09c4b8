"""Work that a GPU does in order while this process goes on: streams, events, graphs and buffers.

Theory of operation. A `Stream` belongs to one thread at a time. Everything here is called within
`Driver.context` of its device. What is handed to a stream may not be touched before `wait` has returned.
Memory of the host need not be pinned: the driver copies it through memory of its own, in pieces.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.worker.devices.cuda import Driver

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no order towards the default stream
_BLOCKING_SYNC, _DISABLE_TIMING = 1, 2  # CU_EVENT_…
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile

HIGHEST, DEFAULT, LOWEST = -1, 0, 1
"""Priorities of streams."""


class Stream:
    """A CUDA stream, and the event by which the host waits for it.

    `handle` is what frameworks take for it. Unless `spins`, a thread that waits sleeps.
    """

    def __init__(self, driver: Driver, *, priority: int = DEFAULT, spins: bool = False) -> None:
        self._driver = driver
        stream, event = ctypes.c_void_p(), ctypes.c_void_p()
        flags = ctypes.c_uint(_NON_BLOCKING)
        driver.call("cuStreamCreateWithPriority", ctypes.byref(stream), flags, self._level(priority))
        self._stream = stream
        waits = _DISABLE_TIMING if spins else _DISABLE_TIMING | _BLOCKING_SYNC
        driver.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(waits))
        self._event = event

    def _level(self, priority: int) -> ctypes.c_int:
        lowest, highest = ctypes.c_int(), ctypes.c_int()
        self._driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(lowest), ctypes.byref(highest))
        return highest if priority < DEFAULT else lowest if priority > DEFAULT else ctypes.c_int(0)

    @property
    def handle(self) -> int:
        """The stream as a number."""
        return self._stream.value or 0

    def to_device(self, source: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` from host address `source` to device address `target`."""
        at, size = ctypes.c_uint64(target), ctypes.c_size_t(nbytes)
        self._driver.call("cuMemcpyHtoDAsync_v2", at, ctypes.c_void_p(source), size, self._stream)

    def to_host(self, source: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` from device address `source` to host address `target`."""
        at, size = ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
        self._driver.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(target), at, size, self._stream)

    def within(self, source: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` from one device address to another."""
        ends = ctypes.c_uint64(target), ctypes.c_uint64(source)
        self._driver.call("cuMemcpyDtoDAsync_v2", *ends, ctypes.c_size_t(nbytes), self._stream)

    def zero(self, target: int, nbytes: int) -> None:
        """Fill `nbytes` of device memory with zeros."""
        zeros = ctypes.c_ubyte(0), ctypes.c_size_t(nbytes)
        self._driver.call("cuMemsetD8Async", ctypes.c_uint64(target), *zeros, self._stream)

    def after(self, other: Stream) -> None:
        """Do what comes next only once `other` has done what it was given so far."""
        self._driver.call("cuEventRecord", other._event, other._stream)
        self._driver.call("cuStreamWaitEvent", self._stream, other._event, ctypes.c_uint(0))

    def wait(self) -> None:
        """Return once everything is done. Raises CudaError for whatever went wrong in it."""
        self._driver.call("cuEventRecord", self._event, self._stream)
        self._driver.call("cuEventSynchronize", self._event)

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        """Have what is done within it become a graph in place of being done."""
        graph = Graph(self._driver)
        self._driver.call("cuStreamBeginCapture_v2", self._stream, ctypes.c_int(_THREAD_LOCAL))
        captured = ctypes.c_void_p()
        try:
            yield graph
        except BaseException:
            # What failed is told; that its capture can't be ended well is no news.
            with contextlib.suppress(RuntimeError):
                self._driver.call("cuStreamEndCapture", self._stream, ctypes.byref(captured))
            raise
        self._driver.call("cuStreamEndCapture", self._stream, ctypes.byref(captured))
        graph.take(captured)

    def launch(self, graph: Graph) -> None:
        """Do what a graph has captured."""
        self._driver.call("cuGraphLaunch", graph.executable, self._stream)

    def close(self) -> None:
        """Give it back, once everything is done."""
        self._driver.call("cuEventDestroy_v2", self._event)
        self._driver.call("cuStreamDestroy_v2", self._stream)


class Graph:
    """Work that was captured once, on buffers that have to stay where they are."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.executable = ctypes.c_void_p()

    def take(self, captured: ctypes.c_void_p) -> None:
        """Make it of what a stream has captured."""
        none = ctypes.c_uint64(0)
        try:
            target = ctypes.byref(self.executable)
            self._driver.call("cuGraphInstantiateWithFlags", target, captured, none)
        finally:
            self._driver.call("cuGraphDestroy", captured)

    def close(self) -> None:
        """Give it back."""
        self._driver.call("cuGraphExecDestroy", self.executable)


class Buffer:
    """Device memory that grows."""

    __slots__ = ("_device", "_driver", "address", "nbytes")

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver = driver
        self._device = device
        self.address = 0
        self.nbytes = 0

    def reserve(self, nbytes: int) -> int:
        """Return the address of at least `nbytes`; what it held before may be gone."""
        if nbytes > self.nbytes or not self.address:
            self.close()
            self.address = self._driver.allocate(self._device, max(nbytes, 1))
            self.nbytes = nbytes
        return self.address

    def close(self) -> None:
        """Give the memory back."""
        if self.address:
            address, self.address, self.nbytes = self.address, 0, 0
            self._driver.free(self._device, address)
