"""The results as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chaos.mutations.targets import TARGETS
from chaos.mutations.workbench import Caught


def table(results: Sequence[Caught]) -> str:
    """Return the page in Markdown."""
    by = Counter(each.detector for each in results if each.by)
    caught = ", ".join(f"{count} by the {name}" for name, count in by.most_common())
    lines = [
        f"{sum(by.values())} of {len(results)} are noticed: {caught or 'none'}.",
        "",
        "| function | what it promises | bug | in line | noticed by | which | s |",
        "|---|---|---|---:|---|---|---:|",
    ]
    for each in results:
        bug = each.mutant
        which = each.by.replace("|", "\\|") or "**nothing**"
        lines.append(
            f"| `{bug.function}` | {TARGETS.get(bug.function, '')} | {bug.operator} {bug.place} | {bug.line} |"
            f" {each.detector} | {which} | {each.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"
