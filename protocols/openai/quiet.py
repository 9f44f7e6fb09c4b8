"""Which streams have been quiet for too long.

All streams of an application are in one line, the one that wrote last at its end. So the next that is due
stands at the front, and a stream that writes pays for two look-ups.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

T = TypeVar("T")


class QuietStreams(Generic[T]):
    """The streams, by when each wrote last. Times are seconds on the caller's clock."""

    def __init__(self, patience: float) -> None:
        """A stream may be quiet for `patience`."""
        self._patience = patience
        self._line: dict[T, float] = {}

    def __len__(self) -> int:
        return len(self._line)

    def wrote(self, stream: T, now: float) -> None:
        """Note that a stream wrote, or begins."""
        self._line.pop(stream, None)
        self._line[stream] = now

    def over(self, stream: T) -> None:
        """Forget a stream."""
        self._line.pop(stream, None)

    def next_due(self) -> float:
        """Return when the next stream has been quiet for too long; infinity if there is none."""
        for since in self._line.values():
            return since + self._patience
        return math.inf

    def due(self, now: float) -> list[T]:
        """Return the streams that have been quiet for too long. Each is asked of again only after as long."""
        found: list[T] = []
        for stream, since in self._line.items():
            if since + self._patience > now:
                break
            found.append(stream)
        for stream in found:
            self.wrote(stream, now)
        return found
