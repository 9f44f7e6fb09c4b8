"""Audit logs at rest: a file, the older ones beside it, and what in them is no record."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from engine.audit.records import LONGEST, Entry, parse

Opener = Callable[[str], IO[bytes]]
"""Opens a file or an archive for reading."""

_AT_ONCE: Final = 4 * LONGEST


@dataclass(slots=True)
class Census:
    """What was read: the number of records, and the lines that are none, by file."""

    records: int = 0
    damaged: dict[str, list[int]] = field(default_factory=dict)


def with_older(path: str) -> Sequence[str]:
    """Return the files of a log, the oldest first: `path.2`, `path.1`, `path`, archives of them as well.

    A log of which nothing is there is `path` alone, so that reading it tells what is wrong.
    """
    folder, name = os.path.split(path)
    form = re.compile(re.escape(name) + r"\.([0-9]{1,9})(?:\.(?:gz|bz2|xz|zst))?")
    try:
        names = os.listdir(folder or ".")
    except OSError:
        names = []
    older = [(int(found[1]), each) for each in names if (found := form.fullmatch(each))]
    files = [os.path.join(folder, each) for _, each in sorted(older, reverse=True)]
    if os.path.lexists(path) or not files:
        files.append(path)
    return _once(files)


def _once(files: Sequence[str]) -> Sequence[str]:
    """Return the files without those that are another's second name, which a crash in a rotation leaves."""
    found: dict[object, str] = {}
    for path in files:
        try:
            there = os.stat(path)
        except OSError:
            found.setdefault(path, path)
        else:
            found.setdefault((there.st_dev, there.st_ino), path)
    return list(found.values())


def read(files: Sequence[str], census: Census, opener: Opener) -> Iterator[tuple[Entry, str]]:
    """Yield the records of `files` in their order, and where each stands. Raises OSError."""
    for path in files:
        with opener(path) as file:
            for number, line in enumerate(_lines(file), 1):
                entry = parse(line)
                if entry is not None:
                    census.records += 1
                    yield entry, f"{path}, line {number}"
                elif line.strip():
                    census.damaged.setdefault(path, []).append(number)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield lines; of one that is too long to be a record, the beginning."""
    while line := file.readline(_AT_ONCE):
        rest = line
        while len(rest) >= _AT_ONCE and not rest.endswith(b"\n"):
            rest = file.readline(_AT_ONCE)
        yield line
