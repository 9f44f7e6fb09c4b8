"""What a model file says of its inputs and outputs, whatever its format."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from actors.values.datatypes import DataType
from engine.worker.pointers import POINTER, is_pointer


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
