"""YAML of which every value knows its place, so that a mistake is told with its file, line and key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

import yaml

from engine.observability.text import printable

T = TypeVar("T")

_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?) ?(?P<unit>|[KMGT]i?B?|B)")
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_MOST_VALUES: Final = 100_000  # of a document, with what its aliases stand for
_TEXTS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "timestamp"))
_MERGE: Final = "tag:yaml.org,2002:merge"


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
        key = f"{shorten(self.path, 120)}: " if self.path else ""
        raise BadDocument(printable(f"{self._file}, line {mark.line + 1}: {key}{shorten(message, 500)}"))

    def value(self) -> Any:
        """Return the value as Python has it."""
        try:
            return yaml.SafeLoader("").construct_document(self.node)
        except yaml.MarkedYAMLError as error:
            self.wrong(f"can't be read: {error.problem or error.context}")
        except ValueError as error:  # such as a date that there is not
            self.wrong(f"can't be read: {error}")

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
            if key.tag == _MERGE:
                Entry(self._file, key, self.path).wrong("keys are not merged by `<<` here; write them out")
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
        written = self._written()
        if self.node.tag not in _TEXTS or not re.fullmatch(pattern, written):
            quoted = f"; in quotes it is text: '{written}'" if self.node.tag.endswith(":bool") else ""
            self.wrong(f"takes {meant}, got {self._shown()}{quoted}")
        return written

    def whole(self, least: int, most: int = 10**6) -> int:
        """Return a whole number of a range."""
        value = self.value()
        # YAML reads 010 as 8, and 1_0 as 10.
        if type(value) is not int or str(value) != self._written() or not least <= value <= most:
            self.wrong(f"takes a whole number from {least} to {most}, got {self._shown()}")
        return value

    def number(self, least: float, most: float) -> float:
        """Return a number of a range."""
        value = self.value()
        # YAML reads 1:30 as 90.
        is_number = (
            isinstance(value, int | float) and not isinstance(value, bool) and ":" not in self._written()
        )
        if not is_number or not least <= value <= most:
            self.wrong(f"takes a number from {least:g} to {most:g}, got {self._shown()}")
        return float(value)

    def size(self) -> int:
        """Return bytes, given as a number or with a unit such as `16Gi`, `16GiB` or `500MB`."""
        found = _SIZE.fullmatch(self._written())
        if found is None:
            self.wrong(f"takes a number of bytes such as 500MB or 16Gi, got {self._shown()}")
        unit = found["unit"].removesuffix("B")
        return int(float(found["number"]) * (_BINARY.get(unit) or _UNITS[unit]))

    def texts(self) -> dict[str, str]:
        """Return a mapping of text to text."""
        return {name: entry.text() for name, entry in self.members().items()}

    def _written(self) -> str:
        """Return a single value as it stands in the file; nothing for others."""
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""

    def _shown(self) -> str:
        value = self.value()
        if value is None:
            return "nothing"
        shown = self._written() if not isinstance(value, str) and self._written() else repr(value)
        return shorten(shown, 60)


def shorten(text: str, most: int) -> str:
    """Return `text`, or its beginning if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


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
    except RecursionError:
        raise BadDocument(f"{file}: it is nested too deeply") from None
    if node is None:
        raise BadDocument(f"{file}: it is empty; `replicas` or `discovery`, and `models` are to be there")
    if (size := _size(file, node, {})) > _MOST_VALUES:
        raise BadDocument(f"{file}: it has {size} values with its aliases; {_MOST_VALUES} are the most")
    return Entry(file, node)


def _size(file: str, node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node holds. An alias counts as all that it stands for."""
    if (before := known.get(id(node))) is not None:
        if not before:
            Entry(file, node).wrong("an alias stands within what it stands for")
        return before
    known[id(node)] = 0
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    inner = node.value if isinstance(node, yaml.SequenceNode) else [each for pair in pairs for each in pair]
    known[id(node)] = 1 + sum(_size(file, each, known) for each in inner)
    return known[id(node)]


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
