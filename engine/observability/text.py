"""Plain text for pipes, and names that are safe to show on a terminal."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

PLAINER: Final = "tritium"
"""The error handler of encodings that lack our marks: they become plain ones, and the rest is spelt out."""

_PLAIN_MARKS: Final = {
    "✓": "+",
    "✗": "x",
    "○": "o",
    "●": "*",
    "▸": ">",
    "▾": "v",
    "…": "...",
    "·": ".",
    "–": "-",
    "—": "-",
    "×": "x",
    "│": "|",
    "├": "|",
    "─": "-",
    "└": "`",
    "→": "->",
    "\N{NO-BREAK SPACE}": " ",
}


def _plainer(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return what stands for a character that an encoding lacks: for a mark of ours a plain one."""
    if not isinstance(error, UnicodeEncodeError):
        return codecs.backslashreplace_errors(error)
    # One at a time: a mark may stand behind a character that is none.
    character = error.object[error.start]
    plain = _PLAIN_MARKS.get(character)
    return plain or character.encode("ascii", "backslashreplace").decode("ascii"), error.start + 1


codecs.register_error(PLAINER, _plainer)


def spelt_out(text: str, *, ascii_only: bool) -> str:
    """Return `text` as `printable` does; with `ascii_only`, what is not ASCII is spelt out as well."""
    shown = printable(text)
    return shown.encode("ascii", PLAINER).decode("ascii") if ascii_only else shown


def printable(text: str) -> str:
    """Return `text` with what a terminal might obey (escapes, line breaks, half characters) spelt out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines whose columns start at the same place; the last column is not padded."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def duration(seconds: float) -> str:
    """Return a duration in the one or two units that matter: `3.2s`, `4m 10s`, `2h 5m`, `3d 4h`."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    for size, unit, below, lower in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // below}{lower}"
    raise AssertionError("a minute or more has a unit")
