"""What the client of a choice has been given, in four numbers: a count, and a checksum of each kind of text.

The server counts what it delivers, and a text worker that takes over counts what it makes of the same tokens.
Both count the same, in whatever pieces the text comes, unless the tokenizer is another one now. Ids of calls
don't count: each worker makes its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

_TOGETHER: Final = 64


class CallDelta(Protocol):
    """More of a call of a tool. The first delta of a call has its name."""

    @property
    def name(self) -> str:
        """The tool's name, or empty."""

    @property
    def arguments(self) -> str:
        """More of the arguments."""


class Delivered:
    """See the module."""

    __slots__ = ("_calls", "_characters", "_reasoning", "_text", "_uncounted")

    def __init__(self) -> None:
        self._characters = 0  # of text, reasoning and arguments
        self._text = self._reasoning = self._calls = 0
        self._uncounted: list[str] = []  # texts: each is short, and they are cheaper together

    def take(self, text: str, reasoning: str, calls: Iterable[CallDelta]) -> None:
        """More is given."""
        if text:
            self._uncounted.append(text)
            if len(self._uncounted) >= _TOGETHER:
                self._count()
        if reasoning:
            self._characters += len(reasoning)
            self._reasoning = crc32(reasoning.encode("utf-8", "surrogatepass"), self._reasoning)
        for delta in calls:
            named = f"\0{delta.name}\0{delta.arguments}" if delta.name else delta.arguments
            self._characters += len(delta.arguments)
            self._calls = crc32(named.encode("utf-8", "surrogatepass"), self._calls)

    def _count(self) -> None:
        text = "".join(self._uncounted)
        self._uncounted.clear()
        self._characters += len(text)
        self._text = crc32(text.encode("utf-8", "surrogatepass"), self._text)

    @property
    def characters(self) -> int:
        """How many characters of text, reasoning and arguments there are."""
        self._count()
        return self._characters

    @property
    def told(self) -> list[int]:
        """Its numbers, as a `restore` order has them."""
        return [self.characters, self._text, self._reasoning, self._calls]
