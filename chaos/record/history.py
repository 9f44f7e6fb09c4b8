"""The file in which every request is written down: before it is sent, and again when its outcome is known."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.record.records import Fail, Invoke, Ok, Record, Unknown, line_of

End = Ok | Fail | Unknown
"""What came of a request."""


class History:
    """Writes the records of one file, whole lines only: each request's `Invoke`, and exactly one end of it.

    It appends to `path`. Lines are written in blocks of some thousand bytes, and what is left at the end of
    the block. A failed write raises OSError in the task that hands a record in, because a run is nothing but
    its record.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._open: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def begin(self, invoke: Invoke) -> None:
        """Write down that a request is about to be sent.

        Raises ValueError if its `n` is that of another under way, and OSError.
        """
        if invoke.n in self._open:
            raise ValueError(f"request {invoke.n} is under way already; each needs a number of its own")
        self._open.add(invoke.n)
        self._take(invoke)

    def end(self, end: End) -> None:
        """Write down what came of a request. Raises ValueError unless it is under way, and OSError."""
        if end.n not in self._open:
            raise ValueError(f"request {end.n} is not under way: it never began, or has ended already")
        self._open.remove(end.n)
        self._take(end)

    def _take(self, record: Record) -> None:
        self._file.write(line_of(record) + "\n")
