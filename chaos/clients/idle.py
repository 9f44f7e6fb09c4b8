"""What is kept for the next request, and not for long.

After a burst, the server is to have its descriptors back.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

KEPT: Final = 2.0
"""Seconds that something is kept without being used."""


class Idle(Generic[T]):
    """Things that wait to be used again; the one that was used last is used first.

    Times are seconds on any one clock.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, T]] = deque()  # longest first

    def put(self, thing: T, now: float) -> None:
        """Keep a thing."""
        self._waiting.append((now, thing))

    def take(self) -> T | None:
        """Return the one that was kept last; None if there is none."""
        return self._waiting.pop()[1] if self._waiting else None

    def expired(self, now: float) -> list[T]:
        """Return those that have waited too long, and keep them no more."""
        found = []
        while self._waiting and now - self._waiting[0][0] >= KEPT:
            found.append(self._waiting.popleft()[1])
        return found

    def all(self) -> list[T]:
        """Return all of them, and keep them no more."""
        found = [thing for _, thing in self._waiting]
        self._waiting.clear()
        return found
