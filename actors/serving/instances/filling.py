"""Long inputs on their way into a worker's slot: their only copy is made piece by piece, between other tasks.

A batch of up to `FILLED_AT_ONCE` bytes is copied and sent in the turn that dispatches it. The copy of a
longer one would hold the loop for about a millisecond per MiB, most of all into new pages. So it is *filled*:
it counts as dispatched, and holds its slot, before the worker has heard of it. The `Execute` frame follows
the last piece. One batch of a worker is filled at a time, and no other batch is dispatched to that worker
meanwhile. So frames keep the order in which batches were dispatched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from actors.seams.bell import Bell
from actors.seams.slices import Steps, in_slices
from actors.serving.instances.batches import InFlight
from actors.wire.gathering import Gather

FILLED_AT_ONCE: Final = 4 * 1024 * 1024
"""Inputs of up to so many bytes are copied in one piece, which takes some 4 ms at worst."""


class Filler:
    """Fills slots of one worker. The worker's owner runs `run` beside it."""

    def __init__(self, filled: Callable[[InFlight, bytes], None]) -> None:
        """`filled` is given a batch and its frame, once all inputs of the batch are in place."""
        self.batch: InFlight | None = None  # the batch that is being filled
        self._filled = filled
        self._steps: Steps[None] | None = None
        self._frame = b""
        self._wanted = Bell()

    def begin(self, batch: InFlight, gather: Gather, view: memoryview, frame: bytes) -> None:
        """Have `gather` copied into `view`, then `filled` called. Only while there is no other batch."""
        self.batch, self._frame = batch, frame
        self._steps = self._copying(batch, gather, view)
        self._wanted.ring()

    def stop(self) -> None:
        """Copy no more: the batch was taken back, or its worker is gone.

        Its slot may be used again at once.
        """
        self.batch = self._steps = None

    async def run(self) -> None:
        """Run for ever. If this is cancelled, the batch stays as it is, and is never sent."""
        heard = 0
        while True:
            heard = await self._wanted.wait(heard)
            # A batch that was stopped may have been followed by another one already.
            steps, self._steps = self._steps, None
            if steps is not None:
                await in_slices(steps)

    def _copying(self, batch: InFlight, gather: Gather, view: memoryview) -> Steps[None]:
        for _ in gather.copying(view):
            yield None
            if batch is not self.batch:
                return
        frame, self.batch, self._frame = self._frame, None, b""
        self._filled(batch, frame)
