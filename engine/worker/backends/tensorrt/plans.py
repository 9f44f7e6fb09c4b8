"""Plan files: which package reads one, and which version built it. Imports nothing of TensorRT's.

A plan begins with four letters, which tell TensorRT's from those of TensorRT-RTX, and has the four numbers of
its builder's version at byte 24. Both were seen: TensorRT's in `trtexec --getPlanVersionOnly`, the other's in
plans of TensorRT-RTX 1.7.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from engine.worker.backends.base import LoadError

HEADER_BYTES = 28
_VERSION_AT = 24
OLD_MAGIC = b"ptrt"
"""How plans began before TensorRT wrote a header with its version."""


class Family:
    """One of the two runtimes.

    `modules` are the packages that have it, the best first. `extra` is Tritium's for the first of them.
    """

    __slots__ = ("extra", "modules", "title")

    def __init__(self, title: str, modules: tuple[str, ...], extra: str) -> None:
        self.title = title
        self.modules = modules
        self.extra = extra


_BY_MAGIC = {
    # The lean runtime and the dispatching one read plans that bring the runtime of their own version only.
    b"ftrt": Family("TensorRT", ("tensorrt", "tensorrt_lean", "tensorrt_dispatch"), "tensorrt"),
    b"vtrt": Family("TensorRT-RTX", ("tensorrt_rtx",), "tensorrt-rtx"),
}


def family_of(header: bytes) -> Family | None:
    """Return which runtime reads a plan that begins with these bytes; None if none does."""
    return _BY_MAGIC.get(header[:4]) if len(header) >= HEADER_BYTES else None


def version_of(header: bytes) -> str:
    """Return the version by which a plan was built, such as `10.13.0.35`."""
    return ".".join(str(number) for number in header[_VERSION_AT:HEADER_BYTES])


def runtime_for(family: Family, who: str) -> Any:
    """Import and return the package that reads a family's plans.

    Raises LoadError, which begins with `who`.
    """
    found = []
    for name in family.modules:
        try:
            return import_module(name)
        except ImportError as error:
            if getattr(error, "name", None) != name:
                found.append(f"; '{name}' is there and can't be imported: {error}")
        except OSError as error:  # a library that it loads
            found.append(f"; '{name}' is there and can't be imported: {error}")
    raise LoadError(
        f"{who}, its plan is for {family.title}, and no package here reads it"
        f" ({', '.join(family.modules)}){''.join(found)}. Install Tritium's extra '{family.extra}'"
    )
