"""Protocol buffers straight from a file, field by field.

It reads little of what is skipped and nothing of the schema. A model of gigabytes is a few thousand fields,
nearly all of whose bytes are weights. The reader fetches small windows of the file and jumps over what is not
asked for. Files are not trusted: every length is checked against what encloses it, and the work that a file
may cause is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from engine.config.inspection.ports import Unloadable, Unreadable

# Bytes fetched at a time: a page or two, because the parts that are looked at are far apart.
_WINDOW: Final = 8192
_MOST_FIELDS: Final = 1_000_000  # visited in one file; large models have some ten thousand
_MOST_TEXT: Final = 64 * 1024 * 1024  # bytes of all texts of one file together
_LONGEST_TEXT: Final = 64 * 1024
_MASK: Final = (1 << 64) - 1


class Kind(IntEnum):
    """Wire types; groups, which nothing here uses, count as damage."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5


_FIXED: Final = {Kind.FIXED64: 8, Kind.FIXED32: 4}


class Reader:
    """A position in the file behind `descriptor`, which stays the caller's.

    All methods raise Unreadable, and OSError.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._window = b""
        self._start = 0  # where in the file the window begins
        self._fields = 0
        self._text = 0
        self.position = 0
        self.size = os.fstat(descriptor).st_size

    def fields(self, end: int) -> Iterator[tuple[int, Kind, int]]:
        """Yield (field number, kind, value) up to the position `end`.

        The value of a varint is itself. The value of a length-delimited field is the position where it ends;
        the reader then stands where it begins. However much of it is read, the reader goes on behind it.
        """
        while self.position < end:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise Unreadable(f"it has more than {_MOST_FIELDS} fields")
            tag = self._varint(end)
            number, wire = tag >> 3, tag & 7
            if number == 0 or wire not in (0, 1, 2, 5):
                known = number > 0 and wire in (3, 4)  # a group, which others may pass over
                raise (Unreadable if known else Unloadable)(f"byte {self.position} begins no field")
            kind = Kind(wire)
            if kind is Kind.VARINT:
                yield number, kind, self._varint(end)
                continue
            length = self._varint(end) if kind is Kind.LENGTH else _FIXED[kind]
            after = self.position + length
            if after > end:
                raise Unloadable(f"it ends in the middle of a field, at byte {self.position}")
            yield number, kind, after
            self.position = after

    def text(self, end: int) -> str:
        """Return the text from here to `end`."""
        length = end - self.position
        self._text += length
        if length > _LONGEST_TEXT or self._text > _MOST_TEXT:
            raise Unreadable(f"a name of {length} bytes at byte {self.position} is too long")
        raw = os.pread(self._descriptor, length, self.position)
        if len(raw) < length:
            raise Unreadable("it has become shorter while it was read")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise Unreadable(f"a name at byte {self.position} is not UTF-8") from error

    def _varint(self, end: int) -> int:
        result = shift = 0
        while True:
            if self.position >= end:
                raise Unloadable(f"it ends in the middle of a field, at byte {self.position}")
            at = self.position - self._start
            if not 0 <= at < len(self._window):
                self._fetch()
                at = 0
            byte = self._window[at]
            self.position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result & _MASK
            shift += 7
            if shift >= 70:
                raise Unloadable(f"a number at byte {self.position} has more than ten bytes")

    def _fetch(self) -> None:
        self._start = self.position
        self._window = os.pread(self._descriptor, _WINDOW, self.position)
        if not self._window:
            raise Unreadable("it has become shorter while it was read")


def signed(value: int) -> int:
    """Return the int64 that a varint stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value
