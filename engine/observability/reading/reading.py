"""Logs at rest: plain files, compressed archives, pipes, and several of them in the order of time."""

from __future__ import annotations

import bz2
import gzip
import heapq
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

from engine.observability.reading.formats import Line, parse

LONGEST: Final = 4 * 1024 * 1024
"""Bytes of a line beyond which it is taken for broken: a stray binary file must not fill the memory."""

STDIN: Final = "-"


class LogUnreadable(Exception):
    """A file can't be read as a log, with a message for the operator."""


@dataclass(slots=True)
class Census:
    """What reading has come across; the reader's caller hands one in, and looks at it afterwards."""

    lines: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    """By file: lines that are none of the log, blank ones left out."""
    truncated: list[str] = field(default_factory=list)
    """Archives that end before their end."""

    def add_broken(self, path: str) -> None:
        """Count one more of `path`."""
        self.broken[path] = self.broken.get(path, 0) + 1


def read(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, census: Census | None = None
) -> Iterator[Line]:
    """Yield the lines of the logs in `paths`, merged by time if there are several; `-` is standard input.

    Names that end in `.gz`, `.bz2`, `.xz` and `.zst` are archives. Lines of one file keep their order, even
    if the wall clock was set back. What is no line is counted in `census` and skipped, and so is a line at
    which an archive was cut off. Raises LogUnreadable if a file can't be opened or read.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    counted = Census() if census is None else census
    files = [read_one(os.fspath(path), counted) for path in given]
    # One file in one order: the merge compares what has been seen last of each, and holds one line of each.
    return files[0] if len(files) == 1 else heapq.merge(*files, key=lambda line: line.time)


def read_one(path: str, census: Census) -> Iterator[Line]:
    """Yield the lines of one file or archive. Raises LogUnreadable."""
    try:
        with open_log(path) as file:
            yield from lines_of(_rows(file, path, census), path, census)
    except OSError as error:
        raise LogUnreadable(f"{path} can't be read: {error.strerror or error}") from error


def lines_of(rows: Iterable[bytes], source: str, census: Census) -> Iterator[Line]:
    """Yield what of `rows`, texts with or without their ends, are lines; count both sorts."""
    for number, row in enumerate(rows, 1):
        line = parse(row, source=source, number=number)
        if line is not None:
            census.lines += 1
            yield line
        elif row.strip():
            census.add_broken(source)


def open_log(path: str) -> IO[bytes]:
    """Open a file or archive for reading, or standard input. Raises OSError and LogUnreadable."""
    if path == STDIN:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    opener = next((each for ending, each in _ARCHIVES.items() if path.endswith(ending)), None)
    return open(path, "rb") if opener is None else opener(path)


def is_archive(path: str) -> bool:
    """Whether a file of this name is read as an archive, which never grows."""
    return path.endswith(tuple(_ARCHIVES))


def _rows(file: IO[bytes], path: str, census: Census) -> Iterator[bytes]:
    try:
        while row := file.readline(LONGEST):
            if not row.endswith(b"\n") and len(row) >= LONGEST:
                while (more := file.readline(LONGEST)) and not more.endswith(b"\n"):
                    pass
            yield row
    except (EOFError, zlib.error, lzma.LZMAError):
        census.truncated.append(path)
    except gzip.BadGzipFile as error:
        raise LogUnreadable(f"{path} is no gzip archive: {error}") from error


def _open_zstd(path: str) -> IO[bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # Python 3.14
    except ImportError:
        raise LogUnreadable(
            f"{path}: this Python ({sys.version_info.major}.{sys.version_info.minor}) can't read zstd, 3.14 can;"
            f" try: zstd -dc {path} | tritium logs -"
        ) from None
    return cast("IO[bytes]", zstd.open(path, "rb"))


_ARCHIVES: Final[Mapping[str, Callable[[str], Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}
