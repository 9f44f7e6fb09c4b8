"""How the scheduler of a model version is told to look again. Passive."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Doorbell:
    """Rings that come before the scheduler's next look count as one.

    While the scheduler runs, `take_turn` is its turn, which a caller may take in its place.
    """

    def __init__(self) -> None:
        self.take_turn: Callable[[], None] | None = None
        self._ring, self._heard = trio.open_memory_channel[None](1)
        self.rung = False
        """Whether it has rung since the scheduler's last look: to ring again changes nothing."""

    def ring(self) -> None:
        """Tell the scheduler that something changed."""
        if not self.rung:
            self.rung = True
            self._ring.send_nowait(None)

    def answer(self) -> None:
        """The scheduler is about to look at everything; a later change rings again."""
        if self.rung:
            self.rung = False
            try:
                self._heard.receive_nowait()
            except trio.WouldBlock:
                return  # it was woken by receiving it

    async def wait(self) -> None:
        """Wait until it rings; at once where it has rung since the last look."""
        await self._heard.receive()
