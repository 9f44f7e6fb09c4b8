"""Smaller batches for a while, after a batch found too little memory on its GPU.

A batch that was too large is not the last of its size: the next would fail as well, or be run again request
by request. So batches have at most half of its rows for `FIRST` seconds. Then they may have twice as many,
and so on, until they are as large as configured. If memory is short again meanwhile, the next time is twice as
long. Memory that others took for a moment is so found again, and what is never there costs an error now and
then.

A request with more rows than that goes alone. Times are seconds on the caller's clock. Pure: `now` is told.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from actors.serving.policy.batching import BatchPolicy, Policy

FIRST: Final = 10.0
"""Seconds that batches stay small, after memory was short once."""

LONGEST: Final = 600.0


class Easing:
    """How large batches of one version may be now, where that is less than configured."""

    def __init__(self, most: int) -> None:
        """`most` is what the configuration allows, in rows."""
        self._most = most
        self.rows = most
        """The most rows of a batch, as of the last call."""
        self.shortages = 0
        """How often memory was short."""
        self._hold = FIRST
        self._until = math.inf

    @property
    def eased(self) -> bool:
        """Whether batches may be smaller than configured. `limit` says it for sure."""
        return self.rows < self._most

    def short(self, rows: int, now: float) -> bool:
        """A batch of so many rows found no memory. Return whether batches are smaller from now on.

        Batches that were under way when it was known say nothing new.
        """
        self.shortages += 1
        limit = max(1, rows // 2)
        if self.limit(now) <= limit:
            return False
        if self.eased:
            self._hold = min(LONGEST, 2 * self._hold)
        self.rows = limit
        self._until = now + self._hold
        return True

    def limit(self, now: float) -> int:
        """Return the most rows of a batch at `now`."""
        while now >= self._until:
            self.rows = min(self._most, 2 * self.rows)
            self._until = self._until + self._hold if self.eased else math.inf
            if not self.eased:
                self._hold = FIRST
        return self.rows

    def policy(self, policy: Policy, now: float) -> Policy:
        """Return `policy` with batches no larger than they may be at `now`."""
        limit = self.limit(now)
        if not isinstance(policy, BatchPolicy) or policy.max_batch_size <= limit:
            return policy
        preferred = frozenset(each for each in policy.preferred_batch_sizes if each <= limit)
        return replace(policy, max_batch_size=limit, preferred_batch_sizes=preferred)
