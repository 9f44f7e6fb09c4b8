"""Bodies as JSON values: short ones at once, long ones in slices, each within bounds, and strictly.

A text that two parsers could read differently is refused: `NaN`, names that an object has twice, half a
surrogate pair, numbers that no float holds. What is refused costs no more than what is taken.

Ordinary parsers hold the loop until they are done, and make an object of each value: 64 MiB of `[]` take
seconds and gigabytes. So a long text is walked here, by a generator that yields every some tenths of a
millisecond (`actors.seams.slices`), with bounds on how much it may hold. Strings and long runs of whole
numbers, which are what makes honest bodies long, go through `orjson` in pieces of 16 KiB.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator
from typing import Any, Final, NoReturn

import orjson

from actors.values.generation.facts import BadAsk
from actors.values.tensors import Buffer
from protocols.kserve.text_pieces import IN_STRING, SPACE, end_of

SHORT: Final = 32 * 1024
"""Bytes of a text that is parsed at once: within five milliseconds, even where it is an attack."""

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 20_000
"""Values of a text that is read in slices, without those in runs of whole numbers.

All that an ask has goes to the text worker in one piece, which takes the loop some milliseconds then.
"""

MAX_NUMBERS: Final = 1024 * 1024
"""Whole numbers in such runs: token ids."""

MAX_STRING: Final = 4 * 1024 * 1024
"""Bytes of one string, as it stands in the text."""

MAX_STRINGS: Final = 8 * 1024 * 1024
"""Bytes of all strings together."""

PIECE: Final = 16 * 1024
"""Bytes of a string, of a run of numbers or of space that are read in one step."""

_VALUES_AT_ONCE: Final = 64
# An escape is at most a pair of surrogates: `\ud83d\ude00`.
_LONGEST_ESCAPE: Final = 12
_LONGEST_NUMBER: Final = 400
# Fewer whole numbers than fill so many bytes are read one by one.
_RUN: Final = 64

_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?([eE][+-]?[0-9]++)?")
_NUMBERS: Final = re.compile(rb"[0-9, \t\n\r-]*+")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_WORDS: Final = ((b"true", True), (b"false", False), (b"null", None))
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BRACE, _END_BRACE = b'",:[]{}'
_OPENED: Final = object()
Reading = Generator[None, None, Any]


def refuse(what: str) -> NoReturn:
    """Raise BadAsk for a body that can't be read."""
    raise BadAsk(f"the body is no JSON that can be read: {what}", reason="invalid_json")


def _too_many(what: str) -> NoReturn:
    raise BadAsk(f"the body has more than {what}", reason="request_too_large")


def parse(body: Buffer) -> Any:
    """Return the value of a text of at most `SHORT` bytes. Raises BadAsk."""
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        refuse(f"it is not UTF-8 at byte {error.start}")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        refuse(f"{error.msg} at byte {len(text[: error.pos].encode())}")
    except RecursionError:
        refuse(_DEEP)
    if _SURROGATE.search(text) is not None:
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            refuse(f"{error.msg} at byte {len(text[: error.pos].encode())}")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


_DEEP: Final = f"it nests more than {MAX_DEPTH} levels deep"


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        if depth > MAX_DEPTH:
            refuse(_DEEP)
        level = [inner for each in level for inner in (each.values() if type(each) is dict else each)]


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((again, _),) = Counter(name for name, _ in pairs).most_common(1)
        _refuse_again(again)
    return members


def _refuse_again(name: str) -> NoReturn:
    refuse(f"an object has the name '{name[:80]}' twice")


def _whole(digits: str) -> int:
    if len(digits) > 20:
        refuse(f"the number {digits[:24]}... is longer than 64 bits hold")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if value in _INFINITE:
        refuse(f"no float holds the number {digits[:24]}")
    return value


def _no_word(word: str) -> NoReturn:
    refuse(f"{word} is no number of JSON")


_INFINITE: Final = (float("inf"), float("-inf"))
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_whole, parse_float=_real, parse_constant=_no_word
)


class _Open:
    """An array or object whose end has not come. `key` is the name of the member that comes next."""

    __slots__ = ("close", "key", "value")

    def __init__(self, value: list[Any] | dict[str, Any], close: int) -> None:
        self.value = value
        self.close = close
        self.key = ""

    def add(self, value: Any) -> None:
        if type(self.value) is list:
            self.value.append(value)
        else:
            assert type(self.value) is dict, "what is no array is an object"
            self.value[self.key] = value


