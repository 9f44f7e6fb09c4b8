"""A run as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chaos.checker.goals import Goal
from chaos.checker.judge import Judgement
from chaos.report.facts import (
    Table,
    fault_table,
    goal_table,
    model_table,
    phase_table,
    run_facts,
    summary,
    trend_table,
)


def markdown(judgement: Judgement, behaviours: Mapping[str, str]) -> str:
    """Return the page. `behaviours` says of each fault, by its name, what must be seen of it."""
    parts = [
        f"# Chaos run, seed {judgement.manifest.seed}",
        f"**{summary(judgement)}**",
        _table(run_facts(judgement), heading=False),
        _table(goal_table(judgement)),
        *_evidence(judgement),
        _table(fault_table(judgement, behaviours)),
        _table(phase_table(judgement)),
        _table(model_table(judgement)),
        _table(trend_table(judgement)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table, *, heading: bool = True) -> str:
    if not table.rows:
        return ""
    rules = ["--:" if place in table.figures else "---" for place in range(len(table.columns))]
    rows = [table.columns, rules, *([_cell(text) for text in row] for row in table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"## {table.title}\n", *lines] if heading else lines)


def _cell(text: str) -> str:
    """Keep a text within its cell, and from being taken for markup."""
    plain = " ".join(text.split())
    for sign in "\\`*_<>[]|":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _evidence(judgement: Judgement) -> Iterator[str]:
    if not judgement.verdict.missed:
        return
    yield "## What speaks against the goals that were missed"
    for goal in judgement.verdict.missed:
        yield _story(goal)


def _story(goal: Goal) -> str:
    more = goal.found - len(goal.evidence)
    lines = [f"### {goal.name}\n"]
    lines += [f"- {_cell(each.id)}: {_cell(each.what)}. {_cell(each.story)}" for each in goal.evidence]
    if more > 0:
        lines.append(f"- and {more:,} more")
    return "\n".join(lines)
