"""What is found in the text of a configuration, and where: fields, mistakes, and the spans around them.

Every mistake has a *span*, the smallest whole field around it. `without_spoilt` blanks those spans. What is
left of the file is then a configuration whose other rules can be checked in the same pass.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]  # line and column, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A token that the schema has no place for.

    `meant` is the key of the field that its author may have had in mind.
    """

    line: int
    column: int
    key: str
    message: str
    hint: str = ""
    meant: str = ""


@dataclass(frozen=True, slots=True)
class Spoilt:
    """A field with a fault of its own, from its name up to the next field.

    It spans `start` to `end`, which is not included.
    """

    key: str
    start: Place
    end: Place


@dataclass(frozen=True, slots=True)
class Spelling:
    """A token that is read as another one."""

    key: str
    place: Place
    token: str


@dataclass(slots=True)
class Outline:
    """What the walk found, in the order of the file."""

    records: list[tuple[str, int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    spoilt: list[Spoilt] = field(default_factory=list)
    bytes_for_string: list[Spelling] = field(default_factory=list)  # each TYPE_BYTES
    repeated_entries: list[tuple[str, Place]] = field(default_factory=list)  # map keys that were there before
    lost: bool = False  # the walk stopped before the end of the file
    # Filled at the first question.
    _first: dict[str, Place] = field(default_factory=dict, init=False, repr=False)

    def find(self, key: str) -> Place | None:
        """Return where `key` or the nearest field around it stands; None if nothing of it is in the file."""
        first = self._first
        if not first:
            for name, line, column in self.records:
                first.setdefault(name, (line, column))
                if name.endswith("]"):  # a list is where its first element is
                    first.setdefault(name[: name.rindex("[")], (line, column))
        return next((first[name] for name in _outwards(key) if name in first), None)

    def key_at(self, line: int, column: int) -> str:
        """Return the key that begins at or last before a position."""
        at = bisect_right([(line, column) for _, line, column in self.records], (line, column))
        return self.records[at - 1][0] if at else ""


def without_spoilt(text: str, spoilt: Iterable[Spoilt]) -> str:
    """Return `text` with the given fields blanked, so that no position moves."""
    lines = text.split("\n")
    for span in spoilt:
        (first, start), (last, end) = span.start, span.end
        for number in range(first, min(last, len(lines)) + 1):
            line = lines[number - 1]
            left = start - 1 if number == first else 0
            right = min(end - 1, len(line)) if number == last else len(line)
            lines[number - 1] = line[:left] + " " * (right - left) + line[right:]
    return "\n".join(lines)


def respelt(text: str, spellings: Iterable[Spelling], replacement: str) -> str:
    """Return `text` with each token replaced by a shorter one, padded so that no position moves."""
    lines = text.split("\n")
    for spelling in spellings:
        number, column = spelling.place
        line = lines[number - 1]
        start, end = column - 1, column - 1 + len(spelling.token)
        lines[number - 1] = line[:start] + replacement.ljust(len(spelling.token)) + line[end:]
    return "\n".join(lines)


def _outwards(key: str) -> Iterator[str]:
    """Yield `a[0].b`, `a[0]`, `a`: dots inside the quotes of a map key don't count."""
    parts = re.findall(r'\["[^"]*"\]|\[\d+\]|\.?\w+', key)
    for end in range(len(parts), 0, -1):
        yield "".join(parts[:end])
