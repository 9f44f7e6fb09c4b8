"""What tool parsers tell: content, and calls whose arguments come as they are generated. Pure."""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_LETTERS: Final = string.ascii_letters + string.digits


class Delta(NamedTuple):
    """More of a call, in the order of `ToolDelta`. The first has `id` and `name`."""

    call: int
    id: str
    name: str
    arguments: str


def long_id() -> str:
    """Return an id for a call, as OpenAI's are."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Return an id of nine letters and digits, which Mistral's templates ask for."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


class Told:
    """Gathers what a parser tells. Spaces around calls are no content."""

    __slots__ = ("_content", "_deltas", "_make_id", "_parallel", "_spaces", "calls")

    def __init__(self, *, parallel: bool = True, make_id: Callable[[], str] = long_id) -> None:
        """Without `parallel`, calls behind the first are dropped."""
        self.calls = 0
        self._parallel = parallel
        self._make_id = make_id
        self._content: list[str] = []
        self._spaces = ""
        self._deltas: list[Delta] = []

    def content(self, text: str) -> None:
        """Tell of plain text."""
        if not text:
            return
        text = self._spaces + text
        certain = len(text.rstrip())
        # So many at a time, in whatever pieces they come.
        certain += (len(text) - certain) // _MOST_SPACES * _MOST_SPACES
        self._content.append(text[:certain])
        self._spaces = text[certain:]

    def call(self, name: str) -> None:
        """Tell that a call begins."""
        self._spaces = ""
        self.calls += 1
        if self.calls == 1 or self._parallel:
            self._deltas.append(Delta(self.calls - 1, self._make_id(), name, ""))

    def arguments(self, text: str) -> None:
        """Tell more of the arguments of the last call."""
        if not text or (self.calls > 1 and not self._parallel):
            return
        if self._deltas and self._deltas[-1].call == self.calls - 1:
            last = self._deltas[-1]
            self._deltas[-1] = last._replace(arguments=last.arguments + text)
        else:
            self._deltas.append(Delta(self.calls - 1, "", "", text))

    def take(self, *, end: bool = False) -> tuple[str, list[Delta]]:
        """Return what was told since the last time. At the `end`, spaces are content if there was no call."""
        if end and not self.calls:
            self._content.append(self._spaces)
            self._spaces = ""
        content, deltas = "".join(self._content), self._deltas
        self._content, self._deltas = [], []
        return content, deltas


_MOST_SPACES: Final = 256
"""Spaces that are held back. More of them are content: a model may say nothing else for ever."""
