"""YAML of which every value knows its place, so that a mistake is told with its file, line and key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

import yaml

T = TypeVar("T")

_SIZE: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?) ?(?P<unit>|[KMGT]i?B?|B)")
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class BadDocument(ValueError):
    """The file of a fleet can't be used: every mistake on a line of its own."""


class Entry:
    """One value of a document: `path` is its keys, such as `models.resnet.versions`."""

    def __init__(self, file: str, node: yaml.Node, path: str = "") -> None:
        self._file = file
        self.node = node
        self.path = path

    def wrong(self, message: str) -> NoReturn:
        """Raise BadDocument about this value."""
        mark = self.node.start_mark
        key = f"{self.path}: " if self.path else ""
        raise BadDocument(f"{self._file}, line {mark.line + 1}: {key}{message}")

    def value(self) -> Any:
        """Return the value as Python has it."""
        return yaml.SafeLoader("").construct_document(self.node)

    def members(self) -> dict[str, Entry]:
        """Return a mapping's entries. Keys are text, and each is there once."""
        if not isinstance(self.node, yaml.MappingNode):
            self.wrong(f"takes keys and values, got {self._shown()}")
        found: dict[str, Entry] = {}
        for key, value in self.node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            entry = Entry(self._file, value, f"{self.path}.{name}" if self.path else name)
            if not name:
                Entry(self._file, key, self.path).wrong("a key is text")
            if name in found:
                entry.wrong("is there twice; keep one of them")
            found[name] = entry
        return found

    def fields(self, *names: str) -> dict[str, Entry]:
        """Return a mapping's entries, which have these names alone."""
        found = self.members()
        for name, entry in found.items():
            if name not in names:
                meant = get_close_matches(name, names, n=1)
                hint = f"did you mean '{meant[0]}'?" if meant else f"there are {', '.join(names)}"
                entry.wrong(f"there is no such key; {hint}")
        return found

    def items(self) -> list[Entry]:
        """Return a list's entries."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.wrong(f"takes a list, got {self._shown()}")
        return [Entry(self._file, each, f"{self.path}[{at}]") for at, each in enumerate(self.node.value)]

    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self.node, yaml.SequenceNode)

    def is_mapping(self) -> bool:
        """Whether it has keys."""
        return isinstance(self.node, yaml.MappingNode)

    def text(self, pattern: str = ".+", meant: str = "text") -> str:
        """Return text that matches a pattern; `meant` says what it is."""
        value = self.value()
        if isinstance(value, bool | list | dict) or value is None or not re.fullmatch(pattern, str(value)):
            self.wrong(f"takes {meant}, got {self._shown()}")
        return str(value)

    def whole(self, least: int, most: int = 10**6) -> int:
        """Return a whole number of a range."""
        value = self.value()
        if type(value) is not int or not least <= value <= most:
            self.wrong(f"takes a whole number from {least} to {most}, got {self._shown()}")
        return value

    def number(self, least: float, most: float) -> float:
        """Return a number of a range."""
        value = self.value()
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            self.wrong(f"takes a number from {least:g} to {most:g}, got {self._shown()}")
        return float(value)

    def size(self) -> int:
        """Return bytes, given as a number or with a unit such as `16Gi`, `16GiB` or `500MB`."""
        found = _SIZE.fullmatch(str(self.value())) if isinstance(self.node, yaml.ScalarNode) else None
        if found is None:
            self.wrong(f"takes a number of bytes such as 500MB or 16Gi, got {self._shown()}")
        unit = found["unit"].removesuffix("B")
        return int(float(found["number"]) * (_BINARY.get(unit) or _UNITS[unit]))

    def texts(self) -> dict[str, str]:
        """Return a mapping of text to text."""
        return {name: entry.text() for name, entry in self.members().items()}

    def _shown(self) -> str:
        shown = repr(self.value())
        return shown if len(shown) <= 60 else f"{shown[:57]}..."


def read(file: str, text: str) -> Entry:
    """Return the whole of a document. Raises BadDocument."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise BadDocument(f"{file}{line}: it is no YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise BadDocument(f"{file}: it is no YAML: {error}") from error
    if node is None:
        raise BadDocument(f"{file}: it is empty; `replicas` or `discovery`, and `models` are to be there")
    return Entry(file, node)


def each_told(reads: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Yield what each of several readings returns. Raises BadDocument with all mistakes."""
    mistakes = []
    for one in reads:
        try:
            yield one()
        except BadDocument as error:
            mistakes.append(str(error))
    if mistakes:
        raise BadDocument("\n".join(mistakes))
