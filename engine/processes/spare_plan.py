"""Which environments have a spare worker waiting: the decision, apart from the processes.

A *key* stands for everything that a worker process is started with. A spare may only replace a worker that
would have been started under the same key. So there is at most one spare for each key, and none for a key
that is unused.

The few spares that there may be go to the keys under which a worker was started last, because a worker that
keeps dying gains most. A spare that was used is replaced at once. The first spare of a key waits until starts
have been quiet for a while, so that it takes no time from models that load at the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

QUIET: Final = 1.0
"""Seconds after a worker was started without a spare before one is made: by then most models have loaded."""

LINGER: Final = 60.0
"""Seconds that a spare outlives the last worker of its key.

This is twice the longest pause before an instance's next start.
"""

FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 300.0
"""Seconds until another spare is tried if one could not be started, or died while it waited.

They are doubled each time.
"""


@dataclass(frozen=True, slots=True)
class Start(Generic[K]):
    """Start a spare of this key."""

    key: K


@dataclass(frozen=True, slots=True)
class End(Generic[K]):
    """End the spare of this key."""

    key: K


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before then (infinite: before something happens)."""

    until: float


Decision: TypeAlias = Start[K] | End[K] | Wait


class _Standing:
    """What is known of one key."""

    __slots__ = ("held", "lost", "not_before", "unused_since", "workers")

    def __init__(self) -> None:
        self.workers = 0  # that were started under it and live
        self.unused_since = -math.inf  # when the last of them ended
        self.held = False  # whether it has a spare, or one is being started
        self.lost = 0  # spares in a row that came to nothing
        self.not_before = -math.inf


class SparePlan(Generic[K]):
    """Decides over keys and `now`, in seconds on the caller's clock.

    It is told of everything that happens, and never waits.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is how many spares there may be at once; 0: none."""
        self._limit = limit
        self._quiet_from = -math.inf
        self._standings: dict[K, _Standing] = {}  # the key that a worker was started under last is the last

    def launched(self, key: K, now: float, *, spare: bool) -> None:
        """A worker was started under `key`, or was taken from the spares."""
        standing = self._standings.pop(key, None) or _Standing()
        self._standings[key] = standing
        standing.workers += 1
        if spare:
            standing.held, standing.lost = False, 0
        else:
            self._quiet_from = now + QUIET

    def ended(self, key: K, now: float) -> None:
        """A worker that was started under `key` has ended."""
        standing = self._standings[key]
        standing.workers -= 1
        standing.unused_since = now

    def lost(self, key: K, now: float) -> None:
        """The spare of `key` could not be started, or has died while it waited."""
        standing = self._standings.get(key)
        if standing is None:
            return
        pause = min(FIRST_PAUSE * 2.0**standing.lost, LONGEST_PAUSE)
        standing.held, standing.lost, standing.not_before = False, standing.lost + 1, now + pause

    def reset(self) -> None:
        """All spares are gone, through no fault of any key."""
        for standing in self._standings.values():
            standing.held = False

    def decide(self, now: float) -> Decision[K]:
        """Return the next thing to do; what it names counts as done."""
        wanted = self._wanted(now)
        for key, standing in list(self._standings.items()):
            if standing.held and key not in wanted:
                standing.held = False
                return End(key)
            if not standing.held and self._is_unused(standing, now):
                del self._standings[key]
        for key in wanted:
            standing = self._standings[key]
            if not standing.held and max(self._quiet_from, standing.not_before) <= now:
                standing.held = True
                return Start(key)
        return Wait(self._next_change(wanted))

    def _wanted(self, now: float) -> list[K]:
        """Return the keys that should have a spare, most important first: with workers, then by recency."""
        used = [key for key in reversed(self._standings) if not self._is_unused(self._standings[key], now)]
        used.sort(key=lambda key: self._standings[key].workers == 0)
        return used[: self._limit]

    @staticmethod
    def _is_unused(standing: _Standing, now: float) -> bool:
        return standing.workers == 0 and now >= standing.unused_since + LINGER

    def _next_change(self, wanted: list[K]) -> float:
        begins = (
            max(self._quiet_from, self._standings[key].not_before)
            for key in wanted
            if not self._standings[key].held
        )
        ends = (each.unused_since + LINGER for each in self._standings.values() if each.workers == 0)
        return min((*begins, *ends), default=math.inf)
