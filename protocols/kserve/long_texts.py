"""Read long JSON texts in slices, without making objects of values that become a tensor.

A parser that makes an object of each value of a text needs up to 24 times its bytes. It also holds the loop
until it is done. 16 MiB of numbers take 0.3 s and 128 MiB in `orjson`, 0.2 s and 80 MiB in `msgspec`.
`msgspec.Raw` and `simdjson` still look at an array of numbers in one piece (0.05 and 0.15 s), and neither
knows NaN. `orjson` on pieces of 16 KiB, each cut at a comma, takes 0.15 s altogether, no memory and 0.2 ms at
a time. So this module works with such pieces.

There are two ways through a text. The values around the tensors are walked one by one; there may be
`MAX_VALUES` of them. An array whose first element is no object takes the fast lane: it is cut into pieces,
each is parsed by itself, and its elements are handed to a `Taker`, in order and without their nesting. Only a
`LongArray` is kept of it.

All of this is done by generators, which yield after every piece of work that takes some tenths of a
millisecond; see `actors.seams.slices`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NoReturn, Protocol

from actors.values.errors import InvalidArgument
from actors.values.tensors import Buffer
from protocols.kserve.caps import MAX_NAME
from protocols.kserve.documents import MAX_DEPTH, refuse, too_deep
from protocols.kserve.faults import SAID_OF_ARRAY, SAID_OF_OBJECT, Fault, locate_fault
from protocols.kserve.text_pieces import (
    IN_STRING,
    SPACE,
    end_of,
    flat,
    liberal,
    packed_strings,
    resolved,
    survey,
    text_of,
)

# Values and names of members outside arrays of plain values. A request names each input in some ten of them.
MAX_VALUES: Final = 16_384
# Bytes of a string that becomes a `str`; a longer one is a `LongString`.
MAX_STRING: Final = 256 * 1024
_STRINGS_TOGETHER: Final = 4 * MAX_STRING

_PIECE: Final = 16 * 1024
_PACKED_PIECE: Final = 32 * 1024
# Pieces that are read in the usual way before strings are packed again, where they could not be.
_PACKED_LEFT_OUT: Final = 8
_STRING_PIECE: Final = 16 * 1024
_SPACE_PIECE: Final = 64 * 1024
_VALUES_AT_ONCE: Final = 64
# No program writes longer numbers: the longest exact double has some 770 digits.
_LONGEST_NUMBER: Final = 4096
# Values that an object within a tensor's data counts as: each is
# searched for in a piece that was read before.
_PRICE_OF_OBJECT: Final = 15
_SMALL_ARRAY: Final = 1024

_BEFORE_FIRST: Final = re.compile(rb"[\[ \t\n\r]*+")
_FLAT: Final = re.compile(rb'\[[^\[\]{}"]*\]')
_SCALAR: Final = re.compile(
    rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null|-?NaN|-?Inf(?:inity)?"
)
_QUOTE, _COMMA, _OPEN, _CLOSE, _BRACE, _END_BRACE = b'",[]{}'
_COLON: Final = ord(":")


class Taker(Protocol):
    """Takes the elements of an array, in order. `seen` counts them."""

    seen: int
    # Whether `take_packed` may be called.
    packs_strings: bool

    def take(self, elements: list[Any], kinds: set[type]) -> None:
        """Take elements: numbers, booleans, strings, None; a dict stands for any object.

        `kinds` are all of their types; there may be one more, int.
        """

    def take_string(self, pieces: Iterator[bytes]) -> Generator[None, None, None]:
        """Take one long string, its bytes in pieces. Yields after each of them."""

    def take_packed(self, packed: Buffer, count: int) -> bool:
        """Take `count` strings as a BYTES tensor has them; False where `take` must be given them."""

    def too_deep(self) -> InvalidArgument:
        """Return the error for an array that nests too deep."""


class CountingTaker:
    """Takes elements only to count them."""

    packs_strings = True

    def __init__(self) -> None:
        self.seen = 0

    def take(self, elements: list[Any], kinds: set[type]) -> None:  # a Taker's
        """See `Taker`."""
        self.seen += len(elements)

    def take_string(self, pieces: Iterator[bytes]) -> Generator[None, None, None]:  # a Taker's
        """See `Taker`."""
        self.seen += 1
        yield

    def take_packed(self, packed: Buffer, count: int) -> bool:  # a Taker's
        """See `Taker`."""
        self.seen += count
        return True

    def too_deep(self) -> InvalidArgument:
        """See `Taker`."""
        return too_deep()


class LongArray:
    """An array in a text, or a long string in the place of one, and the taker of its elements.

    `length` counts its own elements, whether they are arrays or not.
    """

    __slots__ = ("_at", "_text", "length", "taker")

    def __init__(self, text: LongText, at: int, taker: Taker, length: int) -> None:
        self._text = text
        self._at = at
        self.taker = taker
        self.length = length

    def give(self, taker: Taker) -> Generator[None, None, None]:
        """Hand the elements to another taker, for good."""
        yield from self._text.take_array(self._at, taker)
        self.taker = taker


class LongString:
    """A string in a text, too long to be made a `str`. `size` is that of its text."""

    __slots__ = ("_end", "_start", "_text")

    def __init__(self, text: memoryview, start: int, end: int) -> None:
        self._text = text
        self._start = start
        self._end = end

    @property
    def size(self) -> int:
        """Its bytes as they stand in the text."""
        return self._end - self._start

    def pieces(self) -> Iterator[bytes]:
        """Yield the string's bytes, escapes resolved, in pieces."""
        at = self._start
        while at < self._end:
            end = end_of(IN_STRING, self._text, at, min(at + _STRING_PIECE, self._end))
            piece = bytes(self._text[at:end])
            yield resolved(piece) if b"\\" in piece else piece
            at = end


