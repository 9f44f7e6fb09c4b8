"""structlog, without what it imports for uses that aren't ours.

That is rich, for coloured tracebacks, and asyncio, for loggers that are awaited: 5 MiB of a server's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["structlog"]


class _Later(ModuleType):
    """A module that is imported by the first who asks it for something."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


@contextmanager
def _in_place_of(name: str, stand_in: ModuleType | None) -> Iterator[None]:
    """Let imports of a module find `stand_in` meanwhile, or fail for None, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = stand_in  # type: ignore[assignment]  # None is the import system's word for "absent"
    try:
        yield
    finally:
        del sys.modules[name]


with _in_place_of("rich", None), _in_place_of("asyncio", _Later("asyncio")):
    import structlog
