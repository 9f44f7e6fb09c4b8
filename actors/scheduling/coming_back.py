"""In how many seconds it may be worth asking again for what is refused for now: `Unavailable.retry_after`. Pure.

A full queue is measured where it refuses, and nowhere else: what it has answered since it last refused, over
the time since then, is its rate while it is full. Requests that are let in cost nothing for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 60.0
"""Seconds; who is told to stay away for longer may miss that things got better."""

LONGEST_LOAD: Final = 30.0
"""The same for a model that is being loaded."""

_WINDOW: Final = 10.0  # seconds that a rate is measured over, at least half of them
_LEAST: Final = 0.05  # seconds; what happened in less tells nothing of a rate


@dataclass(slots=True)
class Pace:
    """How fast a full queue moves. Times are seconds on the caller's clock."""

    _begun: float = 0.0  # of the interval that is measured
    _answered: int = 0  # by then
    _next_begun: float = 0.0  # of the interval that takes its place
    _next_answered: int = 0
    _asked: float | None = None  # when it was asked last

    def after(self, waiting: int, *, answered: int, usual: Callable[[], float], now: float) -> float:
        """Return in how many seconds `waiting` requests will have been answered; 0 where nobody knows.

        `answered` is how many requests were answered so far; `usual` gives the rate, in requests a second, to
        count on until there is a better one; 0 where there is none.
        """
        if self._asked is None or now - self._asked > _WINDOW or answered < self._answered:
            self._begun = self._next_begun = now
            self._answered = self._next_answered = answered
        elif now - self._next_begun >= _WINDOW / 2:
            self._begun, self._answered = self._next_begun, self._next_answered
            self._next_begun, self._next_answered = now, answered
        self._asked = now
        elapsed, done = now - self._begun, answered - self._answered
        if elapsed >= _LEAST and done:
            return min(LONGEST, waiting * elapsed / done)
        rate = usual()
        left = waiting / rate if rate > 0 else 0.0
        # What has not moved for so long will hardly do so sooner than that.
        return min(LONGEST, max(left, elapsed))


def after_load(seconds: float, *, before: float = 0.0) -> float:
    """Return in how many seconds a load that has taken `seconds` so far may be over.

    `before` is what the model's last load took; 0 where that is not known. A load of which nothing is known
    is expected to take as long again, so nobody comes back more than a few times and nobody waits for much
    longer than it takes.
    """
    left = before - seconds
    return min(LONGEST_LOAD, max(1.0, left if left > 0 else seconds))
