"""The output that a worker prints.

It is always read, so that it never blocks the model, and passed on in lines at a bounded rate.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

import trio

LINES_PER_SECOND: Final = 100
BURST: Final = 500
LINE_LIMIT: Final = 8 * 1024  # bytes; the rest of a longer line is cut off
_CHUNK: Final = 64 * 1024


class Report(Protocol):
    """Receives the lines."""

    def __call__(self, lines: list[str], dropped: int) -> None:
        """`lines` in order; `dropped` more were left out since the last call."""


class LineBudget:
    """A token bucket in lines. Pure: it is told the time."""

    def __init__(self, now: float) -> None:
        self._tokens = float(BURST)
        self._updated = now
        self._dropped = 0

    def admit(self, lines: list[str], now: float) -> tuple[list[str], int]:
        """Return the lines that may pass and, once any pass again, how many were dropped meanwhile."""
        self._tokens = min(BURST, self._tokens + (now - self._updated) * LINES_PER_SECOND)
        self._updated = now
        allowed = min(len(lines), int(self._tokens))
        self._tokens -= allowed
        self._dropped += len(lines) - allowed
        if not allowed:
            return [], 0
        dropped, self._dropped = self._dropped, 0
        return lines[:allowed], dropped

    def remainder(self) -> int:
        """Return how many dropped lines have not been reported."""
        dropped, self._dropped = self._dropped, 0
        return dropped


class LineSplitter:
    """Bytes in, whole lines out. Pure."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_LIMIT]
        return [line[:LINE_LIMIT].decode(errors="replace") for line in lines if line]

    def finish(self) -> list[str]:
        """Return an unfinished last line, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []


class OutputReader:
    """Reads one worker's output pipe.

    `run` is a task of its owner; `drain` takes the rest after the end.
    """

    def __init__(self, descriptor: int | None, report: Report) -> None:
        self._descriptor = descriptor
        self._report = report
        self._lines = LineSplitter()
        self._budget = LineBudget(trio.current_time())
        if descriptor is not None:
            os.set_blocking(descriptor, False)

    async def run(self) -> None:
        """Read until the pipe's other ends are closed."""
        if self._descriptor is None:
            return
        while self._read():
            await trio.lowlevel.wait_readable(self._descriptor)

    def _read(self) -> bool:
        """Read the available bytes. False at the end of the stream."""
        if self._descriptor is None:
            return False
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._pass_on(self._lines.feed(data))
        return True

    def _pass_on(self, lines: list[str]) -> None:
        if lines:
            passed, dropped = self._budget.admit(lines, trio.current_time())
            if passed:
                self._report(passed, dropped)

    def drain(self) -> None:
        """Read the last output of the worker, which is at most what a pipe holds."""
        for _ in range(16):
            if not self._read():
                break
        self._pass_on(self._lines.finish())
        dropped = self._budget.remainder()
        if dropped:
            self._report([], dropped)

    def close(self) -> None:
        """Close the pipe; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            trio.lowlevel.notify_closing(descriptor)
            os.close(descriptor)
