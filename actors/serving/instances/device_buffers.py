"""The buffers on a GPU that one worker has exported, and who reads what lies there. Passive.

A worker tells of a buffer once, before its first result that names it. The output that lies there becomes a
tensor on the GPU, and the buffer is leased until the last tensor that refers to it has gone. All requests
whose outputs were computed together share a lease. When it ends, the worker is told, and uses the buffer for
another output.

A worker takes its memory with it when it ends. Its leases are `lost` from then on: a request whose inputs lie
there is answered with UNAVAILABLE, if it has not been dispatched, and also if its answer comes afterwards. So
no answer is given that was computed from memory which is known to have gone. What remains is a race: a
worker that dies while another one reads its buffer, and answers before the server has seen that death. The
driver decides what the other one reads then. As long as an allocation is open elsewhere its memory should not
go to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from actors.seams.bell import Bell
from actors.serving.instances.pipe import Pipe
from actors.serving.statistics import ModelStatistics
from actors.values.tensors import DevicePlace
from actors.wire import frames
from actors.wire.frames import FrameError

MOST_BUFFERS: Final = 4096
"""Buffers of one worker."""

_LARGEST: Final = 2**40


class _Buffer:
    """One buffer, as the worker has told of it last."""

    __slots__ = ("handle", "leased", "nbytes", "on_end")

    def __init__(self, nbytes: int, handle: bytes) -> None:
        self.nbytes = nbytes
        self.handle = handle
        self.leased = False
        # To be told when it has ended: workers that may have its handle open.
        self.on_end: dict[object, Callable[[bytes], None]] = {}


class DeviceBuffers:
    """The buffers of one worker. Implements `actors.wire.gathering.DeviceMemory`."""

    def __init__(
        self, pipe: Pipe, device: int, statistics: ModelStatistics, *, ordinal: int | None = None
    ) -> None:
        """`device` is the GPU of the worker's instance, and `ordinal` its number there, if that is another.

        What stays there is counted in `statistics`.
        """
        self._ordinal = device if ordinal is None else ordinal
        self._statistics = statistics
        self.lost = False  # the worker is gone
        self.told = {"buffers": 0, "in_use": 0, "bytes": 0}
        """How many there are, how many are leased, and their bytes together: as the tree shows them."""
        self._pipe = pipe
        self._device = device
        self._buffers: dict[int, _Buffer] = {}
        self._token: trio.lowlevel.TrioToken | None = None
        self._returned: deque[int] = deque()  # numbers whose leases have ended
        self._all_back = Bell()

    def on_exported(self, packet: bytes) -> None:
        """The worker tells of a buffer, or of another one by a number that is free. Raises FrameError."""
        number, device, nbytes, handle = frames.decode_exported(packet)
        known = self._buffers.get(number)
        if device != self._ordinal or not 0 < nbytes <= _LARGEST or not any(handle):
            raise FrameError(
                f"a worker on GPU {self._ordinal} exports buffer {number}: {nbytes} bytes of GPU {device}"
            )
        if known is not None and known.leased:
            raise FrameError(f"a worker exports buffer {number} again, which is being read")
        if known is None and len(self._buffers) >= MOST_BUFFERS:
            raise FrameError(f"a worker exports more than {MOST_BUFFERS} buffers")
        self._drop(number)
        self._drop_namesake(number, handle)
        self._buffers[number] = _Buffer(nbytes, handle)
        self.told["buffers"] = len(self._buffers)
        self.told["bytes"] += nbytes

    def _drop(self, number: int) -> None:
        known = self._buffers.pop(number, None)
        if known is not None:
            self.told["bytes"] -= known.nbytes
            _end(known)

    def _drop_namesake(self, number: int, handle: bytes) -> None:
        """Drop a buffer whose handle comes again: the worker has freed it, and got its memory once more."""
        for other, buffer in self._buffers.items():
            if buffer.handle == handle:
                if buffer.leased:
                    raise FrameError(
                        f"a worker exports buffer {number} by the handle of buffer {other},"
                        " which is being read"
                    )
                self._drop(other)
                return

    def take(self, number: int, nbytes: int) -> DevicePlace:
        """Lease a buffer for an output of so many bytes. Raises FrameError."""
        buffer = self._buffers.get(number)
        if buffer is None or buffer.leased or nbytes > buffer.nbytes:
            known = "is unknown" if buffer is None else f"has {buffer.nbytes} bytes"
            why = " and is being read" if buffer is not None and buffer.leased else ""
            raise FrameError(f"a worker put {nbytes} bytes into buffer {number}, which {known}{why}")
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        buffer.leased = True
        self._statistics.gpu_tensors += 1
        self.told["in_use"] += 1
        return DevicePlace(buffer.handle, self._device, 0, nbytes, Lease(self, number, buffer.on_end))

    def ended(self, number: int) -> None:
        """A lease has ended, on whichever thread, and perhaps in the middle of anything."""
        if self.lost:
            return
        self._returned.append(number)
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._release, idempotent=True)

    def _release(self) -> None:
        if self.lost:  # since this was asked for
            self._returned.clear()
        while self._returned:
            number = self._returned.popleft()
            self._buffers[number].leased = False
            self.told["in_use"] -= 1
            self._pipe.tell_nowait(frames.encode_released(number))
        if not self.told["in_use"]:
            self._all_back.ring()

    async def wait_unused(self) -> None:
        """Wait until nothing reads them."""
        while self.told["in_use"]:
            await self._all_back.next_ring()

    def close(self) -> None:
        """The worker is gone, and so is what lies there."""
        self.lost = True
        for buffer in self._buffers.values():
            _end(buffer)
        self._buffers.clear()
        self._returned.clear()
        self.told.update(dict.fromkeys(self.told, 0))
        self._all_back.ring()


def _end(buffer: _Buffer) -> None:
    for told in list(buffer.on_end.values()):  # who is told takes itself out
        told(buffer.handle)
    buffer.on_end.clear()


class Lease:
    """Keeps one output in its buffer. Implements `actors.values.tensors.Keeper`.

    It ends with the last reference to it.
    """

    __slots__ = ("_buffers", "_number", "on_end")

    def __init__(
        self, buffers: DeviceBuffers, number: int, on_end: dict[object, Callable[[bytes], None]]
    ) -> None:
        self._buffers = buffers
        self._number = number
        self.on_end = on_end

    @property
    def lost(self) -> bool:
        """See `Keeper`."""
        return self._buffers.lost

    def __del__(self) -> None:
        self._buffers.ended(self._number)
