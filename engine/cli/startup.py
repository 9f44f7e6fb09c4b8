"""The tables a server prints when its models have been loaded (contract, repository.md section 12)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TextIO

from actors.interfaces import IndexEntry
from engine.cli.text import aligned, printable


def startup_table(
    models: Sequence[IndexEntry], options: Sequence[tuple[str, str]], *, file: TextIO | None = None
) -> None:
    """Print the models with their states, and the options: drawn on a terminal, plain and aligned elsewhere.

    A reader that went away costs the tables and nothing else.
    """
    out = sys.stdout if file is None else file
    rows = [(entry.name, str(entry.version or "-"), _status(entry)) for entry in models]
    with contextlib.suppress(OSError, ValueError):
        if out.isatty():
            _draw(rows, options, out)
        else:
            _write(rows, options, out)
        out.flush()


def _status(entry: IndexEntry) -> str:
    state = entry.state or "UNAVAILABLE"
    return f"{state}: {entry.reason}" if entry.reason and state != "READY" else state


def _write(rows: Sequence[tuple[str, str, str]], options: Sequence[tuple[str, str]], out: TextIO) -> None:
    out.write(aligned([("Model", "Version", "Status"), *rows]))
    out.write("\n")
    out.write(aligned([("Option", "Value"), *options]))


def _draw(rows: Sequence[tuple[str, str, str]], options: Sequence[tuple[str, str]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False)
    table = Table("Model", "Version", "Status", title="Models", title_justify="left")
    for name, version, status in rows:
        style = "green" if status == "READY" else "red"
        table.add_row(Text(printable(name), style="bold"), version, Text(printable(status), style=style))
    console.print(table)
    table = Table("Option", "Value", title="Options", title_justify="left")
    for option, value in options:
        table.add_row(option, Text(printable(value)))
    console.print(table)
