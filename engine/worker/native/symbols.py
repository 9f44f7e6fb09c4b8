"""The dynamic symbols of a shared library, read from its file without loading it.

Reference: the ELF specification (System V gABI), for 64-bit little-endian files. The library may be anyone's:
nothing in it is trusted but what has been checked against the file's size.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MACHINES = {"x86_64": 62, "aarch64": 183}
_DYNAMIC_SYMBOLS = 11
_SHARED = 3
_MOST_SYMBOLS = 4_000_000
_LARGEST_TABLE = 512 * 1024 * 1024  # bytes


class NotALibrary(Exception):
    """The file is no shared library for this machine. The message is why."""


class Symbols:
    """The names that a library `imported` and `exported`."""

    __slots__ = ("exported", "imported")

    def __init__(self, imported: frozenset[str], exported: frozenset[str]) -> None:
        self.imported = imported
        self.exported = exported


def read_symbols(path: str, machine: str = "") -> Symbols:
    """Return the dynamic symbols of the library at `path`.

    It must be for `machine`, by default this one. Raises NotALibrary, and OSError if the file can't be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size

        def piece(offset: int, nbytes: int) -> bytes:
            if nbytes > _LARGEST_TABLE or offset + nbytes > size:
                raise NotALibrary("it is cut short, or damaged")
            file.seek(offset)
            return file.read(nbytes)

        return _read(piece, size, machine or os.uname().machine)


def _read(piece: Callable[[int, int], bytes], size: int, machine: str) -> Symbols:
    if size < _HEADER.size:
        raise NotALibrary("it is no ELF file")
    header = _HEADER.unpack(piece(0, _HEADER.size))
    ident, kind, for_machine, sections_at, entry, count = (*header[:3], header[6], header[11], header[12])
    if ident[:4] != _MAGIC:
        raise NotALibrary("it is no ELF file")
    if ident[4] != 2 or ident[5] != 1 or for_machine != _MACHINES.get(machine, for_machine):
        raise NotALibrary(f"it is not for this machine ({machine})")
    if kind != _SHARED:
        raise NotALibrary("it is an ELF file, and no shared library")
    if entry != _SECTION.size:
        raise NotALibrary("it has no table of sections")
    table = piece(sections_at, entry * count)
    sections = [_SECTION.unpack_from(table, at * entry) for at in range(count)]
    found = next((section for section in sections if section[1] == _DYNAMIC_SYMBOLS), None)
    if found is None or not 0 <= found[6] < len(sections):
        raise NotALibrary("it has no dynamic symbols")
    offset, nbytes, names_in = found[4], found[5], sections[found[6]]
    if nbytes // _SYMBOL.size > _MOST_SYMBOLS:
        raise NotALibrary("it is cut short, or damaged")
    names = piece(names_in[4], names_in[5])
    symbols = piece(offset, nbytes // _SYMBOL.size * _SYMBOL.size)
    imported: set[str] = set()
    exported: set[str] = set()
    for name_at, _, _, section, _, _ in _SYMBOL.iter_unpack(symbols):
        end = names.find(b"\0", name_at)
        name = names[name_at:end].decode("ascii", "replace") if name_at < len(names) and end >= 0 else ""
        if name:
            (exported if section else imported).add(name)
    return Symbols(frozenset(imported), frozenset(exported))
