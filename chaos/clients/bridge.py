"""From gRPC's threads into the event loop: one wake-up, however many answers have come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

Done = Callable[[], object]


class Bridge:
    """Runs functions on the loop on which it was made, in the order in which threads hand them over.

    Functions must neither raise nor wait. Functions that are handed over after the end of the loop are
    dropped: no task is left to ask for their results.
    """

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._waiting: deque[Done] = deque()

    def hand_over(self, done: Done) -> None:
        """Have `done` called on the loop soon. May be called on any thread."""
        self._waiting.append(done)
        try:
            self._token.run_sync_soon(self._drain, idempotent=True)
        except trio.RunFinishedError:
            self._waiting.clear()

    def _drain(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
