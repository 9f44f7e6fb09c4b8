"""What happened in a simulation, line by line: two runs of one seed are the same if their traces are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, NoReturn

import structlog
import trio

# Addresses of sockets, and what prints them.
_VOLATILE: Final = frozenset({"address", "peer", "exc_info", "verbose"})


class Trace:
    """Lines with the virtual time before them."""

    def __init__(self, hide: str) -> None:
        """`hide` is a path that differs from run to run, and is left out of every line."""
        self.lines: list[str] = []
        self._hide = hide

    def note(self, *words: object) -> None:
        """Write a line."""
        text = " ".join(map(str, words)).replace(self._hide, "…")
        self.lines.append(f"{trio.current_time():11.6f} {text}")

    def text(self) -> str:
        """Return the lines as one text."""
        return "".join(f"{line}\n" for line in self.lines)

    def digest(self) -> str:
        """Return what equal traces have in common."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Write everything that is logged around the block into the trace."""
        before = structlog.get_config()
        structlog.configure(
            processors=[self._logged],
            wrapper_class=structlog.BoundLogger,
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)

    def _logged(self, logger: object, level: str, event: MutableMapping[str, Any]) -> NoReturn:
        name = event.pop("event")
        name = name.value if isinstance(name, Enum) else name
        if level != "debug":
            keys = " ".join(f"{key}={event[key]}" for key in sorted(event) if key not in _VOLATILE)
            self.note("log", name, keys)
        raise structlog.DropEvent


Note = Callable[..., None]
