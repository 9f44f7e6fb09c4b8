"""What a run will do, and when: its phases, and the schedule of its faults.

Pure, and a function of its arguments alone. The phases follow one another:

    calm       10 %   no faults: what the other phases are compared with
    standard   50 %   faults
    overload   15 %   no faults, more requests than one model can answer
    recovery   25 %   faults again, and none in its last seconds (`QUIET`)

Within standard and recovery there is a place for a fault every `60 / faults_per_minute` seconds. Most places
are taken by one fault. Some are taken by two or three at nearly the same time, whose places are left empty
after them.

Each fault of the catalogue comes once before any is drawn by its weight for the places that are left. If
there are more faults than places, the weights decide which faults come.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from chaos.record.records import Phase

SHARES: Final[Mapping[Phase, float]] = {"calm": 0.10, "standard": 0.50, "overload": 0.15, "recovery": 0.25}
"""The phases' shares of a run's time."""
LONG_SHARES: Final[Mapping[Phase, float]] = {"calm": 0.02, "standard": 0.93, "recovery": 0.05}
"""The phases' shares of a soak's time.

A soak has no overload, because what an overload leaves behind would hide what grows.
"""
QUIET: Final = 8.0
"""Seconds without faults at the end of a run, or a third of the recovery phase if that is less."""
LONGEST: Final = 5.0
"""Seconds that a fault may last, from its injection until its cause is gone."""
MIXED: Final = 0.25
"""The share of places that are the first of several faults at once."""
TOGETHER: Final = 1.0
"""Seconds within which the faults of such a mixture begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A phase, in seconds since the run began."""

    phase: Phase
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A fault to inject."""

    at: float  # seconds since the run began
    fault: str  # its name in the catalogue
    # The seed of the random numbers by which the fault chooses its target.
    target: int
    mixed: bool  # whether it is meant to overlap with others


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do."""

    seed: int
    minutes: float
    rate: float  # requests a second of the ordinary load
    faults_per_minute: float  # of the phases that have faults
    phases: Sequence[Span]
    faults: Sequence[Planned]  # by time
    quiet: float  # when the last seconds without faults begin

    @property
    def seconds(self) -> float:
        """How long it takes, endings apart."""
        return self.minutes * 60


def plan(
    *,
    seed: int,
    minutes: float,
    rate: float,
    faults_per_minute: float,
    weights: Mapping[str, float],
    exclusions: Collection[AbstractSet[str]] = (),
    shares: Mapping[Phase, float] = SHARES,
) -> Plan:
    """Return the plan of a run.

    `weights` are the catalogue's faults by name; the order in which they are given means nothing. Of the
    names in one of `exclusions` no two are ever under way at the same time, and neither is one name twice.
    Raises ValueError for a time or a rate that is not positive.
    """
    if not (0 < minutes < math.inf and 0 < rate < math.inf and 0 <= faults_per_minute < math.inf):
        raise ValueError(
            f"{minutes} minutes at a rate of {rate}, with {faults_per_minute} faults a minute: only faults may be none"
        )
    spans = _phases(minutes * 60, shares)
    recovery = spans[-1]
    quiet = recovery.end - min(QUIET, (recovery.end - recovery.begin) / 3)
    rng = random.Random(seed)
    times: list[tuple[float, bool]] = []
    if faults_per_minute and weights:
        gap = 60 / faults_per_minute
        for begin, end in ((spans[1].begin, spans[1].end), (recovery.begin, quiet)):
            times += _times(rng, begin, end - LONGEST, gap)
    names = _named(rng, [at for at, _ in times], weights, exclusions) if times else []
    faults = [
        Planned(at=at, fault=name, target=rng.getrandbits(64), mixed=mixed)
        for (at, mixed), name in zip(times, names, strict=True)
        if name is not None
    ]
    return Plan(
        seed=seed,
        minutes=minutes,
        rate=rate,
        faults_per_minute=faults_per_minute,
        phases=spans,
        faults=faults,
        quiet=quiet,
    )


def _phases(seconds: float, shares: Mapping[Phase, float]) -> list[Span]:
    spans: list[Span] = []
    begin = share_so_far = 0.0
    for phase, share in shares.items():
        share_so_far += share
        end = round(seconds * share_so_far, 3)
        spans.append(Span(phase=phase, begin=begin, end=end))
        begin = end
    return spans


def _times(rng: random.Random, begin: float, end: float, gap: float) -> list[tuple[float, bool]]:
    """Return when faults begin between `begin` and `end`, and which are mixed, by time."""
    places = max(0, math.floor((end - begin) / gap + 1e-9) + 1) if end >= begin else 0
    times: list[tuple[float, bool]] = []
    place = 0
    while place < places:
        together = rng.choice((2, 2, 3)) if rng.random() < MIXED else 1
        together = min(together, places - place)
        first = begin + place * gap
        room = min(gap, TOGETHER)
        times += sorted(
            (min(end, round(first + rng.random() * room, 3)), together > 1) for _ in range(together)
        )
        place += together
    return times


def _named(
    rng: random.Random,
    times: Sequence[float],
    weights: Mapping[str, float],
    exclusions: Collection[AbstractSet[str]],
) -> list[str | None]:
    """Return which fault comes at each time; None if every fault excludes what is under way."""
    bag = _bag(rng, len(times), weights)
    missing = set(bag)
    chosen: list[str | None] = []
    for place, at in enumerate(times):
        active = {name for then, name in zip(times, chosen, strict=False) if name and then >= at - LONGEST}
        barred = active.union(*(together for together in exclusions if together & active))
        # Faults that have not come yet go first now.
        late = len(times) - place <= len(missing) + 3
        fitting = [name for name in bag if name not in barred]
        name = next((each for each in fitting if late and each in missing), None)
        name = name or next(iter(fitting), None) or _spare(rng, weights, barred)
        chosen.append(name)
        if name in bag:
            bag.remove(name)
        missing.discard(name or "")
    return chosen


def _bag(rng: random.Random, places: int, weights: Mapping[str, float]) -> list[str]:
    """Return the faults for so many places, in the order in which they are to come.

    Each fault comes once, if there is room. The rest are drawn by weight.
    """
    names = sorted(weights)
    # Sampling without replacement by weight: the largest u ** (1 / w). Efraimidis and Spirakis, Information
    # Processing Letters 97 (2006).
    keys = {name: rng.random() ** (1 / weights[name]) for name in names}
    once = sorted(names, key=lambda name: (-keys[name], name))[:places]
    more = rng.choices(names, [weights[name] for name in names], k=places - len(once))
    bag = once + more
    rng.shuffle(bag)
    return bag


def _spare(rng: random.Random, weights: Mapping[str, float], barred: AbstractSet[str]) -> str | None:
    free = [name for name in sorted(weights) if name not in barred]
    return rng.choices(free, [weights[name] for name in free])[0] if free else None
