"""A run as one page of HTML that needs nothing else: no script, no style sheet, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

from chaos.checker.goals import Goal
from chaos.checker.judge import Judgement
from chaos.report.drawings import resources, timeline
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
from chaos.report.style import SHEET

_KEY: Final = (
    ("worker", "fault: a worker is killed"),
    ("hang", "fault: a hang"),
    ("actor", "fault: an actor crashes"),
    ("supervisor", "fault: a supervisor crashes"),
    ("other", "fault: another"),
    ("good", "good answers"),
    ("sent", "sent"),
    ("errors", "errors"),
    ("silent", "no answer"),
    ("bad", "an error that nothing excuses"),
    ("p50", "p50"),
    ("p99", "p99, dashed"),
)
_WORDS: Final = {"reached": "reached", "MISSED": "missed", "not measured": "unmeasured"}


def page(judgement: Judgement, behaviours: Mapping[str, str]) -> str:
    """Return the page. `behaviours` says of each fault, by its name, what must be seen of it."""
    name = f"Chaos run, seed {judgement.manifest.seed}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(name)}</title><style>{SHEET}</style></head><body>",
            *_body(name, judgement, behaviours),
            "</body></html>",
            "",
        ]
    )


def _body(name: str, judgement: Judgement, behaviours: Mapping[str, str]) -> Iterator[str]:
    kind = "reached" if judgement.verdict.passed else "missed"
    yield f'<h1>{escape(name)}</h1><p class="verdict {kind}">{escape(summary(judgement))}</p>'
    yield "<h2>Timeline</h2>"
    yield '<p class="soft">Point at a fault, or at a second, to read what happened.</p>'
    yield _key()
    yield f'<div class="scroll">{timeline(judgement)}</div>'
    yield _table(goal_table(judgement))
    yield from _evidence(judgement)
    yield _table(fault_table(judgement, behaviours))
    yield _table(phase_table(judgement))
    yield _table(model_table(judgement))
    if judgement.samples:
        yield "<h2>What the server takes</h2>"
        yield f'<div class="scroll">{resources(judgement.samples, judgement)}</div>'
        yield _table(trend_table(judgement))
    yield _table(run_facts(judgement))


def _key() -> str:
    items = "".join(
        f'<li><i style="background: var(--{colour})"></i>{escape(words)}</li>' for colour, words in _KEY
    )
    return f'<ul class="key">{items}</ul>'


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(
        f'<th scope="col"{_class(table, place)}>{escape(name)}</th>'
        for place, name in enumerate(table.columns)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_class(table, place, cell)}>{escape(cell)}</td>" for place, cell in enumerate(row))
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _class(table: Table, place: int, cell: str = "") -> str:
    named = [
        *(["figure"] if place in table.figures else []),
        *([_WORDS[cell]] if cell in _WORDS and table.title == "Goals" else []),
    ]
    return f' class="{" ".join(named)}"' if named else ""


def _evidence(judgement: Judgement) -> Iterator[str]:
    if not judgement.verdict.missed:
        return
    yield "<h2>What speaks against the goals that were missed</h2>"
    for goal in judgement.verdict.missed:
        yield _story(goal)


def _story(goal: Goal) -> str:
    items = [
        f"<li><b>{escape(each.id)}</b>: {escape(each.what)}. {escape(each.story)}</li>"
        for each in goal.evidence
    ]
    more = goal.found - len(goal.evidence)
    if more > 0:
        items.append(f"<li>and {more:,} more</li>")
    return f"<h3>{escape(goal.name)}</h3><ul>{''.join(items)}</ul>"
