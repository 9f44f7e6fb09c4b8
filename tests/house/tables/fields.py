"""The page of fields, docs/reference/configuration_fields.md, from the schema and its comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from protocols.kserve.proto.model_config_pb2 import ModelConfig
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "configuration_fields.md"
ABOUT: Final = ROOT / "docs" / "configuration" / "fields.md"
"""The page that says what becomes of each field."""

_SCHEMA: Final = ROOT / "protocols" / "kserve" / "proto" / "model_config.proto"
_MESSAGE: Final = re.compile(r"\s*(?:message|enum|oneof) (?P<name>\w+) \{(?P<empty>\})?")
_FIELD: Final = re.compile(r"[^/]* (?P<name>\w+) = -?[0-9]+;\s*(?://\s*(?P<about>.+))?")
_COMMENT: Final = re.compile(r"\s*//\s*(?P<about>.+)")

_INTRODUCTION: Final = """\
# Fields of `config.pbtxt`

This page is written by `python -m tests.house.reference` from the schema, which is Triton's.
[configuration/fields.md](../configuration/fields.md) says what becomes of each field,
[model_configuration.md](../model_configuration.md) has the `tritium.*` parameters.
"""


def page() -> str:
    """Return the page."""
    comments = _comments()
    return _INTRODUCTION + "".join(_section(message, comments) for message in messages())


def messages() -> list[Any]:
    """Return the descriptors of the configuration and of all messages in it, the outermost first."""
    found: dict[str, Any] = {}
    waiting = [ModelConfig.DESCRIPTOR]
    while waiting:
        message = waiting.pop(0)
        if message.full_name not in found:
            if not _is_map(message):
                found[message.full_name] = message
            waiting += [field.message_type for field in message.fields if field.message_type]
    return list(found.values())


def _section(message: Any, comments: dict[str, str]) -> str:
    name = _short(message.full_name)
    about = comments.get(name, "")
    head = f"\n## {name}\n\n" + (f"{about}\n\n" if about else "")
    rows = "".join(_rows(message, name, comments))
    return head + (f"| field | type | |\n|---|---|---|\n{rows}" if rows else "It has no fields.\n")


def _rows(message: Any, name: str, comments: dict[str, str]) -> Iterator[str]:
    for field in message.fields:
        about = comments.get(f"{name}.{field.name}", "")
        choice = f"one of `{field.containing_oneof.name}`" if field.containing_oneof else ""
        yield f"| `{field.name}` | {_type(field)} | {'; '.join(filter(None, (choice, about)))} |\n"


def _type(field: Any) -> str:
    if field.message_type and _is_map(field.message_type):
        key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        return f"map from {_type(key)} to {_type(value)}"
    many = "list of " if field.is_repeated else ""
    if field.message_type:
        name = _short(field.message_type.full_name)
        return f"{many}[{name}](#{name.lower().replace('.', '')})"
    if field.enum_type:
        words = ", ".join(f"`{value.name}`" for value in field.enum_type.values)
        return many + (_short(field.enum_type.full_name) if len(field.enum_type.values) > 8 else words)
    return many + _SCALARS[field.type]


_SCALARS: Final = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    8: "bool",
    9: "string",
    13: "uint32",
}
"""Numbers of types, from `descriptor.proto`."""


def _is_map(message: Any) -> bool:
    return bool(message.GetOptions().map_entry)


def _short(name: str) -> str:
    return name.removeprefix("inference.")


def _comments() -> dict[str, str]:
    """Return the comments of the schema, by message, and by message and field."""
    comments: dict[str, str] = {}
    inside: list[tuple[str, bool]] = []
    before: list[str] = []
    for line in _SCHEMA.read_text(encoding="utf-8").splitlines():
        if comment := _COMMENT.fullmatch(line):
            before.append(comment["about"])
            continue
        if opened := _MESSAGE.match(line):
            named = not line.lstrip().startswith("oneof")
            path = ".".join(name for name, counts in [*inside, (opened["name"], named)] if counts)
            comments[path] = " ".join(before)
            if not opened["empty"]:
                inside.append((opened["name"], named))
        elif field := _FIELD.fullmatch(line):
            path = ".".join(name for name, counts in inside if counts)
            comments[f"{path}.{field['name']}"] = field["about"] or " ".join(before)
        elif line.strip() == "}":
            inside.pop()
        before = []
    return comments
