"""Logs that are still being written: what is added, through rotation and truncation.

`Tail` is one file under a name, as `tail -F` sees it. It looks when it is told to, and never waits; its
caller decides how often. Rotation by renaming is noticed because the name leads to another file. What was
still written to the old file is read to its end first. Rotation by copying and truncating is noticed because
the file is shorter than what was read of it. `copytruncate` loses what was written between the copy and the
truncation, for every reader.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final

from engine.observability.reading.formats import Line, parse
from engine.observability.reading.reading import LONGEST, Census, LogUnreadable

PAUSE: Final = 0.1
"""Seconds between two looks at files that are followed."""

_CHUNK: Final = 1024 * 1024


class Tail:
    """One file that grows.

    A name that leads nowhere, for now, is a file without lines. Close it at the end.
    """

    def __init__(self, path: str, census: Census, *, from_end: bool = False) -> None:
        """`from_end`: what is in it already is not wanted. Raises LogUnreadable for what can't be opened."""
        self.path = path
        self._census = census
        self._rest = b""
        self._number = 0
        self._skips = False  # the rest of a line that is too long
        self._file = self._opened()
        if from_end and self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def look(self) -> list[Line]:
        """Return the lines that have come since the last look. Raises LogUnreadable."""
        lines: list[Line] = []
        if self._file is None:
            self._file = self._opened()
        while self._file is not None:
            self._read(self._file, lines)
            if not self._moved(self._file):
                break
            self._read(self._file, lines)  # what came until it was renamed
            self._broken_rest()
            self.close()
            self._file, self._number = self._opened(), 0
        return lines

    def _opened(self) -> IO[bytes] | None:
        try:
            return open(self.path, "rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LogUnreadable(f"{self.path} can't be read: {error.strerror or error}") from error

    def _moved(self, file: IO[bytes]) -> bool:
        """Whether the name leads to another file by now.

        A file that was removed and not made again yet is read on.
        """
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        here = os.fstat(file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _read(self, file: IO[bytes], lines: list[Line]) -> None:
        if os.fstat(file.fileno()).st_size < file.tell():
            self._broken_rest()
            file.seek(0)
            self._number = 0
        while chunk := file.read(_CHUNK):
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for row in whole:
                self._take(row, lines)
            if len(self._rest) > LONGEST:
                self._broken_rest()
                self._skips = True

    def _take(self, row: bytes, lines: list[Line]) -> None:
        self._number += 1
        if self._skips:
            self._skips = False
            return
        line = parse(row, source=self.path, number=self._number)
        if line is not None:
            self._census.lines += 1
            lines.append(line)
        elif row.strip():
            self._census.add_broken(self.path)

    def _broken_rest(self) -> None:
        """A line has no end, and will never have one."""
        if self._rest.strip() and not self._skips:
            self._census.add_broken(self.path)
        self._rest, self._skips = b"", False


def follow(
    paths: Sequence[str],
    *,
    census: Census | None = None,
    from_end: bool = False,
    pause: Callable[[], bool],
) -> Iterator[Line]:
    """Yield the lines of growing files, what is in them first unless `from_end`, until `pause` returns False.

    `pause` is called when there is nothing new, and waits. Lines that one look finds in several files are in
    the order of time. Lines that a later look finds come after them. Raises LogUnreadable.
    """
    counted = Census() if census is None else census
    with contextlib.ExitStack() as open_files:
        tails = []
        for path in paths:
            tail = Tail(path, counted, from_end=from_end)
            open_files.callback(tail.close)
            tails.append(tail)
        while True:
            found = [tail.look() for tail in tails]
            yield from heapq.merge(*found, key=lambda line: line.time)
            if not any(found) and not pause():
                return
