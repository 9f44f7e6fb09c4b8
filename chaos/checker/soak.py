"""What a long run shows: whether the server's memory, descriptors, threads and children grow. Pure.

Samples of a process's memory are not independent draws: they rise in steps, fall when a collector runs, and
each is nearly the one before. So

1. the first part is left out, because a server that warms up does grow (`WARM_UP`);

2. the rest is cut into blocks of equal time, and each block counts by its median: outliers are gone;

3. the slope is the median of the slopes of all pairs of blocks: Theil (1950); Sen, Journal of the American
Statistical Association 63 (1968), which bears up to 29 % of wild values.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from chaos.checker.goals import Evidence, Goal
from chaos.record.records import Sample

WARM_UP: Final = 0.2
"""The share of the time that is left out at the beginning."""
BLOCKS: Final = 24
FEWEST: Final = 10
"""With fewer blocks that have samples nothing is said."""
MIB: Final = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something that must not grow. Growth of up to `tolerated` an hour does not count."""

    name: str
    unit: str
    tolerated: float
    of: Callable[[Sample], float]


QUANTITIES: Final[Sequence[Quantity]] = (
    Quantity(name="server memory", unit="MiB", tolerated=1.0, of=lambda sample: sample.rss / MIB),
    Quantity(name="workers' memory", unit="MiB", tolerated=8.0, of=lambda sample: sample.workers_rss / MIB),
    Quantity(name="descriptors", unit="", tolerated=1.0, of=lambda sample: float(sample.descriptors)),
    Quantity(name="threads", unit="", tolerated=1.0, of=lambda sample: float(sample.threads)),
    Quantity(name="children", unit="", tolerated=1.0, of=lambda sample: float(sample.children)),
)
"""A leak of one byte a request is 0.5 MiB an hour at 150 requests a second; a descriptor lost each minute, 60."""


def slope(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float | None:
    """Return by how much something changes an hour; None if fewer than `FEWEST` blocks have samples.

    The samples are in the order of time.
    """
    begin, end = (samples[0].t, samples[-1].t) if samples else (0.0, 0.0)
    since = begin + (end - begin) * WARM_UP
    blocks: dict[int, list[Sample]] = {}
    for each in samples:
        if each.t >= since and end > since:
            blocks.setdefault(min(BLOCKS - 1, int((each.t - since) / (end - since) * BLOCKS)), []).append(
                each
            )
    if len(blocks) < FEWEST:
        return None
    points = [
        (statistics.fmean(each.t for each in block) / 3600, statistics.median(map(of, block)))
        for _, block in sorted(blocks.items())
    ]
    return statistics.median(
        (level - low) / (at - first) for (first, low), (at, level) in combinations(points, 2)
    )


def soak_goals(samples: Sequence[Sample]) -> Sequence[Goal]:
    """Return a goal for each quantity: it grows by no more than is tolerated."""
    return [_goal(quantity, slope(samples, quantity.of), len(samples)) for quantity in QUANTITIES]


def _goal(quantity: Quantity, grown: float | None, samples: int) -> Goal:
    grows = grown is not None and grown > quantity.tolerated
    told = f"{grown:+.2f} {quantity.unit} an hour" if grows else ""
    return Goal(
        name=f"{quantity.name} growth",
        about="the slope over the run, its first fifth apart",
        limit=quantity.tolerated,
        figure=grown,
        unit=f"{quantity.unit or '1'}/h",
        measured=samples,
        found=int(grows),
        evidence=(Evidence(what="grows", id=quantity.name, story=told),) if grows else (),
    )
