"""Speaks to a person: progress on standard error, tables on standard output.

It uses rich on a terminal, and plain text in a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.report import Table, plain


class Terminal:
    """A context: while it lasts, the current step is shown and results scroll by above it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("starting")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._status.stop()

    def step(self, text: str) -> None:
        """Say what is being done now, on a terminal only, because the line is erased again."""
        if self._console.is_terminal:
            self._status.update(Text(text))

    def result(self, text: str) -> None:
        """Print a line."""
        if self._console.is_terminal:
            self._console.print(Text(text))
        else:
            print(text, file=sys.stderr, flush=True)


def _rich(table: Table) -> RichTable:
    rich = RichTable(title=table.title, title_justify="left")
    for index, column in enumerate(table.columns):
        rich.add_column(column, justify="left" if index < table.words else "right")
    for row in table.rows:
        rich.add_row(*map(Text, row))
    return rich


def show(tables: Sequence[Table]) -> None:
    """Print tables to standard output. They are plain if the window is too narrow for a frame, too."""
    console = Console(highlight=False)
    for table in tables:
        rich = _rich(table)
        if console.is_terminal and console.measure(rich).maximum <= console.width:
            console.print(rich)
        else:
            print(plain(table), end="\n\n", flush=True)
