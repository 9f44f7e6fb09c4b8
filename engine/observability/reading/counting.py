"""How many, how fast, how bad: requests and errors by model and interval, and the whole log on one page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.observability.reading.formats import Line, stamp
from engine.observability.reading.requests import Ended, ended
from engine.observability.reading.selecting import model_of
from engine.observability.reading.timeline import DEATH_LEVELS, Outage, Outages


@dataclass(slots=True)
class Tally:
    """What became of some requests.

    Durations are seconds from acceptance to the end, of all that completed.
    """

    requests: int = 0
    completed: int = 0
    cancelled: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """By code; if the line has none, by outcome."""
    retried: int = 0
    durations: list[float] = field(default_factory=list)

    def add(self, request: Ended) -> None:
        """Count one more."""
        self.requests += 1
        self.retried += request.attempts > 1
        if request.wrong:
            self.errors[request.code or request.outcome] += 1
        elif request.outcome == "cancelled":
            self.cancelled += 1
        else:
            self.completed += 1
            self.durations.append(request.total)

    def quantile(self, q: float) -> float:
        """Return the nearest-rank quantile of the durations, in seconds; 0 if there are none."""
        if not self.durations:
            return 0.0
        ordered = sorted(self.durations)
        return ordered[max(0, math.ceil(q * len(ordered)) - 1)]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values; durations as quantiles, in milliseconds."""
        return {
            "requests": self.requests,
            "completed": self.completed,
            "cancelled": self.cancelled,
            "errors": dict(self.errors),
            "retried": self.retried,
            "p50_ms": round(self.quantile(0.5) * 1e3, 3),
            "p99_ms": round(self.quantile(0.99) * 1e3, 3),
            "max_ms": round(self.quantile(1.0) * 1e3, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The requests to one model that ended in one interval, which begins at `begin` in seconds since 1970."""

    begin: float
    seconds: float
    model: str
    tally: Tally

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        rate = round(self.tally.requests / self.seconds, 3)
        return {"begin": stamp(self.begin), "model": self.model, "rate": rate, **self.tally.as_dict()}


def rates(lines: Iterable[Line], seconds: float) -> Sequence[Interval]:
    """Return the requests by intervals of `seconds` and by model, without empty intervals and models.

    Intervals begin at multiples of their length since 1970. Requests that the server made itself (steps,
    calls and copies) count for the models that they were made to.
    """
    tallies: dict[tuple[float, str], Tally] = {}
    for line in lines:
        request = ended(line)
        if request is not None:
            key = (math.floor(line.time / seconds) * seconds, request.model)
            tallies.setdefault(key, Tally()).add(request)
    return [
        Interval(begin=begin, seconds=seconds, model=model, tally=tally)
        for (begin, model), tally in sorted(tallies.items(), key=lambda item: item[0])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A log on one page.

    `began` and `ended` are the first and last time in it, in seconds since 1970; 0 without a line.
    """

    lines: int
    began: float
    ended: float
    levels: Mapping[str, int]
    events: Mapping[str, int]
    models: Mapping[str, Tally]
    deaths: Mapping[tuple[str, str], int]
    """By model and reason."""
    outages: Sequence[Outage]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "lines": self.lines,
            "began": stamp(self.began),
            "ended": stamp(self.ended),
            "levels": dict(self.levels),
            "events": dict(self.events),
            "models": {name: tally.as_dict() for name, tally in self.models.items()},
            "deaths": [
                {"model": model, "reason": reason, "count": count}
                for (model, reason), count in self.deaths.items()
            ],
            "outages": [each.as_dict() for each in self.outages],
        }


def summary(lines: Iterable[Line]) -> Summary:
    """Return what a log holds."""
    began, last, count = math.inf, -math.inf, 0
    levels, events, deaths = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    models: dict[str, Tally] = {}
    outages = Outages()
    for line in lines:
        count += 1
        began, last = min(began, line.time), max(last, line.time)
        levels[line.level] += 1
        events[line.event] += 1
        outages.see(line)
        request = ended(line)
        if request is not None:
            models.setdefault(request.model, Tally()).add(request)
        elif line.event == "worker_exited" and line.level in DEATH_LEVELS:
            deaths[model_of(line), str(line.keys.get("reason", "?"))] += 1
    return Summary(
        lines=count,
        began=began if count else 0.0,
        ended=last if count else 0.0,
        levels=levels,
        events=dict(events.most_common()),
        models=dict(sorted(models.items())),
        deaths=dict(deaths.most_common()),
        outages=outages.found(),
    )
