"""Text of token ids as they come: whole characters only, and the same text as of all ids at once. Pure."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_UNKNOWN: Final = "�"
_DECODER: Final = codecs.getincrementaldecoder("utf-8")

MOST_HELD: Final = 8
"""Ids that may wait for those that complete their character. No character takes more tokens than bytes."""


class ByteDecoder:
    """Decodes ids by a table of their bytes. Ids that are not in the table have no text."""

    __slots__ = ("_decoder", "_dropped", "_skipped", "_table")

    def __init__(self, table: Sequence[bytes], *, skipped: Collection[int] = (), dropped: int = 0) -> None:
        """Of the spaces at the beginning, `dropped` are left out; -1: all that the first token has."""
        self._table = table
        self._skipped = skipped
        self._dropped = dropped
        self._decoder = _DECODER("replace")

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        table, skipped, size = self._table, self._skipped, len(self._table)
        if len(ids) == 1:
            token = ids[0]
            found = table[token] if 0 <= token < size and token not in skipped else b""
        elif self._dropped:
            return "".join([self.feed((token,)) for token in ids])
        else:
            found = b"".join([table[token] for token in ids if 0 <= token < size and token not in skipped])
        if self._dropped and found:
            found = self._without_spaces(found)
        return self._decoder.decode(found)

    def _without_spaces(self, found: bytes) -> bytes:
        if self._dropped < 0:
            self._dropped = 0
            return found.replace(b" ", b"")
        left = found.lstrip(b" ")
        taken = min(self._dropped, len(found) - len(left))
        self._dropped = self._dropped - taken if taken == len(found) else 0
        return found[taken:]

    def end(self) -> str:
        """Return what stands for the bytes of a character that will not be completed."""
        return self._decoder.decode(b"", final=True)


class WindowDecoder:
    """Decodes ids by a function that decodes a whole text, of which it is shown the last few ids.

    The function's text of ids must begin with its text of the first of them, but for a character that they
    don't complete: `�` at the end.
    """

    __slots__ = ("_decode", "_ids", "_read", "_shown", "_skipped")

    def __init__(self, decode: Callable[[Sequence[int]], str], *, skipped: Collection[int] = ()) -> None:
        self._decode = decode
        self._skipped = skipped
        self._ids: list[int] = []
        self._read = 0  # of the ids, those whose text has been returned
        self._shown = ""  # their text

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        return "".join([self._one(token) for token in ids if token not in self._skipped])

    def _one(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith(_UNKNOWN) and len(self._ids) - self._read < MOST_HELD:
            return ""
        return self._taken(text)

    def _taken(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._shown = self._decode(self._ids)
        return new

    def end(self) -> str:
        """Return what stands for the bytes of a character that will not be completed."""
        return self._taken(self._decode(self._ids)) if len(self._ids) > self._read else ""
