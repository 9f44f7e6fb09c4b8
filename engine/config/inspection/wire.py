"""Protocol buffers straight from a file, field by field.

It reads little of what is skipped and nothing of the schema. A model of gigabytes is a few thousand fields,
nearly all of whose bytes are weights. The reader fetches small windows of the file and jumps over what is not
asked for. Files are not trusted: every length is checked against what encloses it, and the work that a file
may cause is bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from actors.values.datatypes import DataType
from engine.worker.pointers import POINTER, is_pointer

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


# -- what a model file says of its inputs and outputs, whatever its format


class Unreadable(Exception):
    """A model file is missing, damaged, or of no known kind. The message says what is wrong with it."""


class Unloadable(Unreadable):
    """A model file is such that no framework loads it either."""


class Pointer(Unloadable):
    """In the place of a model file is what Git LFS leaves there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output as the file has it, batch dimension included.

    `datatype` is None for an element type that no configuration can name. `shape` has -1 for a dimension of
    any size, and is None if the file leaves even the rank open. `symbols` has the name of each variable
    dimension, "" for one without a name.
    """

    name: str
    datatype: DataType | None
    shape: tuple[int, ...] | None
    spelling: str = ""  # what the file calls the type, for messages
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All that a model takes and gives, in the file's order.

    `defaulted` are inputs that the file has a value for.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    defaulted: tuple[Port, ...] = ()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a regular file for reading; yields its descriptor.

    Raises Unreadable for other kinds of file: opening a pipe would wait for a writer.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise Unloadable(f"{getattr(error, 'strerror', None) or error}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unloadable("it is no regular file")
        if not found.st_size:
            raise Unloadable("it is empty")
        if is_pointer(str(path)):
            raise Pointer(f"it {POINTER}")
        yield descriptor
    finally:
        os.close(descriptor)
