"""In how many seconds a refused client may try again: `Unavailable.retry_after`. Pure.

The rate of a full queue is measured only when it refuses: it is the number of answers since it last refused,
over the time since then. Requests that are let in cost nothing for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 60.0
"""Seconds; a client that is told to stay away for longer may miss that things got better."""

LONGEST_LOAD: Final = 30.0
"""The same for a model that is being loaded."""

# Seconds that a rate is measured over, at least half of them.
_WINDOW: Final = 10.0
# Seconds; events in less time tell nothing of a rate.
_LEAST: Final = 0.05


@dataclass(slots=True)
class AnswerPace:
    """How fast a full queue moves. Times are seconds on the caller's clock."""

    # When the measured interval began, and how many were answered by then.
    _begun: float = 0.0
    _answered: int = 0
    # The same of the interval that takes its place.
    _next_begun: float = 0.0
    _next_answered: int = 0
    # When it was asked last.
    _asked: float | None = None

    def after(self, waiting: int, *, answered: int, usual: Callable[[], float], now: float) -> float:
        """Return in how many seconds `waiting` requests will have been answered; 0 if that is not known.

        `answered` is how many requests were answered so far. `usual` gives the rate, in requests a second, to
        use until there is a better one; 0 if there is none.
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
        # A queue that has not moved for so long will hardly do so sooner than that.
        return min(LONGEST, max(left, elapsed))


def after_load(seconds: float, *, before: float = 0.0) -> float:
    """Return in how many seconds a load that has taken `seconds` so far may be over.

    `before` is what the model's last load took; 0 if that is not known. Then the load is expected to take as
    long again as it has so far. So no client comes back more than a few times, and none waits for much longer
    than the load takes.
    """
    left = before - seconds
    return min(LONGEST_LOAD, max(1.0, left if left > 0 else seconds))
