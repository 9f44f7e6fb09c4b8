"""What a tokenizer's ids stand for: their texts, their bytes, and which of them are special. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from engine.worker.text.decoding import ByteDecoder, WindowDecoder
from engine.worker.text.spelling import OTHER, Spelling, bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

Decoder = Union[ByteDecoder, WindowDecoder]


class Vocabulary:
    """The tokens of one tokenizer by their ids."""

    def __init__(
        self,
        ids: Mapping[str, int],
        *,
        spelling: Spelling,
        special: Collection[int],
        eos: Sequence[int],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """`decode` gives the text of ids, special ones as well. `special` are left out of texts."""
        self.size = 1 + max(ids.values(), default=-1)
        self.spelling = spelling
        self.special = frozenset(special)
        self.eos = frozenset(eos)
        self.strings: list[str] = [""] * self.size
        for text, token in ids.items():
            self.strings[token] = text
        self._decode = decode
        self._table: list[bytes] = []
        if spelling.kind != OTHER:
            self._table = [bytes_of(text, spelling) for text in self.strings]
        self._by_text = {text: ids[text] for text in ids if ids[text] in self.special}

    @property
    def longest(self) -> int:
        """The bytes of the longest token; 0 where tokens have none of their own."""
        return max(map(len, self._table), default=0)

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        """Return the ids of those of `texts` that are special tokens."""
        return frozenset(self._by_text[text] for text in texts if text in self._by_text)

    def decoder(self, *, skipped: Collection[int] = (), beginning: bool = False) -> Decoder:
        """Return a decoder of one text. `beginning`: nothing is before it, so it has no space in front."""
        if self._table:
            dropped = self.spelling.dropped if beginning else 0
            return ByteDecoder(self._table, skipped=skipped, dropped=dropped)
        return WindowDecoder(self._decode, skipped=skipped)

    def text(self, ids: Sequence[int], *, skipped: Collection[int] = ()) -> str:
        """Return the text of ids that are a whole text."""
        decoder = self.decoder(skipped=skipped, beginning=True)
        return decoder.feed(ids) + decoder.end()

    def data(self, token: int) -> bytes:
        """Return the bytes of one token; none for an id that there is no token for."""
        if not 0 <= token < self.size:
            return b""
        return self._table[token] if self._table else self._decode([token]).encode("utf-8", "replace")
