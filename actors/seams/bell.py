"""A bell that tells tasks to look again. No ring is lost, and any number of tasks may listen."""

from __future__ import annotations

import trio


class Bell:
    """Counts its rings.

    A task says how many rings it has heard. So a ring that came while it was busy ends its next wait.

    Where a condition is checked and waited for without an `await` in between, `next_ring` is enough:

        while not ready():
            await bell.next_ring()
    """

    __slots__ = ("_listeners", "rings")

    def __init__(self) -> None:
        self.rings = 0
        self._listeners = trio.lowlevel.ParkingLot()

    def ring(self) -> None:
        """Wake every task that waits. Neither blocks nor raises."""
        self.rings += 1
        if self._listeners:
            self._listeners.unpark_all()

    async def wait(self, heard: int = 0) -> int:
        """Wait until it has rung more than `heard` times; return the number of rings so far."""
        if self.rings > heard:
            await trio.lowlevel.checkpoint()
        else:
            await self._listeners.park()
        return self.rings

    async def next_ring(self) -> None:
        """Wait until it rings again."""
        await self._listeners.park()
