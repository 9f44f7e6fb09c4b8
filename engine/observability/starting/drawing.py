"""Lines for a terminal: words with styles, cut to its width, and what it takes to draw them. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from engine.observability.terminals import Ability

Line = Sequence[tuple[str, str]]
"""Words, each with its style: empty, or one of `_STYLES`."""

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_ERASED: Final = "\r\x1b[J"  # from the cursor on
_WIDE: Final = "WF"


def columns(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def fitting(text: str, width: int, mark: str) -> str:
    """Return `text`, ending in `mark` where it is cut to fit into `width` columns."""
    if columns(text) <= width:
        return text
    room = width - columns(mark)
    taken = 0
    for at, character in enumerate(text):
        taken += _columns_of(character)
        if taken > room:
            return text[:at] + mark if width > 0 else ""
    return text


def padded(text: str, width: int, mark: str) -> str:
    """Return `text` as exactly `width` columns."""
    shown = fitting(text, width, mark)
    return shown + " " * (width - columns(shown))


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` as lines of at most `width` columns, broken at blanks where there are any."""
    room, lines = max(8, width), []
    while columns(text) > room:
        at = text.rfind(" ", 0, room + 1)
        at = at if at > room // 2 else max(1, len(fitting(text, room, "")))
        lines.append(text[:at])
        text = text[at:].lstrip(" ")
    return [*lines, text]


def painted(line: Line, ability: Ability) -> str:
    """Return a line with the escapes that give its words their styles, if the terminal has colours."""
    if not ability.colours:
        return "".join(words for words, _ in line)
    return "".join(f"\x1b[{_STYLES[style]}m{words}\x1b[0m" if style else words for words, style in line)


def redrawn(text: str, below: Sequence[str]) -> str:
    """Return what puts `text` above the lines `below`, in place of what was below before.

    The cursor is left at the begin of the first of those lines, and what another program writes there goes
    on above what is drawn next. That line had best be empty.
    """
    rows = "\n".join(below)
    back = f"\x1b[{len(below) - 1}A" if len(below) > 1 else ""
    return f"{_ERASED}{text}{rows}{back}\r" if below else f"{_ERASED}{text}"
