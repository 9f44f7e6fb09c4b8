"""Deadlines of many things in one heap that is told the time, after trio's own `Deadlines`.

A timer that is dropped leaves its item in the heap until the heap is cleaned, but releases its target at
once.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

Target = TypeVar("Target")

# Items below which the heap is not cleaned: it would not be worth it.
_FEW: Final = 64


class Timers(Generic[Target]):
    """Times on the caller's clock, each with a target. Timers' numbers are positive and never used again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._clean_at = _FEW  # how many items it has when it is cleaned next
        self._numbers = count(1)
        self.running: dict[int, Target] = {}  # by the timer's number

    def __len__(self) -> int:
        """How many timers run."""
        return len(self.running)

    def set(self, due: float, target: Target) -> int:
        """Start a timer and return its number. Takes constant time, apart from a logarithm."""
        number = next(self._numbers)
        self.running[number] = target
        heap = self._heap
        heappush(heap, (due, number))
        if len(heap) > self._clean_at:
            heap[:] = [item for item in heap if item[1] in self.running]
            heapify(heap)
            self._clean_at = 2 * len(heap) + _FEW
        return number

    def drop(self, number: int) -> None:
        """Stop a timer; does nothing if it does not run."""
        self.running.pop(number, None)

    def next_due(self) -> float:
        """When the next timer is due; infinite if none runs."""
        heap = self._heap
        while heap and heap[0][1] not in self.running:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop_due(self, now: float) -> Target | None:
        """Stop the earliest timer that is due at `now`, and return its target; None for nothing."""
        if self.next_due() > now:
            return None
        return self.running.pop(heappop(self._heap)[1])
