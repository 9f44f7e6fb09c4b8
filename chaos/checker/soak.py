"""What a long run shows: whether the server's memory, descriptors, threads and children grow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chaos.checker.goals import Evidence, Goal
from chaos.checker.trend import WARM_UP, Trend, trend
from chaos.record.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something that must not grow. Growth of up to `tolerated` an hour does not count."""

    name: str
    unit: str
    tolerated: float
    of: Callable[[Sample], float]


MIB: Final = 2.0**20

QUANTITIES: Final[Sequence[Quantity]] = (
    Quantity(name="server memory", unit="MiB", tolerated=1.0, of=lambda sample: sample.rss / MIB),
    Quantity(name="workers' memory", unit="MiB", tolerated=8.0, of=lambda sample: sample.workers_rss / MIB),
    Quantity(name="descriptors", unit="", tolerated=1.0, of=lambda sample: float(sample.descriptors)),
    Quantity(name="threads", unit="", tolerated=1.0, of=lambda sample: float(sample.threads)),
    Quantity(name="children", unit="", tolerated=1.0, of=lambda sample: float(sample.children)),
)
"""A leak of one byte a request is 0.5 MiB an hour at 150 requests a second; a descriptor lost each minute, 60."""


def trends(samples: Sequence[Sample], *, warm_up: float = WARM_UP) -> Mapping[str, Trend]:
    """Return how each quantity changes, by name.

    Raises ValueError without samples, or for samples that are not in the order of time.
    """
    times = [each.t for each in samples]
    if any(later < earlier for earlier, later in pairwise(times)):
        raise ValueError("the samples are not in the order of time; sort them by `t`")
    return {
        each.name: trend(
            times, [each.of(sample) for sample in samples], tolerated=each.tolerated, warm_up=warm_up
        )
        for each in QUANTITIES
    }


def soak_goals(samples: Sequence[Sample], *, warm_up: float = WARM_UP) -> Sequence[Goal]:
    """Return a goal for each quantity: even the low end of its slope's interval is no more than is tolerated.

    If even the high end is not more, the quantity does not grow. In between nothing can be told, and the goal
    is not measured.
    """
    found = trends(samples, warm_up=warm_up)
    return [_goal(quantity, found[quantity.name], len(samples)) for quantity in QUANTITIES]


def told(quantity: Quantity, trend: Trend) -> str:
    """Return a trend in words: its slope, its interval and what that says."""
    unit = f" {quantity.unit}" if quantity.unit else ""
    return (
        f"{trend.slope:+.2f}{unit} an hour, from {trend.low:+.2f} to {trend.high:+.2f} with 95 % confidence,"
        f" at {trend.level:,.1f}{unit}: {trend.saying}"
    )


def _goal(quantity: Quantity, trend: Trend, samples: int) -> Goal:
    grows = trend.saying == "grows"
    return Goal(
        name=f"{quantity.name} growth",
        about=told(quantity, trend),
        limit=quantity.tolerated,
        figure=None if trend.saying == "cannot tell" else trend.low if grows else trend.high,
        unit=f"{quantity.unit}/h" if quantity.unit else "1/h",
        measured=samples,
        found=int(grows),
        evidence=(Evidence(what="grows", id=quantity.name, story=told(quantity, trend)),) if grows else (),
    )
