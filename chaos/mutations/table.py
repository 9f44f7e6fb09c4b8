"""The results as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chaos.mutations.workbench import Caught


def table(results: Sequence[Caught]) -> str:
    """Return the page in Markdown."""
    by = Counter(each.detector for each in results if each.by)
    caught = ", ".join(f"{count} by the {name}" for name, count in by.most_common())
    lines = [
        "# Bugs put in on purpose",
        "",
        "Each is put into a copy of the project by itself; then the state machines, a hundred seeds of the simulation and a chaos run",
        "of two minutes, of what befalls workers, are set on it, in this order, until one notices. `python -m chaos.mutations --report FILE` made this page.",
        "",
        f"{sum(by.values())} of {len(results)} are noticed: {caught or 'none'}.",
        "",
        "| bug | what is wrong then | in | noticed by | which | s |",
        "|---|---|---|---|---|---:|",
    ]
    for each in results:
        bug = each.mutation
        which = each.by.replace("|", "\\|") or "**nothing**"
        lines.append(
            f"| `{bug.name}` | {bug.breaks} | `{bug.file}` | {each.detector} | {which} | {each.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"
