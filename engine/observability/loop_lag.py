"""How late the event loop runs. A loop that lags makes every request wait, whatever the cause."""

from __future__ import annotations

from typing import Final

import trio

from actors.seams import faults
from actors.supervision.context import ChildContext
from actors.values.families import Families, SplitFamily, by

_WINDOW: Final = 30.0


class LoopLag:
    """The lag of a timer, in seconds: the last one, and the highest of the last half minute to minute.

    The maximum forgets old peaks, so that it is a gauge that an alert can clear, and no scrape resets it for
    another.
    """

    def __init__(self) -> None:
        self.last = 0.0
        self._peak = 0.0
        self._previous_peak = 0.0
        self._turned_at = 0.0

    @property
    def highest(self) -> float:
        """The highest lag seen lately."""
        return max(self._peak, self._previous_peak)

    def record(self, lag: float, now: float) -> None:
        """Note that a timer due at `now - lag` fired at `now`."""
        if faults.points is not None:
            faults.points.passing("loop_lag.record")
        if now - self._turned_at >= _WINDOW:
            # After a gap longer than a window, nothing recent is left to remember.
            self._previous_peak = self._peak if now - self._turned_at < 2 * _WINDOW else 0.0
            self._peak = 0.0
            self._turned_at = now
        self.last = lag
        self._peak = max(self._peak, lag)


FAMILIES: Final[Families[LoopLag]] = (
    SplitFamily(
        "tritium_loop_lag_seconds",
        "gauge",
        "How late the event loop runs: at the last look, and at worst within the last minute",
        lambda lag: by("stat", [("last", lag.last), ("max", lag.highest)]),
    ),
)


async def measure_loop_lag(ctx: ChildContext, lag: LoopLag, *, interval: float = 0.1) -> None:
    """Sleep and see how late it got, for ever. The start function of a permanent child."""
    ctx.started()
    while True:
        due = trio.current_time() + interval
        await trio.sleep_until(due)
        now = trio.current_time()
        lag.record(max(0.0, now - due), now)
