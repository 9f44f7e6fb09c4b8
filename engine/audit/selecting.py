"""What a log tells, from its records: changes with their outcomes, which are wanted, what is missing.

Pure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from engine.audit.records import ASKED, Entry, Record, digest_of

MOST_OPEN: Final = 10_000
"""Entries that wait behind a change whose outcome has not been read yet."""


@dataclass(slots=True)
class Told:
    """One action: its record or, of a change, the records that it was asked for and of its outcome."""

    first: Entry
    last: Entry | None = None

    @property
    def outcome(self) -> str:
        """What came of it: `asked` where the log does not tell, since the server ended first."""
        return (self.last or self.first).record.outcome

    @property
    def end(self) -> Record:
        """The record that tells most about the end."""
        return (self.last or self.first).record

    @property
    def entries(self) -> Sequence[Entry]:
        """Its records."""
        return (self.first,) if self.last is None else (self.first, self.last)


def told(entries: Iterable[Entry]) -> Iterator[Told]:
    """Yield the actions in the order in which they began.

    A change without an outcome holds the others back for `MOST_OPEN` entries at most. An outcome without its
    beginning, which an older file has, stands for itself.
    """
    line: deque[Told] = deque()
    open_: dict[str, Told] = {}
    for entry in entries:
        record = entry.record
        asked = open_.get(record.id) if record.id else None
        if record.outcome == ASKED and asked is not None:
            continue  # written once more, after the disk had failed
        if asked is not None:
            asked.last = entry
            del open_[record.id]
        else:
            line.append(Told(entry))
            if record.outcome == ASKED and record.id:
                open_[record.id] = line[-1]
        while line and (line[0].first.record.id not in open_ or len(line) > MOST_OPEN):
            open_.pop(line[0].first.record.id, None)
            yield line.popleft()
    yield from line


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an action must be to be shown. Empty fields ask for nothing; of several values any will do.

    Texts take the wildcards of a shell. Times are seconds since 1970.
    """

    identities: Sequence[str] = ()
    actions: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    models: Sequence[str] = ()
    addresses: Sequence[str] = ()
    since: float = -math.inf
    until: float = math.inf

    def wants(self, it: Told) -> bool:
        """Whether `it` is one of those."""
        record = it.first.record
        return (
            self.since <= record.time <= self.until
            and (not self.outcomes or it.outcome in self.outcomes)
            and _fits(record.identity, self.identities)
            and _fits(record.action, self.actions)
            and _fits(record.model, self.models)
            and _fits(record.address, self.addresses)
        )


def _fits(text: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(text, each) for each in patterns)


class Chain:
    """Follows the digests from record to record, through all files of a log in their order.

    `breaks` says where a line does not follow the one before it. What is missing at the end does not show:
    compare `number` and `digest` with those of an earlier look.
    """

    def __init__(self) -> None:
        self.number = 0  # of the last record
        self.digest = ""  # of its line
        self.first = 0  # number of the first record
        self.records = 0
        self.breaks: list[str] = []

    def add(self, entry: Entry, place: str) -> None:
        """Take the next record, which stands at `place`."""
        self.records += 1
        if not self.first:
            self.first = entry.number
        elif entry.former != self.digest:
            self.breaks.append(f"{place}: {self._complaint(entry)}")
        self.number, self.digest = entry.number, digest_of(entry.line)

    def _complaint(self, entry: Entry) -> str:
        missing = entry.number - self.number - 1
        if missing > 0:
            return f"{missing} records are missing before number {entry.number}"
        if not missing:
            return f"the record before number {entry.number} was changed"
        return f"number {entry.number} follows number {self.number}: records were added or exchanged"
