"""What a run is held to: goals with a limit, a figure and evidence each, and the verdict they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import orjson

MOST_EVIDENCE: Final = 10

Sense = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Something that speaks against a goal, or the worst of what was measured."""

    what: str  # what is wrong with it, in a few words
    id: str  # of the request, the fault, or whatever it is about
    story: str  # what happened, in a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One line of the verdict.

    `figure` is None if the run had nothing to measure it by; such a goal is neither reached nor missed.
    `found` counts what speaks against it; `evidence` holds the first `MOST_EVIDENCE` of that.
    """

    name: str  # "lost"
    about: str  # one sentence on what was counted or measured
    limit: float
    figure: float | None
    sense: Sense = "at most"
    unit: str = ""  # "s", "×", or nothing for a number
    # Whether a server without fault may miss it on a machine that is too slow.
    timed: bool = False
    measured: int = 0  # how many measurements the figure is of
    found: int = 0
    evidence: Sequence[Evidence] = ()

    @property
    def passed(self) -> bool | None:
        """Whether it is reached; None if nothing was measured."""
        if self.figure is None:
            return None
        if math.isnan(self.figure):
            return False
        return self.figure <= self.limit if self.sense == "at most" else self.figure >= self.limit


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least the `share` of them do not exceed.

    The result is always a value that was measured. Of a hundred values or fewer, 0.99 is the largest. Raises
    ValueError if `values` is empty.
    """
    if not values:
        raise ValueError("nothing was measured; ask only where something was")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


class Findings:
    """Collects what speaks against a goal, and keeps the first of it as evidence."""

    def __init__(self) -> None:
        self.count = 0
        self._evidence: list[Evidence] = []

    def add(self, what: str, id: str, story: str) -> None:  # noqa: A002 (the record's word)
        """Count one."""
        self.count += 1
        if len(self._evidence) < MOST_EVIDENCE:
            self._evidence.append(Evidence(what=what, id=id, story=story))

    def goal(self, name: str, about: str, *, measured: int, timed: bool = False) -> Goal:
        """Return the goal that there be none of these."""
        return Goal(
            name=name,
            about=about,
            limit=0,
            figure=float(self.count),
            timed=timed,
            measured=measured,
            found=self.count,
            evidence=tuple(self._evidence),
        )


def at_most(
    limit: float,
    measured: Sequence[tuple[float, Evidence]],
    *,
    name: str,
    about: str,
    share: float = 1.0,
    unit: str = "s",
) -> Goal:
    """Return the goal that the `share` of these measurements do not exceed a limit: by default, that none do.

    The largest of them are its evidence.
    """
    ordered = sorted(measured, key=lambda each: -each[0])
    beyond = sum(figure > limit for figure, _ in ordered)
    return Goal(
        name=name,
        about=about,
        limit=limit,
        figure=quantile([figure for figure, _ in measured], share) if measured else None,
        unit=unit,
        timed=True,
        measured=len(measured),
        found=beyond,
        evidence=tuple(evidence for _, evidence in ordered[: min(MOST_EVIDENCE, max(beyond, 1))]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSummary:
    """What all injections of one fault came to."""

    fault: str
    count: int
    # Errors that it excused, by code; "no answer" for requests that had none.
    excused: dict[str, int]
    lines_expected: int
    lines_found: int
    recoveries: Sequence[float]  # seconds; infinite where there was none
    troubles: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run has shown."""

    goals: Sequence[Goal]
    figures: dict[str, float]  # what no goal is set for, by name
    faults: Sequence[FaultSummary]  # by name

    @property
    def passed(self) -> bool:
        """Whether no goal was missed."""
        return not self.missed

    @property
    def answers_passed(self) -> bool:
        """Whether every missed goal is one that a slow machine may miss (`Goal.timed`)."""
        return all(goal.timed for goal in self.missed)

    @property
    def missed(self) -> Sequence[Goal]:
        """The goals that were not reached."""
        return [goal for goal in self.goals if goal.passed is False]

    def goal(self, name: str) -> Goal:
        """Return a goal by its name. Raises KeyError."""
        for each in self.goals:
            if each.name == name:
                return each
        raise KeyError(f"no goal is called '{name}', only {', '.join(each.name for each in self.goals)}")


def write_verdict(folder: Path, verdict: Verdict) -> None:
    """Write `verdict.json`. A figure that is infinite or undefined becomes null there."""
    given = {
        "passed": verdict.passed,
        "goals": [{**asdict(goal), "passed": goal.passed} for goal in verdict.goals],
        "figures": verdict.figures,
        "faults": verdict.faults,
    }
    (folder / "verdict.json").write_bytes(orjson.dumps(given, option=orjson.OPT_INDENT_2))
