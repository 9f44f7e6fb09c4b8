"""Pieces of long JSON texts: where to cut them, and what they hold (see `long_texts`)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson

from protocols.kserve.documents import as_double, as_integer, without_liberties
from protocols.kserve.faults import locate_fault

# Numbers that must not be left to the standard library: see `documents.as_integer`.
_UNUSUAL: Final = re.compile(rb"[eE]|[0-9]{19}")
_QUOTE, _COMMA, _OPEN, _CLOSE, _BRACE, _SPACE = b'",[]{ '

SPACE: Final = re.compile(rb"[ \t\n\r]*+")
"""Blanks between values, or none."""

IN_STRING: Final = re.compile(
    rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u(?:[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|[dD][0-7][0-9A-Fa-f]{2}'
    rb"|[dD][89ABab][0-9A-Fa-f]{2}\\u[dD][C-Fc-f][0-9A-Fa-f]{2}))*+"
)
"""What a string may have between its quotes, up to an end between two characters."""

# With fewer strings, numpy's start-up cost is more than what it saves.
_WORTH_PACKING: Final = 64

if TYPE_CHECKING:
    Letters = np.ndarray[Any, np.dtype[np.uint8]]
    Places = np.ndarray[Any, np.dtype[np.intp]]


def end_of(pattern: re.Pattern[bytes], text: memoryview, at: int, limit: int) -> int:
    """Return where the match of `pattern`, which matches nothing as well, ends before `limit`."""
    found = pattern.match(text, at, limit)
    return at if found is None else found.end()


def survey(chunk: bytes, depth: int) -> tuple[int, int, int, int]:
    """Return where the outermost bracket closes in `chunk`, and where its last comma is.

    The other two numbers are how many brackets are open at that comma, and the most that are open at once.
    Places are -1 where there is none. Only what comes before the first object counts.
    """
    if b'"' not in chunk and b"[" not in chunk and b"{" not in chunk:
        close = chunk.find(b"]")
        if close < 0:
            return -1, chunk.rfind(b","), depth, depth
        if depth == 1:
            return close, -1, 0, depth
    if b"\\" in chunk:
        chunk = chunk.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    letters = np.frombuffer(chunk, np.uint8)
    steps = (letters == _OPEN).astype(np.int8) - (letters == _CLOSE)
    commas = letters == _COMMA
    braces = letters == _BRACE
    if b'"' in chunk:
        outside = np.cumsum(letters == _QUOTE) & 1 == 0
        steps *= outside
        commas &= outside
        braces &= outside
    levels = np.cumsum(steps, dtype=np.int32) + depth
    (closed,) = (levels == 0).nonzero()
    (objects,) = braces.nonzero()
    end = int(closed[0]) if closed.size else -1
    limit = end if end >= 0 else letters.size
    if objects.size and objects[0] < limit:
        limit = int(objects[0])
        end = -1
    deepest = int(levels[:limit].max()) if limit else depth
    (places,) = commas[:limit].nonzero()
    if not places.size:
        return end, -1, 0, deepest
    cut = int(places[-1])
    return end, cut, int(levels[cut]), deepest


class PackedStrings(NamedTuple):
    """Strings as a BYTES tensor has them, how many they are, and how much of the piece they took."""

    data: memoryview
    elements: int
    used: int


def packed_strings(chunk: bytes) -> PackedStrings | None:
    """Return the whole strings that `chunk` begins with, elements of one array.

    None where there are few, or they are not written plainly: with escapes, control characters, or anything
    but a comma, or a comma and a space, between them. What follows the last of them is not looked at.
    """
    if b"\\" in chunk:
        return None
    letters = np.frombuffer(chunk, np.uint8)
    (quotes,) = (letters == _QUOTE).nonzero()
    count = quotes.size // 2
    if count < _WORTH_PACKING:
        return None
    starts, ends = quotes[: 2 * count : 2], quotes[1 : 2 * count : 2]
    first, last = int(starts[0]), int(ends[-1])
    between = _between(letters, starts, ends)
    if chunk[:first].strip(b" \t\n\r") or (letters[first:last] < 0x20).any() or not between:
        return None
    lengths = ends - starts - 1
    behind = (lengths + 4).cumsum()
    places = np.concatenate(([0], behind[:-1]))
    packed = np.empty(behind[-1], np.uint8)
    if between == 2:
        # A length takes as much room as the quotation marks, comma and space in front of its string.
        packed[3:] = letters[first:last]
    else:
        room = np.ones(packed.size, np.bool_)
        room[places + 3] = False
        room[:2] = False
        packed[room] = letters[first:last]
    packed[places] = lengths & 0xFF
    packed[places + 1] = lengths >> 8
    packed[places + 2] = 0
    packed[places + 3] = 0
    return PackedStrings(packed.data, count, last + 1)


def _between(letters: Letters, starts: Places, ends: Places) -> int:
    """Return how many letters are between all strings: a comma, and perhaps a space; 0 for anything else."""
    gaps = starts[1:] - ends[:-1]
    width = int(gaps[0])
    if width not in {2, 3} or (gaps != width).any() or (letters[ends[:-1] + 1] != _COMMA).any():
        return 0
    if width == 3 and (letters[ends[:-1] + 2] != _SPACE).any():
        return 0
    return width - 1


def liberal(source: bytes, piece: bytes) -> Any:
    """Return the value of a short text; None where it has none. `piece` is the part that may hold strings."""
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError:
        pass
    if b"\\u" in piece and locate_fault(source) is not None:
        return None
    decoded = without_liberties(source.decode("utf-8", "surrogateescape"))
    try:
        if _UNUSUAL.search(source) is None:
            return json.loads(decoded)
        return json.loads(decoded, parse_int=as_integer, parse_float=as_double)
    except (json.JSONDecodeError, OverflowError):
        return None


def flat(value: list[Any]) -> tuple[list[Any], set[type]]:
    """Return the scalars of `value` in order, and the set of their types."""
    level = value
    while list in (kinds := set(map(type, level))):
        inner: list[Any] = []
        for element in level:
            if type(element) is list:
                inner += element
            else:
                inner.append(element)
        level = inner
    return level, kinds


def text_of(quoted: bytes) -> str:
    """Return the string that is written as `quoted`, which is known to be a string."""
    try:
        text: str = orjson.loads(quoted)
    except orjson.JSONDecodeError:
        text = json.loads(quoted.decode("utf-8", "surrogateescape"))
    return text


def resolved(escaped: bytes) -> bytes:
    """Return the bytes that `escaped`, a piece of a string that is known to be one, stands for."""
    return text_of(b'"' + escaped + b'"').encode("utf-8", "surrogateescape")
