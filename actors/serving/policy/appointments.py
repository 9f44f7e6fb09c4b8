"""What is due when, for things that mostly end before they are due.

A heap that is told the time, like trio's `Deadlines`. An appointment that is called off stays in the heap
until its time comes, or until such appointments are the greater part of it. It releases its matter at once.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Final, Generic, TypeVar

Matter = TypeVar("Matter")

_STALE_ALLOWED: Final = 64  # below this a rebuild is not worth its bookkeeping


class Appointment(Generic[Matter]):
    """One of them; `matter` is None once it was met or called off."""

    __slots__ = ("at", "matter")

    def __init__(self, at: float, matter: Matter) -> None:
        self.at = at
        self.matter: Matter | None = matter


class Appointments(Generic[Matter]):
    """The appointments of one calendar. Times are on the caller's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Appointment[Matter]]] = []
        self._turn = count()  # decides the order of equal times
        self._kept = 0

    def __len__(self) -> int:
        """How many are still to be met."""
        return self._kept

    def make(self, at: float, matter: Matter) -> Appointment[Matter]:
        """Have `matter` returned by `due` from `at` on."""
        appointment = Appointment(at, matter)
        heappush(self._heap, (at, next(self._turn), appointment))
        self._kept += 1
        return appointment

    def call_off(self, appointment: Appointment[Matter]) -> None:
        """Forget one; does nothing for one that was met."""
        if appointment.matter is None:
            return
        appointment.matter = None
        self._kept -= 1
        if len(self._heap) - self._kept > max(_STALE_ALLOWED, self._kept):
            self._heap = [item for item in self._heap if item[2].matter is not None]
            heapify(self._heap)

    def due(self, now: float) -> list[Matter]:
        """Return what is due by `now`, in order, and forget it."""
        matters = []
        while self._heap and self._heap[0][0] <= now:
            appointment = heappop(self._heap)[2]
            if appointment.matter is not None:
                matters.append(appointment.matter)
                appointment.matter = None
                self._kept -= 1
        return matters

    def next_at(self) -> float:
        """When `due` next has something to return; infinite for never."""
        while self._heap and self._heap[0][2].matter is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf
