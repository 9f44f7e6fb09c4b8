"""What would wait for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OURS = ("actors.", "engine.", "protocols.")


@contextmanager
def uncollected() -> Iterator[list[str]]:
    """Yield a list; on exit, fill it with the types of our objects that only the collector could free."""
    names: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield names
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = map(type, gc.garbage)
        names += sorted(
            {f"{kind.__module__}.{kind.__name__}" for kind in kinds if kind.__module__.startswith(OURS)}
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@contextmanager
def without_collector() -> Iterator[None]:
    """Make many objects that stay, such as syntax trees, at a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
