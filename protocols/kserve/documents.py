"""JSON in and out, with Triton's tolerance and Triton's complaints.

Triton's parser takes more than the JSON standard: bare `NaN`, `Inf`, `Infinity` and their negatives, and
strings that are not UTF-8. Its writer gives more: `NaN`, `Infinity`. `orjson` does the work while a text is
standard. A text that it refuses is tried again by the standard library after the few liberties are
translated. `faults` describes a text that both refuse. Strings that are not UTF-8 are held with surrogate
escapes, as file names are.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

import orjson

from actors.values.errors import Internal, InvalidArgument
from actors.values.tensors import Buffer
from protocols.kserve.faults import Fault, locate_fault

MAX_DEPTH: Final = 100
_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
_UINT64_MAX: Final = 2**64 - 1

_STRINGS: Final = re.compile(r'("(?:[^"\\]|\\.)*")', re.DOTALL)
_LIBERTIES: Final = re.compile(r"-NaN|Inf(?!inity)")


def parse(text: Buffer) -> Any:
    """Return the value of a JSON text.

    Raises Internal with the contract's `failed to parse the request JSON buffer: <text> at <offset>` and,
    where a text nests deeper than any parser follows, InvalidArgument.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_liberal(bytes(text))


def _parse_liberal(text: bytes) -> Any:
    fault = locate_fault(text)
    if fault is not None:
        refuse(fault)
    decoded = text.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        return json.loads(without_liberties(decoded), parse_int=as_integer, parse_float=as_double)
    except RecursionError:
        raise too_deep() from None


def too_deep() -> InvalidArgument:
    """Return the error for a text that nests deeper than any parser follows."""
    return InvalidArgument(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


class Members(dict[str, Any]):
    """A JSON object with the keys that it has more than once, in the order in which they come again."""

    repeated: list[str]


def parse_members(text: bytes) -> Members:
    """Return the JSON object in `text`, which `parse` took; objects within it are `Members` too.

    It takes several times longer. Raises InvalidArgument where the text nests deeper than the parser follows.
    """
    decoded = without_liberties(text.decode("utf-8", "surrogateescape").removeprefix("\ufeff"))
    try:
        members: Members = json.loads(
            decoded, object_pairs_hook=_members, parse_int=as_integer, parse_float=as_double
        )
    except RecursionError:
        raise too_deep() from None
    return members


def _members(pairs: list[tuple[str, Any]]) -> Members:
    members = Members()
    members.repeated = []
    for key, value in pairs:
        if key in members:
            members.repeated.append(key)
        members[key] = value
    return members


def refuse(fault: Fault) -> NoReturn:
    """Raise Internal for a text with `fault`."""
    raise Internal(f"failed to parse the request JSON buffer: {fault.text} at {fault.offset}") from None


def without_liberties(text: str) -> str:
    """Return `text` with unknown bare words replaced by the spellings that the standard library knows."""
    if _LIBERTIES.search(text) is None:
        return text
    pieces = _STRINGS.split(text)
    pieces[::2] = [_LIBERTIES.sub(_standard_word, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _standard_word(found: re.Match[str]) -> str:
    return "NaN" if found[0] == "-NaN" else "Infinity"


def as_integer(digits: str) -> int | float:
    """Return a whole number as the fast parser does: as a float where 64 bits don't hold it.

    Raises OverflowError.
    """
    if len(digits) > 20:
        return as_double(digits)
    value = int(digits)
    return value if -(2**63) <= value <= _UINT64_MAX else float(value)


def as_double(digits: str) -> float:
    """Return a number. Raises OverflowError where no float holds it."""
    value = float(digits)
    if math.isinf(value):
        raise OverflowError
    return value


def dump(value: object) -> bytes:
    """Return the JSON text of `value`: dicts, lists, strings, numbers, numpy arrays and `Verbatim` pieces.

    Floats must be finite and strings UTF-8, or be wrapped by `number` and `text`.
    """
    return orjson.dumps(value, option=_NUMPY)


Verbatim = orjson.Fragment


def number(value: float) -> float | orjson.Fragment:
    """Return `value` in the form that `dump` writes: bare `NaN`, `Infinity` and `-Infinity`."""
    return value if math.isfinite(value) else Verbatim(json.dumps(value))


def text(value: str) -> str | orjson.Fragment:
    """Return `value` in the form that `dump` writes: bytes that are not UTF-8 pass through as they came."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return Verbatim(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape"))
    return value


def encode_text(value: str) -> bytes:
    """Return the bytes that stood in the JSON text for the string `value`, its escapes resolved."""
    return value.encode("utf-8", "surrogateescape")


# Typed access, in the words of the contract (http.md section 1.2). All of these are the client's mistakes and
# yet INTERNAL, because that is the code that Triton's clients see.


def missing(key: str) -> str:
    """Return the complaint about a member that is not there."""
    return f"attempt to access non-existing object member '{key}'"


def not_a(kind: str) -> str:
    """Return the complaint about a value that is not of `kind`."""
    return f"attempt to access JSON non-{kind} as {kind}"


def misfit(holder: object, key: str, kind: str, *, verb: str = "parse") -> Internal:
    """Return the error for `holder[key]`, which is absent or no `kind`."""
    absent = not isinstance(holder, dict) or key not in holder
    return Internal(f"Unable to {verb} '{key}': {missing(key) if absent else not_a(kind)}")


# Bytes of a text that is parsed in one piece. Parsing it takes less
# than five milliseconds even where it is an attack.
_SHORT: Final = 32 * 1024
# The same for a text that has a fault, or something that the fast
# parser does not know. Both take much longer.
_SHORT_AND_UNUSUAL: Final = 4 * 1024


class TooLong(Exception):  # not an error: the caller takes another way
    """A text must be read in slices, by a `LongText`."""


def read_short(text: Buffer) -> Any:
    """Return the value of a short JSON text, as `documents.parse` does.

    Raises TooLong, and what `parse` raises.
    """
    if len(text) <= _SHORT_AND_UNUSUAL:
        return parse(text)
    if len(text) > _SHORT:
        raise TooLong
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise TooLong from None
