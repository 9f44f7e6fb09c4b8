"""What a worker says, packet by packet, until it has closed its end of the connection."""

from __future__ import annotations

from typing import Final

import trio

from actors.seams.slices import in_slices
from actors.serving.instances.streams import Slow
from actors.serving.instances.worker import LiveWorker
from actors.wire.frames import PARTS

PACKETS_IN_A_ROW: Final = 64  # from one worker, before other tasks get their turn


class PacketReader:
    """Has a worker's packets handled, one after the other."""

    def __init__(self, worker: LiveWorker) -> None:
        self._worker = worker
        self._unfinished: Slow | None = None  # the rest of a slow packet, while it is handled

    async def run(self) -> None:
        """Handle packets until the worker closes its end. Raises FrameError for what no sound worker says."""
        worker, pipe = self._worker, self._worker.pipe
        in_a_row = 0
        while True:
            packet = pipe.receive_nowait()
            in_a_row += 1
            if packet is None:
                await pipe.wait_readable()
                in_a_row = 0
            elif packet:
                slow = worker.on_packet(packet)
                if packet[0] == PARTS:
                    in_a_row = PACKETS_IN_A_ROW + 1
                if slow is not None:
                    await self._finish(slow)
                    # `slow` holds the whole result, and the next packet may be long in coming.
                    slow = None
                # Most likely it has no more packets, so don't try to receive.
                if worker.idle:
                    await pipe.wait_readable()
                    in_a_row = 0
            else:
                return
            if in_a_row > PACKETS_IN_A_ROW:
                await trio.lowlevel.checkpoint()
                in_a_row = 0

    async def drain(self) -> None:
        """The worker has ended: handle what it still said. Raises FrameError."""
        if self._unfinished is not None:
            await self._finish(self._unfinished)
        while packet := self._worker.pipe.receive_nowait():
            slow = self._worker.on_packet(packet)
            if slow is not None:
                await self._finish(slow)

    async def _finish(self, slow: Slow) -> None:
        """Finish the handling of a packet. If this is cancelled, `drain` does it."""
        self._unfinished = slow
        try:
            await in_slices(slow())
        except Exception:
            self._unfinished = None
            raise
        self._unfinished = None
