"""Where each value of a completed configuration came from.

A configuration is seen as *leaves*: key → value, with the keys that problems use (`input[0].dims`,
`parameters["x"].string_value`). A sub-message without content is a leaf too, because its presence means
something. After each step of the completion the leaves are compared with those before it. What is new or
different is attributed to that step, so no step needs to keep account itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from google.protobuf import text_encoding
from google.protobuf.descriptor import FieldDescriptor

from engine.config.outline import outline
from protocols.kserve.proto.model_config_pb2 import ModelConfig

DEFAULT: Final = "default"
# An origin that is looked up at the first question.
_WRITTEN: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The text that a configuration was read from. `text` is empty if positions in it mean nothing."""

    name: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a configuration in text format.

    `key` is empty for a line that only opens or closes a message.
    """

    text: str
    key: str = ""


class Provenance:
    """The origins of one configuration's values, told of each step in turn."""

    def __init__(self, config: ModelConfig, source: Source) -> None:
        self._source = source
        self._leaves = dict(leaves(config))
        self._origins = dict.fromkeys(self._leaves, _WRITTEN)

    def note(self, config: ModelConfig, origin: str) -> None:
        """Put down to `origin` whatever in `config` is new or different since the last call."""
        now = dict(leaves(config))
        self._origins = {
            key: self._origins[key] if self._leaves.get(key, _Absent) == value else origin
            for key, value in now.items()
        }
        self._leaves = now

    def origins(self) -> Mapping[str, str]:
        """Return the origin of every leaf, by key: `config.pbtxt:3:5`, `model file (onnx)`, `default`, ..."""
        written = outline(self._source.text)

        def place(key: str) -> str:
            found = written.find(key)
            return self._source.name if found is None else f"{self._source.name}:{found[0]}:{found[1]}"

        return {key: origin or place(key) for key, origin in self._origins.items()}


class _Absent:
    """What no leaf is equal to."""


def leaves(message: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (key, value) of everything that is set in `message`; an empty sub-message has the value None."""
    for field, value in message.ListFields():
        name = prefix + field.name
        if field.message_type is None:
            yield name, tuple(value) if field.is_repeated else value
        else:
            for key, inner in _messages(field, name, value):
                yield from _leaf(key, inner)


def _leaf(key: str, value: Any) -> Iterator[tuple[str, object]]:
    if not hasattr(value, "ListFields"):  # a map's plain value
        yield key, value
    elif value.ListFields():
        yield from leaves(value, f"{key}.")
    else:
        yield key, None


def _messages(field: Any, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, message) of a field of messages: one, a list or a map."""
    if field.message_type.GetOptions().map_entry:
        for key in sorted(value):
            yield f'{name}["{key}"]', value[key]
    elif field.is_repeated:
        for at, inner in enumerate(value):
            yield f"{name}[{at}]", inner
    else:
        yield name, value


def text_lines(message: Any, prefix: str = "", indent: str = "") -> Iterator[Line]:
    """Yield `message` in text format, one leaf on each line, each with its key.

    A message of one leaf stands on that leaf's line.
    """
    for field, value in sorted(message.ListFields(), key=lambda each: each[0].index):  # the schema's order
        name = prefix + field.name
        if field.message_type is None:
            spelt = [_scalar(field, element) for element in (value if field.is_repeated else [value])]
            shown = f"[ {', '.join(spelt)} ]" if field.is_repeated else spelt[0]
            yield Line(text=f"{indent}{field.name}: {shown}", key=name)
        elif field.message_type.GetOptions().map_entry:
            yield from _map_lines(field, name, value, indent)
        else:
            for key, inner in _messages(field, name, value):
                yield from _message_lines(field.name, key, inner, indent)


def _message_lines(name: str, key: str, message: Any, indent: str) -> Iterator[Line]:
    if not message.ListFields():
        yield Line(text=f"{indent}{name} {{ }}", key=key)
        return
    inner = list(text_lines(message, f"{key}.", indent + "  "))
    if len(inner) == 1:
        yield Line(text=f"{indent}{name} {{ {inner[0].text.lstrip()} }}", key=inner[0].key)
        return
    yield Line(text=f"{indent}{name} {{")
    yield from inner
    yield Line(text=f"{indent}}}")


def _map_lines(field: Any, name: str, entries: Any, indent: str) -> Iterator[Line]:
    key_field, value_field = (field.message_type.fields_by_name[part] for part in ("key", "value"))
    for at in sorted(entries):
        key = f'{name}["{at}"]'
        value = entries[at]
        head = f"{indent}{field.name} {{ key: {_scalar(key_field, at)} value"
        if value_field.message_type is None:
            yield Line(text=f"{head}: {_scalar(value_field, value)} }}", key=key)
            continue
        inner = list(text_lines(value, f"{key}.", indent + "  "))
        if not inner:
            yield Line(text=f"{head} {{ }} }}", key=key)
        elif len(inner) == 1:  # nearly always: a parameter and its text
            yield Line(text=f"{head} {{ {inner[0].text.lstrip()} }} }}", key=inner[0].key)
        else:
            yield Line(text=f"{head} {{")
            yield from inner
            yield Line(text=f"{indent}}} }}")


def _scalar(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else str(known.name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{text_encoding.CEscape(value.encode(), as_utf8=True)}"'
    single = isinstance(value, float) and field.type == FieldDescriptor.TYPE_FLOAT
    return str(np.float32(value)) if single else str(value)
