"""Help as wide as the terminal."""

from __future__ import annotations

import shutil
import textwrap
from typing import Final

_WIDEST: Final = 120  # longer lines are hard to read
_NARROWEST: Final = 40


def columns(width: int | None = None) -> int:
    """Return how wide help is: `width`, or the terminal, within reason."""
    found = width or shutil.get_terminal_size((100, 24)).columns
    return max(_NARROWEST, min(found, _WIDEST))


def filled(text: str, width: int, indent: str = "", first: str | None = None) -> str:
    """Return a paragraph in lines. Spaces that must not break are no-break spaces."""
    lines = textwrap.fill(
        text,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return lines.replace("\N{NO-BREAK SPACE}", " ") + "\n"
