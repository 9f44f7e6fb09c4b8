"""A first batch that is held back until enough requests wait, for tests of how batches are formed. Pure.

Contract: scheduling.md section 12.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartAfter:
    """How many requests have to wait before a model's first batch.

    They wait in the queue or for slots, and in the backlog. 0: none.
    """

    queued: int = 0
    backlogged: int = 0


class HoldBack:
    """Holds one model version back until its first batch may begin. From then on it stays `open`."""

    def __init__(self, after: StartAfter | None = None) -> None:
        """Without `after`, or if that needs no queued request, nothing is held back."""
        self._after = StartAfter() if after is None else after
        self.open = self._after.queued <= 0

    def opens(self, queued: int, backlogged: int = 0) -> bool:
        """Whether batches may begin, now that so many requests wait."""
        if not self.open:
            self.open = queued >= self._after.queued and backlogged >= self._after.backlogged
        return self.open
