"""Whether something grows: a slope with its confidence, and what may be said of it. Pure.

Samples of a process's memory are not independent draws: they rise in steps, fall when a collector runs, and
each is nearly the one before. A least-squares line with its usual interval would call almost any of that
growth. So

1. the first part is left out, because a server that warms up does grow (`WARM_UP`);

2. the rest is cut into blocks of equal time, and each block counts by its median: outliers are gone, and the
samples' remaining dependence is between neighbours;

3. the slope is the median of the slopes of all pairs of blocks: Theil (1950); Sen, Journal of the American
Statistical Association 63 (1968), which bears up to 29 % of wild values;

4. its interval is Sen's, by the ranks of those slopes, from the normal approximation of Kendall's S with its
correction for ties;

5. the variance of S is widened, and never narrowed, for what the medians of neighbouring blocks still have in
common once the slope is taken out of them: Yue and Wang, Water Resources Management 18 (2004), with the
effective number of samples of a process in which each value keeps a part of the one before. That part is
estimated from few blocks, which makes it look smaller than it is: Marriott and Pope, Biometrika 41 (1954),
corrected here for a mean and a slope.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final, Literal

WARM_UP: Final = 0.2
"""The share of the time that is left out at the beginning."""
BLOCKS: Final = 24
FEWEST: Final = 10
"""With fewer blocks that have samples nothing is said."""
# Beyond it the samples say next to nothing, and not even how little.
_MOST_KEPT: Final = 0.98
_Z: Final = statistics.NormalDist().inv_cdf(0.975)  # of 95 %, both sides

Saying = Literal["grows", "does not grow", "cannot tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How something changes, per hour, in its own unit.

    `low` and `high` enclose the slope with 95 % confidence.
    """

    slope: float
    low: float
    high: float
    level: float  # the median of what was looked at
    blocks: int
    tolerated: float  # growth per hour that is none
    since: float  # when the warm-up was over, on the samples' clock

    @property
    def saying(self) -> Saying:
        """`grows` if even the low end is more than tolerated, `does not grow` if not even the high end is."""
        if self.blocks < FEWEST:
            return "cannot tell"
        if self.low > self.tolerated:
            return "grows"
        return "does not grow" if self.high <= self.tolerated else "cannot tell"


def trend(
    times: Sequence[float], values: Sequence[float], *, tolerated: float = 0.0, warm_up: float = WARM_UP
) -> Trend:
    """Return how `values` change with `times`, which are in seconds and ascend.

    `warm_up` is the share of the time that is left out at first. If fewer than `FEWEST` blocks have samples,
    the interval is without bounds. Raises ValueError if there are not as many values as times, if there are
    none at all, or if `warm_up` leaves nothing.
    """
    if len(times) != len(values) or not times:
        raise ValueError(
            f"{len(values)} values at {len(times)} times; there must be one at each, and one at least"
        )
    if not 0 <= warm_up < 1:
        raise ValueError(f"a warm-up of {warm_up} of the time; 0.2 leaves the last four fifths")
    since = times[0] + (times[-1] - times[0]) * warm_up
    at, levels = _blocks(times, values, since)
    hours = [each / 3600 for each in at]
    slopes = sorted(
        (levels[j] - levels[i]) / (hours[j] - hours[i]) for i, j in combinations(range(len(levels)), 2)
    )
    slope = statistics.median(slopes) if slopes else 0.0
    low, high = -math.inf, math.inf
    if len(levels) >= FEWEST:
        low, high = _interval(slopes, _spread(hours, levels, slope))
    return Trend(
        slope=slope,
        low=low,
        high=high,
        level=statistics.median(levels),
        blocks=len(levels),
        tolerated=tolerated,
        since=since,
    )


def _blocks(times: Sequence[float], values: Sequence[float], since: float) -> tuple[list[float], list[float]]:
    width = (times[-1] - since) / BLOCKS
    blocks: dict[int, list[tuple[float, float]]] = {}
    for at, value in zip(times, values, strict=True):
        if at >= since:
            place = min(BLOCKS - 1, int((at - since) / width)) if width > 0 else 0
            blocks.setdefault(place, []).append((at, value))
    members = [blocks[place] for place in sorted(blocks)]
    return (
        [statistics.fmean(at for at, _ in each) for each in members],
        [statistics.median(value for _, value in each) for each in members],
    )


def _spread(hours: Sequence[float], levels: Sequence[float], slope: float) -> float:
    """Return the standard deviation of Kendall's S, for ties and for autocorrelation."""
    count = len(levels)
    variance = count * (count - 1) * (2 * count + 5)
    variance -= sum(ties * (ties - 1) * (2 * ties + 5) for ties in Counter(levels).values())
    rest = [level - slope * hour for hour, level in zip(hours, levels, strict=True)]
    return math.sqrt(variance / 18 * max(1.0, _inflation(_ranks(rest))))


def _inflation(ranks: Sequence[float]) -> float:
    """Return by how much the dependence of neighbours widens the variance of S."""
    count = len(ranks)
    mean = statistics.fmean(ranks)
    centred = [rank - mean for rank in ranks]
    power = sum(each * each for each in centred)
    if power == 0:
        return 1.0
    kept = sum(a * b for a, b in pairwise(centred)) / power
    kept = min(_MOST_KEPT, (kept + 2 / count) / (1 - 4 / count))
    return (1 + kept) / (1 - kept)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return each value's rank from 1; equal ones share theirs."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in order[first : last + 1]:
            ranks[place] = (first + last) / 2 + 1
        first = last + 1
    return ranks


def _interval(slopes: Sequence[float], spread: float) -> tuple[float, float]:
    """Return the slopes of the ranks (N - z s) / 2 and (N + z s) / 2 + 1: Sen (1968), section 4."""
    count = len(slopes)
    reach = _Z * spread
    low = math.floor((count - reach) / 2)
    high = math.ceil((count + reach) / 2)
    return (
        slopes[low] if low >= 0 else -math.inf,
        slopes[min(high, count - 1)] if high <= count else math.inf,
    )