class LongDocument:
    """Reads one long text."""

    def __init__(self, text: Buffer) -> None:
        self._text = memoryview(text)
        self._size = len(self._text)
        self._at = 0
        self._values = 0
        self._numbers = 0
        self._strings = 0

    def value(self) -> Reading:
        """Return the text's value. Yields every some tenths of a millisecond. Raises BadAsk."""
        opened: list[_Open] = []
        while True:
            value = yield from self._begin(opened)
            if value is _OPENED:
                continue
            while opened:
                opened[-1].add(value)
                if (yield from self._goes_on(opened[-1])):
                    break
                value = opened.pop().value
            else:
                break
        yield from self._skip_space()
        if self._at < self._size:
            self._refuse("something follows its value")
        return value

    @property
    def at(self) -> int:
        """How many bytes have been read."""
        return self._at

    def _refuse(self, what: str) -> NoReturn:
        refuse(f"{what} at byte {self._at}")

    def _here(self) -> int:
        return self._text[self._at] if self._at < self._size else 0

    def _skip_space(self) -> Reading:
        while True:
            limit = self._at + PIECE
            self._at = end_of(SPACE, self._text, self._at, limit)
            if self._at < limit:
                return
            yield

    def _begin(self, opened: list[_Open]) -> Reading:
        """Read a value that is no array or object, or an empty one; or open one."""
        self._values += 1
        if self._values > MAX_VALUES:
            _too_many(f"{MAX_VALUES} values")
        if self._values % _VALUES_AT_ONCE == 0:
            yield
        yield from self._skip_space()
        match self._here():
            case 0x22:
                return (yield from self._string())
            case 0x5B:
                return (yield from self._open(_Open([], _CLOSE), opened))
            case 0x7B:
                return (yield from self._open(_Open({}, _END_BRACE), opened))
        return self._plain()

    def _open(self, new: _Open, opened: list[_Open]) -> Reading:
        if len(opened) >= MAX_DEPTH:
            refuse(_DEEP)
        self._at += 1
        yield from self._skip_space()
        if self._here() == new.close:
            self._at += 1
            return new.value
        if type(new.value) is list:
            if (yield from self._run(new.value)):
                return new.value
        else:
            yield from self._name(new)
        opened.append(new)
        return _OPENED

    def _goes_on(self, container: _Open) -> Reading:
        """Read what follows a value in `container`. Return whether another one does."""
        yield from self._skip_space()
        here = self._here()
        if here == container.close:
            self._at += 1
            return False
        if here != _COMMA:
            self._refuse(f"',' or '{chr(container.close)}' is missing")
        self._at += 1
        if container.close == _END_BRACE:
            yield from self._skip_space()
            yield from self._name(container)
        return True

    def _name(self, container: _Open) -> Reading:
        if self._here() != _QUOTE:
            self._refuse("the name of a member is missing")
        name = yield from self._string()
        if name in container.value:
            _refuse_again(name)
        container.key = name
        yield from self._skip_space()
        if self._here() != _COLON:
            self._refuse("':' is missing")
        self._at += 1

    def _plain(self) -> Any:
        for word, meaning in _WORDS:
            if self._text[self._at : self._at + len(word)] == word:
                self._at += len(word)
                return meaning
        found = _NUMBER.match(self._text, self._at, self._at + _LONGEST_NUMBER)
        if found is None:
            self._refuse("a value is missing" if self._at == self._size else "there is no value of JSON")
        digits = str(found[0], "ascii")
        value = _whole(digits) if found[1] is None and found[2] is None else _real(digits)
        self._at = found.end()
        return value

    def _run(self, values: list[Any]) -> Reading:
        """Read the whole numbers that an array begins with, if they are many. Return whether it ends there.

        What follows them is left to be read one by one.
        """
        while True:
            end = end_of(_NUMBERS, self._text, self._at, self._at + PIECE)
            whole = self._text[end] == _CLOSE if end < self._size else False
            piece = bytes(self._text[self._at : end])
            if not whole:
                piece = piece[: piece.rfind(b",") + 1]
            if len(piece) < _RUN and not (values and whole):
                return False
            values += self._whole_numbers(piece if whole else piece[:-1])
            self._numbers = self._numbers + piece.count(b",") + 1
            if self._numbers > MAX_NUMBERS:
                _too_many(f"{MAX_NUMBERS} whole numbers in its lists")
            self._at += len(piece)
            if whole:
                self._at += 1
                return True
            yield

    def _whole_numbers(self, piece: bytes) -> list[Any]:
        try:
            numbers: list[Any] = orjson.loads(b"[%b]" % piece)
        except orjson.JSONDecodeError as error:
            self._at += max(error.pos - 1, 0)
            self._refuse("a list of numbers is broken")
        if float in set(map(type, numbers)):
            refuse("a number is longer than 64 bits hold")
        return numbers

    def _string(self) -> Reading:
        """Return the string that begins here. It is read in pieces that end between two characters."""
        start = self._at
        self._at += 1
        pieces: list[str] = []
        while True:
            before = self._at
            limit = min(before + PIECE, self._size)
            end = end_of(IN_STRING, self._text, before, limit)
            closed = end < self._size and self._text[end] == _QUOTE
            if not closed:
                if end < limit - _LONGEST_ESCAPE or limit == self._size:
                    self._at = end
                    self._refuse("a string has no end, or a character or escape that JSON does not know")
                while end > before and self._text[end] & 0xC0 == 0x80:
                    end -= 1
            pieces.append(self._decoded(before, end))
            self._at = end
            if self._at - start > MAX_STRING:
                _too_many(f"{MAX_STRING} bytes in a string")
            if closed:
                break
            yield
        self._at += 1
        self._strings += self._at - start
        if self._strings > MAX_STRINGS:
            _too_many(f"{MAX_STRINGS} bytes in its strings together")
        return pieces[0] if len(pieces) == 1 else "".join(pieces)

    def _decoded(self, start: int, end: int) -> str:
        try:
            text: str = orjson.loads(b'"%b"' % bytes(self._text[start:end]))
        except orjson.JSONDecodeError:
            self._at = start
            self._refuse("a string is not UTF-8")
        return text
