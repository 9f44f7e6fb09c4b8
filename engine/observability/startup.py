"""The tables a server prints when its models have been loaded (contract, repository.md section 12)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TextIO

from actors.values.interfaces import IndexEntry
from engine.observability.text import aligned, printable


def startup_text(models: Sequence[IndexEntry], options: Sequence[tuple[str, str]], *, terminal: bool) -> str:
    """Return the models with their states, and the options.

    They are drawn for a terminal, plain and aligned otherwise.

    Models that were never asked to load are counted, not listed: there may be thousands.
    """
    attempted = [entry for entry in models if entry.state or entry.reason]
    rows = [(entry.name, str(entry.version or "-"), _status(entry)) for entry in attempted]
    rest = _not_loaded(len(models) - len(attempted))
    out = io.StringIO()
    if terminal:
        _draw(rows, rest, options, out)
    else:
        _write(rows, rest, options, out)
    return out.getvalue()


def _status(entry: IndexEntry) -> str:
    state = entry.state or "UNAVAILABLE"
    if not entry.reason or state == "READY":
        return state
    # What follows its first line, such as the frames of a model's exception, is in the log.
    first = entry.reason.strip().partition("\n")[0]
    return f"{state}: {first}"


def _not_loaded(count: int) -> str:
    if not count:
        return ""
    return f"{count} more {'model is' if count == 1 else 'models are'} in the repositories, not loaded\n"


def _write(
    rows: Sequence[tuple[str, str, str]], rest: str, options: Sequence[tuple[str, str]], out: TextIO
) -> None:
    out.write(aligned([("Model", "Version", "Status"), *rows]))
    out.write(rest + "\n")
    out.write(aligned([("Option", "Value"), *options]))


def _draw(
    rows: Sequence[tuple[str, str, str]], rest: str, options: Sequence[tuple[str, str]], out: TextIO
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False, force_terminal=True)
    table = Table("Model", "Version", "Status", title="Models", title_justify="left")
    for name, version, status in rows:
        style = "green" if status == "READY" else "red"
        table.add_row(Text(printable(name), style="bold"), version, Text(printable(status), style=style))
    console.print(table)
    console.print(Text(rest), end="")
    table = Table("Option", "Value", title="Options", title_justify="left")
    for option, value in options:
        table.add_row(option, Text(printable(value)))
    console.print(table)
