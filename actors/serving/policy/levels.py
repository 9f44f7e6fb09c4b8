"""The priority levels of a model's queue, of which only those exist that requests wait in. Pure.

A configuration may name up to 2**64 - 1 levels, so a level is made when the first request comes to it. Up to
`KEPT` levels are all made at once and stay, so no request has to make or find one. If there are more, levels
that have emptied are dropped. No more than `OCCUPIED` levels may have requests waiting at one time, because
every batch looks into each of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, ValuesView
from heapq import heappop
from typing import Final, Protocol

from actors.serving.policy.fairness import FairLane, Ledger
from actors.values.requests import InferRequest
from actors.values.specs import Levelled, QueuePolicy, Scheduling, TimeoutAction

KEPT: Final = 64
"""Configured levels up to which all of them exist at all times."""

OCCUPIED: Final = 4096
"""Levels that may have requests waiting at one time."""


class QueueEntry:
    """One request's place in the queue; lives in `request.queue_entry`."""

    __slots__ = ("enqueued_at", "expires", "home", "lane", "level", "queued", "requeued", "rises", "timer")

    def __init__(self, level: Level, lane: QueueLane, enqueued_at: float) -> None:
        self.level = level
        self.lane = lane
        self.queued = True  # until it leaves the queue in any way
        self.enqueued_at = enqueued_at
        self.expires = math.inf  # when the queue timeout passes
        self.timer = 0  # of the clock that is due first; 0: none
        self.requeued = False
        # Only if levels age: the level it came to, whose policy holds, and when it rises from its present
        # level.
        self.home: Level
        self.rises: float


class QueueLane(Protocol):
    """The part of `OrderedDict[InferRequest, QueueEntry]` that is used here, and that `FairLane` has too."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[InferRequest]: ...
    def __setitem__(self, request: InferRequest, entry: QueueEntry, /) -> None: ...
    def __delitem__(self, request: InferRequest, /) -> None: ...

    def values(self) -> ValuesView[QueueEntry]:
        """Return the entries, in order."""

    def popitem(self, *, last: bool) -> tuple[InferRequest, QueueEntry]:
        """Take out one from an end. Raises KeyError if the lane is empty."""

    def move_to_end(self, request: InferRequest, /, *, last: bool) -> None:
        """Move one to an end."""


class Level:
    """One priority level with its policy."""

    def __init__(self, number: int, policy: QueuePolicy, ledger: Ledger | None) -> None:
        self.number = number
        self.policy = policy
        self.timeout = policy.default_timeout if policy.default_timeout > 0 else math.inf
        self.overrides = policy.allow_timeout_override and self.timeout < math.inf
        self.delays = policy.timeout_action is TimeoutAction.DELAY
        self.waiting: QueueLane = OrderedDict() if ledger is None else FairLane(ledger)
        self.delayed: QueueLane = OrderedDict() if ledger is None else FairLane(ledger)
        # Requests that have risen to this level, by the time they were enqueued; some may have left.
        self.risen: list[tuple[float, int, QueueEntry]] = []

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delayed)

    def oldest(self) -> float:
        """When the first of these requests was enqueued; infinite if there is none.

        Arrivals are in order of time. Requests put back at the head need not be. Nor need delayed ones if
        clients choose their timeouts, or requests from levels below.
        """
        oldest = math.inf
        while self.risen:
            at, _, entry = self.risen[0]
            if entry.queued and entry.level is self:
                oldest = at
                break
            heappop(self.risen)
        for entry in self.waiting.values():
            oldest = min(oldest, entry.enqueued_at)
            if not entry.requeued:
                break
        for entry in self.delayed.values():
            oldest = min(oldest, entry.enqueued_at)
            if not self.overrides:
                break
        return oldest


class Levels:
    """The levels of one queue, by number and in scan order."""

    def __init__(self, scheduling: Scheduling, ledger: Ledger | None) -> None:
        self._ledger = ledger
        self._default_policy = QueuePolicy()
        self._policies: dict[int, QueuePolicy] = {}
        self._lowest = default = 0  # a queue without levels has level 0
        if isinstance(scheduling, Levelled):
            self._default_policy = scheduling.default_queue_policy
            if scheduling.priority_levels:
                self._policies = dict(scheduling.priority_queue_policies)
                self._lowest, default = scheduling.priority_levels, scheduling.default_priority_level
        self.fixed = self._lowest <= KEPT  # all levels exist at all times
        numbers = range(1, self._lowest + 1) if self.fixed and self._lowest else (default,)
        self.present = [self._made(number) for number in numbers]
        """Those that exist, the first to be served first."""
        self.known = {level.number: level for level in self.present}
        self._default = self.known[default]
        self.lanes: list[QueueLane] = []
        """The lanes of the levels that exist, in scan order."""
        self._list_lanes()

    def of(self, request: InferRequest) -> Level:
        """Return the level of `request`.

        A level that does not exist is empty, and not `present` before it is `entered`.
        """
        level = self.known.get(request.priority)
        if level is None:
            level = self._made(request.priority) if 1 <= request.priority <= self._lowest else self._default
        return level

    def above(self, level: Level) -> Level:
        """Return the level that is served before `level`, which is not the first; like `of`."""
        return self.known.get(level.number - 1) or self._made(level.number - 1)

    def has_room(self, level: Level) -> bool:
        """Whether `level` exists, or may."""
        if level.number in self.known or len(self.present) < OCCUPIED:
            return True
        self._drop_empty()
        return len(self.present) < OCCUPIED

    def entered(self, level: Level) -> Level:
        """Have `level` exist, for a request that comes to it.

        Return it, or the level that has come into its place.
        """
        known = self.known.get(level.number)
        if known is not None:
            return known
        self.known[level.number] = level
        at = bisect_left(self.present, level.number, key=_number)
        self.present.insert(at, level)
        self.lanes[2 * at : 2 * at] = (level.waiting, level.delayed)
        return level

    def served(self) -> None:
        """Requests have been taken: drop the levels at the front that are now empty, unless `fixed`."""
        empty = 0
        while empty < len(self.present) and not self.present[empty]:
            if self.present[empty] is not self._default:
                del self.known[self.present[empty].number]
            empty += 1
        kept = [level for level in self.present[:empty] if level is self._default]
        self.present[:empty] = kept
        self.lanes[: 2 * empty] = [lane for level in kept for lane in (level.waiting, level.delayed)]

    def _drop_empty(self) -> None:
        self.present = [level for level in self.present if level or level is self._default]
        self.known.clear()
        self.known.update((level.number, level) for level in self.present)
        self._list_lanes()

    def _list_lanes(self) -> None:
        self.lanes = [lane for level in self.present for lane in (level.waiting, level.delayed)]

    def _made(self, number: int) -> Level:
        return Level(number, self._policies.get(number, self._default_policy), self._ledger)


def _number(level: Level) -> int:
    return level.number
