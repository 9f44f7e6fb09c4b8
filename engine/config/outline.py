"""Where everything stands in a `config.pbtxt`, and which names in it the schema does not know.

protobuf's own parser decides what a file means, but it stops at the first mistake and forgets positions. This walk
over the same tokens, guided by the schema, is made only once something is to be reported. It never fails: where it
loses track of the structure it stops, and protobuf's error stands alone.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import text_format

from engine.config.problems import did_you_mean
from protocols.kserve.proto.model_config_pb2 import ModelConfig

_DEEPEST: Final = 32  # the schema's own depth is 7
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*\Z")

# What other tools call the datatypes.
_DATATYPE_ALIASES: Final = {
    "FLOAT16": "TYPE_FP16",
    "HALF": "TYPE_FP16",
    "FLOAT": "TYPE_FP32",
    "FLOAT32": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "FLOAT64": "TYPE_FP64",
    "BFLOAT16": "TYPE_BF16",
    "LONG": "TYPE_INT64",
    "INT": "TYPE_INT32",
    "BOOLEAN": "TYPE_BOOL",
    "STR": "TYPE_STRING",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A field or enum value that the schema does not have, at (line, column) from 1."""

    line: int
    column: int
    key: str
    token: str
    message: str
    hint: str
    is_value: bool  # an enum value; else a field