TakerFor = Callable[[int, dict[str, Any], str], Taker | None]
"""Return the taker of the array or long string `key`, at that depth, of an object that has `members` so far.

None means a `CountingTaker`.
"""


def _nobody(depth: int, members: dict[str, Any], key: str) -> Taker | None:  # a TakerFor
    return None


class LongText:
    """Reads one text.

    `repeated` names the members that an object has more than once, each with its object. The last one counts.
    Strings that are no tensor's data and longer than `MAX_STRING` are refused, unless `long_strings`.
    """

    def __init__(self, text: Buffer, taker_for: TakerFor = _nobody, *, long_strings: bool = False) -> None:
        self._long_strings = long_strings
        self.repeated: list[tuple[dict[str, Any], str]] = []
        self._text = memoryview(text)
        self._size = len(self._text)
        self._taker_for = taker_for
        self._at = 0
        self._values = 0
        self._strings = 0
        self._packed_left_out = 0  # pieces that are to be read one string at a time

    def document(self) -> Generator[None, None, Any]:
        """Return the text's value. Arrays of plain values are `LongArray`s, except for short ones of numbers.

        Raises Internal and InvalidArgument as `documents.parse` does,
        and InvalidArgument for a text with too many values.
        """
        self._at = 3 if bytes(self._text[:3]) == b"\xef\xbb\xbf" else 0
        yield from self._skip_space()
        if self._at == self._size:
            self._refuse("The document is empty.")
        value = yield from self._value(1)
        yield from self._skip_space()
        if self._at != self._size:
            self._refuse("The document root must not be followed by other values.")
        return value

    def take_array(self, at: int, taker: Taker) -> Generator[None, None, None]:
        """Hand the elements of the array or string at `at`, which was read before, to `taker`."""
        self._at = at
        if self._text[at] == _QUOTE:
            yield from taker.take_string(
                LongString(self._text, at + 1, (yield from self._end_of_string())).pieces()
            )
        else:
            yield from self._array_of_plain_values(taker)

    # The values around the tensors

    def _refuse(self, complaint: str) -> NoReturn:
        refuse(Fault(complaint, self._at))

    def _here(self) -> int:
        return self._text[self._at] if self._at < self._size else 0

    def _skip_space(self) -> Generator[None, None, None]:
        while True:
            limit = self._at + _SPACE_PIECE
            self._at = end_of(SPACE, self._text, self._at, limit)
            if self._at < limit:
                return
            yield

    def _count(self) -> bool:
        """Count a value; return whether it is time to stop for a moment."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise InvalidArgument(
                f"the request's JSON has more than {MAX_VALUES} values outside of its tensors' data"
            )
        return self._values % _VALUES_AT_ONCE == 0

    def _value(self, depth: int, taker: Taker | None = None) -> Generator[None, None, Any]:
        if self._count():
            yield
        match self._here():
            case 0x7B:
                return (yield from self._object(depth))
            case 0x5B:
                return (yield from self._array(depth, taker))
            case 0x22:
                return (yield from self._string(taker))
        return self._scalar()

    def _object(self, depth: int) -> Generator[None, None, dict[str, Any]]:
        if depth > MAX_DEPTH:
            raise too_deep()
        members: dict[str, Any] = {}
        self._at += 1
        yield from self._skip_space()
        if self._here() == _END_BRACE:
            self._at += 1
            return members
        while True:
            if self._here() != _QUOTE:
                self._refuse("Missing a name for object member.")
            key = yield from self._name()
            yield from self._skip_space()
            if self._here() != _COLON:
                self._refuse("Missing a colon after a name of object member.")
            self._at += 1
            yield from self._skip_space()
            taker = self._taker_for(depth, members, key) if self._here() in (_OPEN, _QUOTE) else None
            value = yield from self._value(depth + 1, taker)
            if key in members:
                self.repeated.append((members, key))
            members[key] = value
            yield from self._skip_space()
            follower = self._here()
            if follower not in (_COMMA, _END_BRACE):
                self._refuse(SAID_OF_OBJECT)
            self._at += 1
            if follower == _END_BRACE:
                return members
            yield from self._skip_space()

    def _name(self) -> Generator[None, None, str]:
        if self._count():
            yield
        start = self._at
        end = yield from self._end_of_string()
        if end - start > 6 * MAX_NAME:
            raise InvalidArgument(
                f"the name of a member of the request's JSON has {end - start} bytes, and may have {MAX_NAME} at most"
            )
        return text_of(bytes(self._text[start : self._at]))

    def _string(self, taker: Taker | None) -> Generator[None, None, Any]:
        start = self._at
        end = yield from self._end_of_string()
        behind = self._at
        self._strings += behind - start
        if behind - start <= MAX_STRING and self._strings <= _STRINGS_TOGETHER:
            return text_of(bytes(self._text[start:behind]))
        long = LongString(self._text, start + 1, end)
        if taker is None:
            if not self._long_strings:
                raise InvalidArgument(
                    f"a string of the request's JSON has {long.size} bytes; outside of its tensors' data they may have "
                    f"{MAX_STRING} each, and {_STRINGS_TOGETHER} together"
                )
            return long
        yield from taker.take_string(long.pieces())
        return LongArray(self, start, taker, 1)

    def _end_of_string(self) -> Generator[None, None, int]:
        """Go behind the string that begins here, and return where its closing quotation mark is."""
        start = self._at
        self._at += 1
        while True:
            before = self._at
            limit = before + _STRING_PIECE
            self._at = end_of(IN_STRING, self._text, before, limit)
            if self._here() == _QUOTE and self._at < self._size:
                self._at += 1
                return self._at - 1
            if self._at < limit and self._at - before < _STRING_PIECE - 12:
                # Neither the end of the piece nor an escape that it cuts.
                self._refuse_string(start)
            yield

    def _refuse_string(self, start: int) -> NoReturn:
        """Refuse the string that begins at `start` for the fault that it has here."""
        fault = locate_fault(b'"' + bytes(self._text[self._at : self._at + 16]))
        complaint = "Missing a closing quotation mark in string." if fault is None else fault.text
        at = self._at if fault is None else self._at + fault.offset - 1
        refuse(Fault(complaint, max(at, start)))

    def _scalar(self) -> Any:
        found = _SCALAR.match(self._text, self._at, self._at + _LONGEST_NUMBER)
        if found is None:
            self._refuse_in_array(b"[0,", self._at)
        token = bytes(found[0])
        if len(token) == _LONGEST_NUMBER:
            self._refuse("Number too big to be stored in double.")
        # Perhaps the number breaks off.
        if bytes(self._text[found.end() : found.end() + 1]) in (
            b".",
            b"e",
            b"E",
            b"i",
        ):
            fault = locate_fault(b"[0," + bytes(self._text[self._at : found.end() + 16]))
            if fault is not None and fault.text != SAID_OF_ARRAY:
                refuse(Fault(fault.text, self._at + fault.offset - 3))
        value = liberal(token, b"")
        if value is None and token != b"null":
            self._refuse("Number too big to be stored in double.")
        self._at = found.end()
        return value

    def _array(self, depth: int, taker: Taker | None) -> Generator[None, None, Any]:
        if depth > MAX_DEPTH:
            raise too_deep()
        start = self._at
        first = end_of(_BEFORE_FIRST, self._text, start, start + _SMALL_ARRAY)
        if first < self._size and self._text[first] == _BRACE:
            return (yield from self._array_of_objects(depth))
        if taker is None:
            small = _FLAT.match(self._text, start, start + _SMALL_ARRAY)
            if small is not None:
                value = liberal(bytes(small[0]), b"")
                if value is None:
                    self._refuse_in_array(b"[", start + 1)
                self._at = small.end()
                self._values += len(value)
                return value
            taker = CountingTaker()
        length = yield from self._array_of_plain_values(taker)
        return LongArray(self, start, taker, length)

    def _array_of_objects(self, depth: int) -> Generator[None, None, list[Any]]:
        elements: list[Any] = []
        follower = _COMMA
        while follower == _COMMA:
            self._at += 1
            yield from self._skip_space()
            elements.append((yield from self._value(depth + 1)))
            yield from self._skip_space()
            follower = self._here()
        if follower != _CLOSE:
            self._refuse(SAID_OF_ARRAY)
        self._at += 1
        return elements

    # The fast lane

    def _array_of_plain_values(self, taker: Taker) -> Generator[None, None, int]:
        """Go behind the array that begins here, and hand its elements to `taker`. Return its own length."""
        self._at += 1
        yield from self._skip_space()
        if self._here() == _CLOSE:
            self._at += 1
            return 0
        depth = 1
        length = 0
        opened = True  # Nothing has been read since the array's bracket.
        while depth:
            if depth == 1 and taker.packs_strings and (count := self._take_packed(taker)):
                length += count
                depth = yield from self._behind_element(depth)
                opened = False
                yield
                continue
            chunk = bytes(self._text[self._at : self._at + _PIECE])
            end, cut, behind, deepest = survey(chunk, depth)
            if deepest >= MAX_DEPTH:
                raise taker.too_deep()
            if end >= 0:
                length += self._take(taker, chunk[:end], depth, opened=opened, left_open=0)
                self._at += end + 1
                depth = 0
            elif cut >= 0:
                length += self._take(taker, chunk[:cut], depth, opened=opened, left_open=behind)
                self._at += cut + 1
                depth = behind
                opened = False
            else:  # no comma in sight: much space, a long string, an object, the end of the text
                length += depth == 1
                depth = yield from self._one_element(taker, depth, opened=opened)
                opened = False
            yield
        return length

    def _take(self, taker: Taker, piece: bytes, depth: int, *, opened: bool, left_open: int) -> int:
        """Hand the elements in `piece` to `taker`. Return how many elements of the whole array begin in it.

        The piece begins with `depth` brackets open and ends with `left_open` of them. The piece is made a
        text of its own. Zeros stand for what was cut off, so that a comma without a value before or behind it
        is found.
        """
        front = b"[" * depth + (b"" if opened else b"0,")
        value = liberal(front + piece + (b",0" + b"]" * left_open if left_open else b"]"), piece)
        if value is None:
            self._refuse_in_array(front, self._at)
        elements, kinds = flat(value)
        taker.take(elements[0 if opened else 1 : -1 if left_open else None], kinds)
        # The first is a zero, or began in the piece before. The last is a
        # zero if the piece is cut between two.
        return len(value) - (not opened) - (left_open == 1)

    def _one_element(self, taker: Taker, depth: int, *, opened: bool) -> Generator[None, None, int]:
        """Read one element, with the brackets around it and the comma behind it.

        Returns how many brackets are open then.
        """
        while True:
            yield from self._skip_space()
            if self._here() != _OPEN:
                break
            depth += 1
            if depth >= MAX_DEPTH:
                raise taker.too_deep()
            self._at += 1
            opened = True
        if not (opened and self._here() == _CLOSE):
            if self._here() == _QUOTE:
                start = self._at + 1
                end = yield from self._end_of_string()
                yield from taker.take_string(LongString(self._text, start, end).pieces())
            else:
                if self._here() == _BRACE:
                    self._values += _PRICE_OF_OBJECT
                value = yield from self._value(depth + 1)
                taker.take([value], {type(value)})
        return (yield from self._behind_element(depth))

    def _behind_element(self, depth: int) -> Generator[None, None, int]:
        """Go behind the comma after an element, or behind its array. Returns how many are open then."""
        while True:
            yield from self._skip_space()
            follower = self._here()
            if follower not in (_COMMA, _CLOSE):
                self._refuse(SAID_OF_ARRAY)
            self._at += 1
            if follower == _COMMA:
                return depth
            depth -= 1
            if not depth:
                return 0

    def _take_packed(self, taker: Taker) -> int:
        """Hand the strings that are next to `taker`, packed. Returns how many there were.

        It is 0 where they must be read in another way.
        """
        if self._packed_left_out:
            self._packed_left_out -= 1
            return 0
        found = packed_strings(bytes(self._text[self._at : self._at + _PACKED_PIECE]))
        if found is None or not taker.take_packed(found.data, found.elements):
            self._packed_left_out = _PACKED_LEFT_OUT
            return 0
        self._at += found.used
        return found.elements

    def _refuse_in_array(self, front: bytes, at: int) -> NoReturn:
        """Refuse the text at `at`, behind `front`, for its first fault."""
        window = front + bytes(self._text[at : at + _PIECE + _LONGEST_NUMBER])
        fault = locate_fault(window)
        assert fault is not None, "what no parser takes has a fault"
        refuse(Fault(fault.text, at + max(fault.offset - len(front), 0)))
