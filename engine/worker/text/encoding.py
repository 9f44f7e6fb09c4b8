"""Token ids of texts, within bounds.

Making tokens takes time and memory by the length of a text, so a text that is far too long is refused before
that: by its characters, where it is certain that they can't fit, or else once some of its parts have too
many. Where a tokenizer never joins what a space between letters divides, a long text is made into tokens part
by part, which takes a hundredth of the memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from actors.values.generation.context import too_long
from engine.worker.text.refusing import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engine.worker.text.loading import Loaded

PART: Final = 32 * 1024
"""Characters of a text that are counted at a time."""

_LONG_PART: Final = 8 * PART  # characters of a part that has no place to be cut at

_SURE: Final = 4
"""Characters a token: a text that is no longer than so many for each token allowed is not counted first."""

_CUT: Final = 2  # tokens by which a cut may change the count

LONGEST: Final = 32 * 1024 * 1024
"""Characters of a text, where no number of tokens bounds it."""

_WORD_END: Final = re.compile(r"[^\W\d_](?= [^\W\d_])")


class TooLong(Refused):
    """A prompt has more tokens than the model's context."""


def _too_long(limit: int, count: str, *, param: str = "") -> TooLong:
    return TooLong(too_long(limit, count), param=param)


class Encoder:
    """Makes ids of the texts of one request."""

    def __init__(self, loaded: Loaded, *, limit: int, param: str, context: int = 0) -> None:
        """`limit`: a prompt of more tokens is refused; 0: there is no limit.

        Refusals name `param`, and `context` in place of the limit where that is given.
        """
        self._loaded = loaded
        self._limit = limit
        self._context = context or limit
        self._param = param

    def encode(self, text: str, *, special: bool, truncate: int | None = None) -> list[int]:
        """Return the ids of a text, its last `truncate` ones if that is given. Raises Refused."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Refused(f"A text that is no Unicode: {error.reason}", param=self._param) from error
        if truncate is not None:
            text = self._end_of(text, truncate)
        else:
            self._check_length(text)
        if len(text) > PART and self._loaded.divisible:
            before, after = self._around() if special else ([], [])
            ids = [*before, *self._of_parts(text, bounded=truncate is None), *after]
        else:
            ids = self._whole(text, special=special)
        return self.given(ids, truncate=truncate)

    def _whole(self, text: str, *, special: bool) -> list[int]:
        try:
            ids: list[int] = self._loaded.tokenizer.encode(text, add_special_tokens=special).ids
        except Exception as error:  # tokenizers raises bare ones
            raise Refused(f"The tokenizer refuses this text: {error}", param=self._param) from error
        return ids

    def _around(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that come before a text, and behind it."""
        bare, whole = self._whole("a", special=False), self._whole("a", special=True)
        before = next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
        return whole[:before], whole[before + len(bare) :]

    def _of_parts(self, text: str, *, bounded: bool) -> list[int]:
        ids: list[int] = []
        for part in _parts(text):
            if bounded and len(part) > _LONG_PART:
                self._count(part, len(ids))
            ids += self._whole(part, special=False)
            if bounded and self._limit and len(ids) > self._limit:
                raise _too_long(self._context, f"at least {len(ids)}", param=self._param)
        return ids

    def given(self, ids: Sequence[int], *, truncate: int | None = None) -> list[int]:
        """Return ids that are a prompt, checked. Raises Refused."""
        found = list(ids)
        if truncate is not None:
            found = found[len(found) - truncate :] if truncate < len(found) else found
        if self._limit and len(found) > self._limit:
            raise _too_long(self._context, str(len(found)), param=self._param)
        return found

    def checked(self, ids: Sequence[Any]) -> list[int]:
        """Return a client's ids. Raises Refused for those that the model has no token for."""
        size = self._loaded.size
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
                raise Refused(
                    f"Token id {token!r} is out of vocabulary: this model's are 0 to {size - 1}",
                    param=self._param,
                )
        return list(ids)

    def _end_of(self, text: str, tokens: int) -> str:
        """Return the end of a text that has its last `tokens` tokens, as vLLM cuts it."""
        most = max(tokens, 1) * (self._loaded.longest or 64)
        return text[-most:] if len(text) > most else text

    def _count(self, text: str, count: int) -> None:
        """Refuse a text that has too many tokens behind `count` others; of a few too many that isn't seen."""
        for at in range(0, len(text) if self._limit else 0, PART):
            part = text[at : at + PART]
            count += max(len(self._whole(part, special=False)) - _CUT, 0)
            if count > self._limit:
                raise _too_long(self._context, f"at least {count}", param=self._param)

    def _check_length(self, text: str) -> None:
        limit, size, longest = self._limit, len(text), self._loaded.longest
        if limit and size <= limit * _SURE:
            return
        if limit and longest and size > limit * longest:
            raise _too_long(self._context, f"at least {-(-size // longest)}", param=self._param)
        if size > LONGEST:
            raise Refused(f"A text of {size} characters: there may be {LONGEST}", param=self._param)
        if not self._loaded.divisible:
            self._count(text, 0)


def _parts(text: str) -> Iterator[str]:
    """Yield a text in parts, which end between two words: a letter, and a space with a letter behind it."""
    at, size = 0, len(text)
    while at < size:
        end = min(at + PART, size)
        if end < size:
            found = _WORD_END.search(text, end)
            end = found.end() if found is not None else size
        yield text[at:end]
        at = end
