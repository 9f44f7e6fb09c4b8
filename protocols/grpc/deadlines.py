"""When calls must be over: a wheel of 10 ms ticks that is told the time.

A call's deadline is added when the call begins and discarded when it is answered. Nearly every call is
answered long before its deadline. So both are a look-up; only ticks that hold deadlines are ordered, and
deadlines that were discarded leave nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

TICK: Final = 0.01
"""Seconds by which a deadline may have passed before it is reported."""

# Ticks that may pile up before those without deadlines are cleared away.
_SLACK: Final = 64


class DeadlineWheel(Generic[K]):
    """Deadlines by key. Times are absolute, in seconds on the caller's clock."""

    def __init__(self) -> None:
        self._ticks: dict[K, int] = {}
        self._keys: dict[int, dict[K, None]] = {}
        # A heap of all ticks in `_keys`, and of some that were removed.
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._ticks)

    def add(self, key: K, deadline: float) -> None:
        """Have `expire` tell `key` once `deadline` has passed, by a tick at most.

        An earlier deadline of the key is replaced. An infinite deadline counts as none.
        """
        self.discard(key)
        if deadline == math.inf:
            return
        tick = math.ceil(deadline / TICK)
        keys = self._keys.get(tick)
        if keys is None:
            keys = self._keys[tick] = {}
            heappush(self._order, tick)
        keys[key] = None
        self._ticks[key] = tick

    def discard(self, key: K) -> None:
        """Forget the deadline of `key`, if it has one."""
        tick = self._ticks.pop(key, None)
        if tick is None:
            return
        keys = self._keys[tick]
        del keys[key]
        if not keys:
            del self._keys[tick]
            if len(self._order) > 2 * len(self._keys) + _SLACK:
                self._order = list(self._keys)
                heapify(self._order)

    def expire(self, now: float) -> list[K]:
        """Return the keys whose deadlines have passed, the earliest tick first, and forget them."""
        passed: list[K] = []
        while self._order and self._order[0] * TICK <= now:
            for key in self._keys.pop(heappop(self._order), ()):
                del self._ticks[key]
                passed.append(key)
        return passed

    def next_expiry(self) -> float:
        """Return when `expire` will next have something to tell, inf for never."""
        while self._order and self._order[0] not in self._keys:
            heappop(self._order)
        return self._order[0] * TICK if self._order else math.inf
