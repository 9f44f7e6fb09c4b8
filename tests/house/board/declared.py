"""The metric families that the product declares."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from actors.values.families import Family, SplitFamily
from tests.house.graph import ROOT

_ROOMS = ("actors", "protocols", "engine")
_IN_WORKERS = "engine/worker/"


def families() -> frozenset[str]:
    """Return the names of all families that a module of the product has, alone or in a table."""
    return frozenset(
        name for module in _modules() for name in _names(vars(importlib.import_module(module)).values())
    )


def _modules() -> Iterator[str]:
    for room in _ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if not place.startswith(_IN_WORKERS) and "values.families import" in path.read_text():
                yield place.removesuffix(".py").replace("/", ".")


def _names(values: object) -> Iterator[str]:
    for value in values if hasattr(values, "__iter__") else ():
        if isinstance(value, Family | SplitFamily):
            yield value.name
        elif isinstance(value, tuple | list):
            yield from _names(value)
