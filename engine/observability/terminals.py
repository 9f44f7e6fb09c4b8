"""What the place that text goes to can show: colours, our marks, a picture that is drawn over."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from engine.observability.text import spelt_out

_DUMB: Final = frozenset({"", "dumb", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Signs of one column each."""

    dot: str
    done: str
    failed: str
    opened: str
    closed: str
    cut: str
    line: str
    keys: str  # the names of the keys that move up and down


FINE: Final = Marks(
    dot="●", done="✓", failed="✗", opened="▾", closed="▸", cut="…", line="─", keys="↑↓ select  →← open, close"
)
ASCII: Final = Marks(
    dot="*",
    done="+",
    failed="x",
    opened="v",
    closed=">",
    cut="~",
    line="-",
    keys="arrows: select, open, close",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """What a terminal does. `draws`: it moves the cursor where it is told. `wide`: it has more than ASCII."""

    draws: bool
    colours: bool
    wide: bool

    @property
    def marks(self) -> Marks:
        """The signs that it has."""
        return FINE if self.wide else ASCII

    def shown(self, text: str) -> str:
        """Return text of others as this terminal can show it."""
        return spelt_out(text, ascii_only=not self.wide)


NOTHING: Final = Ability(draws=False, colours=False, wide=True)
"""Of a pipe or a file in UTF-8."""


def ability_of(stream: TextIO, environ: Mapping[str, str]) -> Ability:
    """Return what `stream` can show. `NO_COLOR` and a `TERM` of `dumb` are obeyed."""
    draws = stream.isatty() and environ.get("TERM", "") not in _DUMB
    return Ability(
        draws=draws,
        colours=draws and not environ.get("NO_COLOR"),
        wide=_is_unicode(stream.encoding or "ascii"),
    )


def _is_unicode(encoding: str) -> bool:
    try:
        return codecs.lookup(encoding).name.startswith("utf")
    except LookupError:
        return False
