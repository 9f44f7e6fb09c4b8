"""A run as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from chaos.checker.goals import Goal, Verdict, quantile
from chaos.checker.judge import Judgement
from chaos.checker.rates import Rates
from chaos.record.records import Manifest
from chaos.report.words import NOTHING, figure, limit, reached, seconds, seen

UNKNOWN: Final = "not in the catalogue any more"

_RATES: Final = ("sent/s", "good/s", "errors", "no answer", "p50", "p99")
_FIGURES: Final = frozenset((*_RATES, "limit", "figure", "measured", "count", "time"))
"""The names of columns that hold numbers."""


def markdown(judgement: Judgement, behaviours: Mapping[str, str]) -> str:
    """Return the page. `behaviours` says of each fault, by its name, what must be seen of it."""
    manifest, verdict, rates = judgement.manifest, judgement.verdict, judgement.rates
    spans = {phase: (begin - manifest.began, end - manifest.began) for phase, begin, end in manifest.phases}
    whole = max((end for _, end in spans.values()), default=1.0)
    goals = [
        (
            goal.name,
            limit(goal),
            figure(goal.figure, goal.unit),
            reached(goal),
            f"{goal.measured:,}",
            goal.about,
        )
        for goal in verdict.goals
    ]
    faults = [
        (each.fault, str(each.count), behaviours.get(each.fault, UNKNOWN), seen(each))
        for each in verdict.faults
    ]
    phases = [
        (phase, f"{begin:.0f}–{end:.0f} s", *_cells(rates.phases.get(phase, Rates()), end - begin))
        for phase, (begin, end) in spans.items()
    ]
    models = [(model, *_cells(each, whole)) for model, each in sorted(rates.models.items())]
    parts = [
        f"# Chaos run, seed {manifest.seed}",
        f"**{_summary(verdict)}**",
        _table(("what", ""), _facts(manifest, verdict)),
        "## Goals",
        _table(("goal", "limit", "figure", "", "measured", "what it is"), goals),
        *_evidence(verdict),
        "## Faults",
        _table(("fault", "count", "what must be seen", "what was seen"), faults),
        "## Phases",
        _table(("phase", "time", *_RATES), phases),
        "## Models",
        _table(("model", *_RATES), models),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(verdict: Verdict) -> str:
    """Say in a sentence how the run went."""
    missed, unmeasured = len(verdict.missed), sum(goal.passed is None for goal in verdict.goals)
    rest = f"; {unmeasured} could not be measured" if unmeasured else ""
    if missed:
        return f"{missed} of {len(verdict.goals)} goals missed{rest}."
    return f"No goal missed, {len(verdict.goals) - unmeasured} reached{rest}."


def _facts(manifest: Manifest, verdict: Verdict) -> Sequence[Sequence[str]]:
    """What was run, when, on what."""
    began = datetime.fromtimestamp(manifest.began_wall, UTC)
    return [
        ("command", manifest.command),
        ("seed", str(manifest.seed)),
        ("length", f"{manifest.minutes:g} min"),
        ("ordinary load", f"{manifest.rate:g} requests/s"),
        ("faults", f"{manifest.faults_per_minute:g} a minute of the phases that have any"),
        ("began", f"{began:%Y-%m-%d %H:%M:%S} UTC"),
        ("server", manifest.version),
        ("machine", manifest.machine),
        *(
            (name, f"{value:,.3g}" if "(s)" in name else f"{value:,g}")
            for name, value in verdict.figures.items()
        ),
    ]


def _cells(rates: Rates, length: float) -> Sequence[str]:
    return (
        f"{rates.sent / length:,.1f}",
        f"{rates.ends['ok'] / length:,.1f}",
        f"{rates.ends['fail']:,}",
        f"{rates.ends['unknown']:,}",
        *(seconds(quantile(rates.latencies, share)) if rates.latencies else NOTHING for share in (0.5, 0.99)),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rules = ["--:" if name in _FIGURES else "---" for name in columns]
    lines = [columns, rules, *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _cell(text: str) -> str:
    """Keep a text within its cell, and from being taken for markup."""
    plain = " ".join(text.split())
    for sign in "\\`*_<>[]|":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _evidence(verdict: Verdict) -> Iterator[str]:
    if verdict.missed:
        yield "## What speaks against the goals that were missed"
        yield from map(_story, verdict.missed)


def _story(goal: Goal) -> str:
    more = goal.found - len(goal.evidence)
    lines = [f"### {goal.name}\n"]
    lines += [f"- {_cell(each.id)}: {_cell(each.what)}. {_cell(each.story)}" for each in goal.evidence]
    if more > 0:
        lines.append(f"- and {more:,} more")
    return "\n".join(lines)
