"""When the tokens of streams came, and what that says. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below `share` of all; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(slots=True)
class Timing:
    """What was seen of a load. Times are in seconds."""

    firsts: list[float] = field(default_factory=list)  # from a request to its first token
    gaps: list[float] = field(default_factory=list)  # from one token of a stream to the next
    events: int = 0  # server-sent events, or outputs of an engine
    streams: int = 0  # that have come to their end
    took: float = 0.0  # seconds
    failures: list[str] = field(default_factory=list)

    @property
    def first_p50(self) -> float:
        """The median of the times to the first token."""
        return quantile(self.firsts, 0.5)

    @property
    def gap_p99(self) -> float:
        """The 99th percentile of the times between tokens."""
        return quantile(self.gaps, 0.99)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return (len(self.firsts) + len(self.gaps)) / self.took


class Watched:
    """One stream: the times of its tokens go into a `Timing`."""

    __slots__ = ("_last", "_timing")

    def __init__(self, timing: Timing, now: float) -> None:
        """It was asked for at `now`."""
        self._timing = timing
        self._last = -now

    def came(self, tokens: int, now: float) -> None:
        """So many tokens came together. The first of them is the one that was waited for."""
        if not tokens:
            return
        if self._last <= 0.0:
            self._timing.firsts.append(now + self._last)
        else:
            self._timing.gaps.append(now - self._last)
        self._timing.gaps += [0.0] * (tokens - 1)
        self._last = now
