"""The file in which every request is written down: before it is sent, and again when its outcome is known.

The event loop takes records, and a thread of the history's own writes them, which gathers them for
`GATHERING` seconds. So a slow disk holds up no request, and if the harness itself is killed, at most that
much is missing. A failed write is serious, because a run is nothing but its record: the next record to be
taken raises.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from chaos.record.records import Fail, Invoke, Ok, Record, Unknown, line_of

GATHERING: Final = 0.03
"""Seconds in which records collect before they are written."""

_LONGEST_CLOSE: Final = 30.0

End = Ok | Fail | Unknown
"""What came of a request."""


class HistoryLost(Exception):
    """A record could not be written. The run is worth nothing from here on."""


class History:
    """Writes the records of one file, whole lines only: each request's `Invoke`, and exactly one end of it.

    It appends to `path`. Only one thread may use it. Close it, or leave its block, to have everything
    written.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._open: set[int] = set()
        self._lines: deque[Record] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="chaos-history", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def open(self) -> int:
        """Requests whose end is not known yet."""
        return len(self._open)

    def begin(self, invoke: Invoke) -> None:
        """Write down that a request is about to be sent.

        Raises ValueError if its `n` is that of another under way, and HistoryLost.
        """
        if invoke.n in self._open:
            raise ValueError(f"request {invoke.n} is under way already; each needs a number of its own")
        self._take(invoke)
        self._open.add(invoke.n)

    def end(self, end: End) -> None:
        """Write down what came of a request. Raises ValueError unless it is under way, and HistoryLost."""
        if end.n not in self._open:
            raise ValueError(f"request {end.n} is not under way: it never began, or has ended already")
        self._open.remove(end.n)
        self._take(end)

    def close(self) -> None:
        """Write what was taken, and close the file. Raises HistoryLost if that fails."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_LONGEST_CLOSE)
        if self._thread.is_alive():
            raise HistoryLost(f"{len(self._lines)} records were not written within {_LONGEST_CLOSE:.0f} s")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._check()

    def _take(self, record: Record) -> None:
        self._check()
        self._lines.append(record)
        if not self._wake.is_set():
            self._wake.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise HistoryLost(f"the history can't be written: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._wake.wait()
                self._closing.wait(GATHERING)
                self._wake.clear()
                self._drain()
            self._drain()
        except OSError as error:
            self._failure = error

    def _drain(self) -> None:
        count = len(self._lines)
        text = "".join(f"{line_of(self._lines.popleft())}\n" for _ in range(count)).encode()
        while text:
            text = text[os.write(self._file, text) :]
