"""What a report says: facts of the run, of its phases and of its models, as tables of text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from chaos.checker.figures import quantile
from chaos.checker.judge import Judgement
from chaos.checker.soak import QUANTITIES, told, trends
from chaos.checker.timeline import Lane, Timeline
from chaos.report.words import NOTHING, figure, limit, reached, seconds, seen

UNKNOWN = "not in the catalogue any more"


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, the names of its columns, and rows of as many texts.

    `figures` are the columns that hold numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: frozenset[int] = frozenset()


def summary(judgement: Judgement) -> str:
    """Say in a sentence how the run went."""
    goals = judgement.verdict.goals
    missed = len(judgement.verdict.missed)
    unmeasured = sum(goal.passed is None for goal in goals)
    rest = f"; {unmeasured} could not be measured" if unmeasured else ""
    if missed:
        return f"{missed} of {len(goals)} goals missed{rest}."
    return f"No goal missed, {len(goals) - unmeasured} reached{rest}."


def run_facts(judgement: Judgement) -> Table:
    """What was run, when, on what."""
    manifest = judgement.manifest
    began = datetime.fromtimestamp(manifest.began_wall, UTC)
    figures = judgement.verdict.figures
    rows = [
        ("command", manifest.command),
        ("seed", str(manifest.seed)),
        ("length", f"{manifest.minutes:g} min"),
        ("ordinary load", f"{manifest.rate:g} requests/s"),
        ("faults", f"{manifest.faults_per_minute:g} a minute of the phases that have any"),
        ("began", f"{began:%Y-%m-%d %H:%M:%S} UTC"),
        ("server", manifest.version),
        ("machine", manifest.machine),
        *((name, f"{value:,.3g}" if "(s)" in name else f"{value:,g}") for name, value in figures.items()),
    ]
    return Table("The run", ("what", ""), rows)


def goal_table(judgement: Judgement) -> Table:
    """Every goal beside its figure."""
    rows = [
        (
            goal.name,
            limit(goal),
            figure(goal.figure, goal.unit),
            reached(goal),
            f"{goal.measured:,}",
            goal.about,
        )
        for goal in judgement.verdict.goals
    ]
    return Table(
        "Goals", ("goal", "limit", "figure", "", "measured", "what it is"), rows, frozenset({1, 2, 4})
    )


def fault_table(judgement: Judgement, behaviours: Mapping[str, str]) -> Table:
    """Each fault: how often, what must be seen of it, and what was."""
    rows = [
        (each.fault, str(each.count), behaviours.get(each.fault, UNKNOWN), seen(each))
        for each in judgement.verdict.faults
    ]
    return Table("Faults", ("fault", "count", "what must be seen", "what was seen"), rows, frozenset({1}))


def phase_table(judgement: Judgement) -> Table:
    """Each phase with its rates and latencies."""
    timeline = judgement.timeline
    rows = [
        (
            phase,
            f"{begin - timeline.begin:.0f}–{end - timeline.begin:.0f} s",
            *_rates(timeline.all, timeline, begin, end),
        )
        for phase, begin, end in judgement.manifest.phases
        if phase != "ending"
    ]
    return Table("Phases", ("phase", "time", *_RATES), rows, frozenset(range(1, 8)))


def model_table(judgement: Judgement) -> Table:
    """Each model over the whole run."""
    timeline = judgement.timeline
    rows = [
        (model, *_rates(lane, timeline, timeline.begin, timeline.end))
        for model, lane in sorted(timeline.models.items())
    ]
    return Table("Models", ("model", *_RATES), rows, frozenset(range(1, 7)))


def trend_table(judgement: Judgement) -> Table:
    """How what the server takes changes; no rows if there are no samples."""
    if not judgement.samples:
        return Table("Growth", ("what", "trend"), ())
    found = trends(sorted(judgement.samples, key=lambda each: each.t))
    return Table(
        "Growth", ("what", "trend"), [(each.name, told(each, found[each.name])) for each in QUANTITIES]
    )


_RATES = ("sent/s", "good/s", "errors", "no answer", "p50", "p99")


def _rates(lane: Lane, timeline: Timeline, begin: float, end: float) -> Sequence[str]:
    """Rates and latencies of the bins that lie between two times, for the greater part."""
    first = round((begin - timeline.begin) / timeline.width)
    last = min(timeline.bins, max(first + 1, round((end - timeline.begin) / timeline.width)))
    length = max((last - first) * timeline.width, timeline.width)
    latencies = list(itertools.chain.from_iterable(lane.latencies[first:last]))
    return (
        f"{sum(lane.sent[first:last]) / length:,.1f}",
        f"{sum(lane.good[first:last]) / length:,.1f}",
        f"{sum(lane.errors[first:last]):,}",
        f"{sum(lane.silent[first:last]):,}",
        seconds(quantile(latencies, 0.5)) if latencies else NOTHING,
        seconds(quantile(latencies, 0.99)) if latencies else NOTHING,
    )
