"""Say what is wrong with a JSON text, and where, in the words that Triton's clients know.

The fast parsers in `documents` only tell good from bad. Once a text is known to be bad, this module walks it
by the JSON grammar. It names the first fault with its byte offset (contract, http.md section 1.2). The walk
costs time in proportion to the text, and a hostile client can cause it. So it is only asked about texts, or
parts of them, of some kilobytes.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SAID_OF_OBJECT: Final = "Missing a comma or '}' after an object member."
SAID_OF_ARRAY: Final = "Missing a comma or ']' after an array element."

_SPACE: Final = re.compile(rb"[ \t\n\r]*")
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*')
_DIGITS: Final = re.compile(rb"[0-9]*")
_HEX4: Final = re.compile(rb"[0-9A-Fa-f]{4}")
_OBJECT: Final = ord("{")
_ARRAY: Final = ord("[")


class Fault(NamedTuple):
    """A parser's complaint about a text, and the byte offset where it stopped."""

    text: str
    offset: int


class _Stop(Exception):  # carries a fault out of the walk; other code never sees it
    def __init__(self, text: str, offset: int) -> None:
        self.fault = Fault(text, offset)


def locate_fault(text: bytes) -> Fault | None:
    """Return the first fault of `text`, or None where it has none."""
    try:
        _walk_document(text)
    except _Stop as stop:
        return stop.fault
    return None


def _walk_document(text: bytes) -> None:
    at = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    at = _space(text, at)
    if at == len(text):
        raise _Stop("The document is empty.", at)
    at = _space(text, _walk_value(text, at))
    if at != len(text):
        raise _Stop("The document root must not be followed by other values.", at)


def _walk_value(text: bytes, at: int) -> int:
    """Walk the value at `at`, containers without recursion, and return the offset behind it."""
    open_containers: list[int] = []
    while True:
        # At a value.
        first = text[at] if at < len(text) else 0
        if first in {_OBJECT, _ARRAY}:
            inside = _space(text, at + 1)
            if text[inside : inside + 1] == (b"}" if first == _OBJECT else b"]"):
                at = inside + 1
            else:
                open_containers.append(first)
                at = _member_name(text, inside) if first == _OBJECT else inside
                continue
        else:
            at = _scalar(text, at)
        # Behind a value: close the containers that end here, and go
        # on to the next value of the one that does not.
        while open_containers:
            at = _space(text, at)
            follower = text[at : at + 1]
            container = open_containers[-1]
            if follower == b",":
                at = _space(text, at + 1)
                if container == _OBJECT:
                    at = _member_name(text, at)
                break
            if follower != (b"}" if container == _OBJECT else b"]"):
                raise _Stop(SAID_OF_OBJECT if container == _OBJECT else SAID_OF_ARRAY, at)
            at += 1
            open_containers.pop()
        else:
            return at


def _member_name(text: bytes, at: int) -> int:
    if text[at : at + 1] != b'"':
        raise _Stop("Missing a name for object member.", at)
    at = _space(text, _string(text, at))
    if text[at : at + 1] != b":":
        raise _Stop("Missing a colon after a name of object member.", at)
    return _space(text, at + 1)


def _scalar(text: bytes, at: int) -> int:
    first = text[at : at + 1]
    if first == b'"':
        return _string(text, at)
    for word in (b"true", b"false", b"null"):
        if first == word[:1]:
            return _word(text, at, word)
    return _number(text, at)


def _word(text: bytes, at: int, word: bytes) -> int:
    for letter in word:
        if text[at : at + 1] != bytes((letter,)):
            raise _Stop("Invalid value.", at)
        at += 1
    return at


def _number(text: bytes, start: int) -> int:
    at = start + 1 if text[start : start + 1] == b"-" else start
    first = text[at : at + 1]
    if first == b"N":
        return _word(text, at, b"NaN")
    if first == b"I":
        at = _word(text, at, b"Inf")
        return _word(text, at, b"inity") if text[at : at + 1] == b"i" else at
    if not first.isdigit():
        raise _Stop("Invalid value.", at)
    at = at + 1 if first == b"0" else _digits(text, at)
    if text[at : at + 1] == b".":
        at = _some_digits(text, at + 1, "Miss fraction part in number.")
    if text[at : at + 1] in {b"e", b"E"}:
        at += 2 if text[at + 1 : at + 2] in {b"+", b"-"} else 1
        at = _some_digits(text, at, "Miss exponent in number.")
    if float(text[start:at]) in {float("inf"), float("-inf")}:
        raise _Stop("Number too big to be stored in double.", start)
    return at


def _digits(text: bytes, at: int) -> int:
    found = _DIGITS.match(text, at)
    return at if found is None else found.end()


def _some_digits(text: bytes, at: int, otherwise: str) -> int:
    end = _digits(text, at)
    if end == at:
        raise _Stop(otherwise, at)
    return end


def _string(text: bytes, at: int) -> int:
    at += 1
    while True:
        plain = _PLAIN.match(text, at)
        at = at if plain is None else plain.end()
        if at >= len(text) or text[at] == 0:
            raise _Stop("Missing a closing quotation mark in string.", at)
        if text[at] == ord('"'):
            return at + 1
        if text[at] != ord("\\"):
            raise _Stop("Invalid encoding in string.", at)
        at = _escape(text, at)


def _escape(text: bytes, at: int) -> int:
    kind = text[at + 1 : at + 2]
    if kind != b"u":
        if not kind or kind not in b'"\\/bfnrt':
            raise _Stop("Invalid escape character in string.", at)
        return at + 2
    high = _hex4(text, at, at + 2)
    if not 0xD800 <= high <= 0xDFFF:
        return at + 6
    if high > 0xDBFF or text[at + 6 : at + 8] != b"\\u":
        raise _Stop("The surrogate pair in string is invalid.", at)
    if not 0xDC00 <= _hex4(text, at, at + 8) <= 0xDFFF:
        raise _Stop("The surrogate pair in string is invalid.", at)
    return at + 12


def _hex4(text: bytes, escape: int, at: int) -> int:
    found = _HEX4.match(text, at)
    if found is None:
        raise _Stop("Incorrect hex digit after \\u escape in string.", escape)
    return int(found[0], 16)


def _space(text: bytes, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