@dataclass(slots=True)
class Outline:
    """What the walk found, in the order of the file."""

    records: list[tuple[str, int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def find(self, key: str) -> tuple[int, int] | None:
        """Return where `key` or the nearest field around it stands; None where nothing of it is in the file."""
        first: dict[str, tuple[int, int]] = {}
        for name, line, column in self.records:
            first.setdefault(name, (line, column))
            if name.endswith("]"):  # a list is where its first element is
                first.setdefault(name[: name.rindex("[")], (line, column))
        for name in _outwards(key):
            if name in first:
                return first[name]
        return None

    def key_at(self, line: int, column: int) -> str:
        """Return the key that begins at or last before a position."""
        at = bisect_right([(line, column) for _, line, column in self.records], (line, column))
        return self.records[at - 1][0] if at else ""


def outline(text: str) -> Outline:
    """Walk `text`, a configuration in protobuf text format."""
    result = Outline()
    with contextlib.suppress(_LostTrack, text_format.ParseError):
        _Walk(text, result).message(ModelConfig.DESCRIPTOR, "", "", depth=0)
    return result


def blank(text: str, faults: list[Fault], replacement: str) -> str:
    """Return `text` with each fault's token replaced by a shorter one, padded so that no position moves."""
    lines = text.split("\n")
    for fault in faults:
        line = lines[fault.line - 1]
        start, end = fault.column - 1, fault.column - 1 + len(fault.token)
        lines[fault.line - 1] = line[:start] + replacement.ljust(len(fault.token)) + line[end:]
    return "\n".join(lines)


class _LostTrack(Exception):
    """The tokens do not have the structure of text format here."""


class _Walk:
    """One pass over the tokens; `descriptor` is None inside a message that the schema does not know."""

    def __init__(self, text: str, result: Outline) -> None:
        self._tokens: Any = text_format.Tokenizer(text.split("\n"))  # its stub is wrong about ParseError
        self._result = result
        self._map_keys: dict[str, str] = {}  # by the entry's indexed key, while inside it

    def message(self, descriptor: Any, prefix: str, end: str, *, depth: int) -> None:
        """Walk fields up to the token `end`, which is left to the caller."""
        if depth > _DEEPEST:
            raise _LostTrack
        tokens = self._tokens
        seen: dict[str, int] = {}
        while not tokens.AtEnd() and tokens.token != end:
            name = tokens.token
            if not _IDENTIFIER.match(name):
                raise _LostTrack
            line, column = self._here()
            declared = None if descriptor is None else descriptor.fields_by_name.get(name)
            if descriptor is not None and declared is None:
                self._unknown_field(descriptor, prefix, name, line, column)
            tokens.NextToken()
            tokens.TryConsume(":")
            for at in self._values():
                if at > 0:  # the first element of a list is where the field is
                    line, column = self._here()
                key = _key_of(declared, prefix + name, seen.get(name, 0))
                seen[name] = seen.get(name, 0) + 1
                self._result.records.append((key, line, column))
                self._value(declared, key, depth)
            if not tokens.TryConsume(","):
                tokens.TryConsume(";")

    def _values(self) -> Iterator[int]:
        """Stop at each value, giving its position: one value, or those of a `[ … ]` list."""
        tokens = self._tokens
        if not tokens.TryConsume("["):
            yield 0
            return
        position = 0
        while not tokens.TryConsume("]"):
            if tokens.AtEnd():
                raise _LostTrack
            yield position
            position += 1
            tokens.TryConsume(",")

    def _value(self, declared: Any, key: str, depth: int) -> None:
        tokens = self._tokens
        if tokens.token not in ("{", "<"):
            self._scalar(declared, key)
            return
        end = "}" if tokens.token == "{" else ">"
        tokens.NextToken()
        start = len(self._result.records)
        self.message(None if declared is None else declared.message_type, key + ".", end, depth=depth + 1)
        if not tokens.TryConsume(end):
            raise _LostTrack
        if declared is not None and _is_map(declared):
            self._name_entry(declared, key, start)

    def _scalar(self, declared: Any, key: str) -> None:
        tokens = self._tokens
        token = tokens.token
        if token and token[0] in "\"'":
            while tokens.token and tokens.token[0] in "\"'":  # adjacent strings are one
                tokens.NextToken()
            self._note_map_key(declared, key, token[1:-1])
            return
        if not token or token in "{}<>[]:;,":
            raise _LostTrack
        enum = None if declared is None else declared.enum_type
        if enum is not None and _IDENTIFIER.match(token) and token not in enum.values_by_name:
            self._unknown_value(enum, key, token)
        self._note_map_key(declared, key, token)
        tokens.NextToken()

    def _note_map_key(self, declared: Any, key: str, text: str) -> None:
        if (
            declared is not None
            and declared.name == "key"
            and declared.containing_type.GetOptions().map_entry
        ):
            self._map_keys[key.removesuffix(".key")] = text

    def _name_entry(self, declared: Any, key: str, start: int) -> None:
        """Rename what a map entry recorded from `parameters[0]` to `parameters["its key"]`."""
        records = self._result.records
        entry_key = self._map_keys.pop(key, None)
        if entry_key is None:
            return
        named = f'{key[: key.rindex("[")]}["{entry_key}"]'
        for at in range(start - 1, len(records)):
            name, line, column = records[at]
            records[at] = (named + name.removeprefix(key).removeprefix(".value"), line, column)

    def _unknown_field(self, descriptor: Any, prefix: str, name: str, line: int, column: int) -> None:
        known = descriptor.fields_by_name
        snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
        if snake in known:
            hint = f"did you mean '{snake}'?"
        else:
            homes = [
                f.name
                for f in descriptor.fields
                if f.message_type and not _is_map(f) and name in f.message_type.fields_by_name
            ]
            hint = f"it belongs inside '{homes[0]}'" if homes else did_you_mean(name, known)
        message = f"'{descriptor.name}' has no field '{name}'"
        self._result.faults.append(Fault(line, column, prefix + name, name, message, hint, is_value=False))

    def _unknown_value(self, enum: Any, key: str, token: str) -> None:
        known = enum.values_by_name
        upper = token.upper()
        bare = upper.removeprefix("TYPE_")
        suffixed = [value for value in known if value == upper or value.endswith(f"_{upper}")]
        if enum.name == "DataType" and bare in _DATATYPE_ALIASES:
            hint = f"did you mean '{_DATATYPE_ALIASES[bare]}'?"
        elif suffixed:
            hint = f"did you mean '{suffixed[0]}'?"
        else:
            hint = did_you_mean(upper, known) or "one of " + ", ".join(known)
        line, column = self._here()
        message = f"'{token}' is no {enum.name}"
        self._result.faults.append(Fault(line, column, key, token, message, hint, is_value=True))

    def _here(self) -> tuple[int, int]:
        error = self._tokens.ParseError("")  # the tokenizer's only public word on where it stands
        return error.GetLine(), error.GetColumn()


def _key_of(declared: Any, name: str, index: int) -> str:
    indexed = declared is not None and declared.is_repeated and declared.message_type is not None
    return f"{name}[{index}]" if indexed else name


def _is_map(declared: Any) -> bool:
    message_type = declared.message_type
    return message_type is not None and bool(message_type.GetOptions().map_entry)


def _outwards(key: str) -> Iterator[str]:
    """Yield `a[0].b`, `a[0]`, `a`: dots inside the quotes of a map key don't count."""
    parts = re.findall(r'\["[^"]*"\]|\[\d+\]|\.?\w+', key)
    for end in range(len(parts), 0, -1):
        yield "".join(parts[:end])
