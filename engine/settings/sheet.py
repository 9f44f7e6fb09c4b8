"""A settings class is a sheet: a frozen dataclass whose fields carry how they are read, and from which entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class _Declared:
    """A field: the entries of the sheet that decide it, and how it is read from what was given for them."""

    read: Callable[[Any], Any]
    entries: tuple[Any, ...]


def declared(read: Callable[[S], T], nothing: Callable[[], S], *entries: object, secret: bool = False) -> T:
    """Declare a field, which `repr` leaves out if it is secret.

    Its default is read from `nothing`, where none of its entries is given.
    """
    cell: T = field(
        default_factory=lambda: read(nothing()),
        metadata={_Declared: _Declared(read, entries)},
        repr=not secret,
    )
    return cell


def read_sheet(settings: type[T], given: object) -> T:
    """Return a settings class of what was given."""
    return settings(**{name: cell.read(given) for name, cell in _cells(settings)})


def entries_of(settings: type[object]) -> Iterator[Any]:
    """Yield the entries of a settings class, in the order of its fields."""
    for _, cell in _cells(settings):
        yield from cell.entries


def _cells(settings: type[Any]) -> Iterator[tuple[str, _Declared]]:
    for each in fields(settings):
        if _Declared in each.metadata:
            yield each.name, each.metadata[_Declared]
