"""What a field of the schema takes, and what an author who wrote something else may have meant.

The first part serves both spellings of a configuration, protobuf's text format and JSON. The second part
serves the text format alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from engine.models.problems import did_you_mean

# The bounds of every integer type in the schema.
INTEGERS: Final[Mapping[int, tuple[int, int]]] = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
FLOATS: Final = frozenset((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE))
ENUM_NUMBERS: Final = INTEGERS[FieldDescriptor.TYPE_INT32]

# The protocol's name of TYPE_STRING, which many published configurations use by mistake.
TYPE_BYTES: Final = "TYPE_BYTES"

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
    "BYTES": "TYPE_STRING",
}
QUOTES: Final = ("'", '"')
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]+\Z")
_LONGEST_SHOWN: Final = 40
_YES: Final = frozenset(("true", "yes", "on"))
_NO: Final = frozenset(("false", "no", "off"))


def is_map(field: Any) -> bool:
    """Whether a field is a map."""
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def is_entry(descriptor: Any) -> bool:
    """Whether a message is one entry of a map."""
    return bool(descriptor.GetOptions().map_entry)


def takes(field: Any, *, text_format: bool = True) -> str:
    """Return what one value of a field must be, in words."""
    if field.message_type is not None:
        return "{ … }" if text_format else "an object"
    if field.enum_type is not None:
        return f"a {field.enum_type.name}"
    if field.type in INTEGERS:
        return "a whole number"
    if field.type in FLOATS:
        return "a number"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "true or false"
    return "a string"


def bounds_hint(field: Any) -> str:
    """Return which numbers an integer field can hold."""
    low, high = INTEGERS[field.type]
    return f"from {low} to {high}"


def field_suggestion(descriptor: Any, name: str) -> tuple[str, str]:
    """Return the field of a message that `name` may have meant (or an empty string), and a hint."""
    known = descriptor.fields_by_name
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
    if snake in known:
        return snake, f"did you mean '{snake}'?"
    homes = [
        field.name
        for field in descriptor.fields
        if field.message_type is not None and not is_map(field) and snake in field.message_type.fields_by_name
    ]
    if homes:
        return "", f"it belongs inside '{homes[0]}'"
    hint = did_you_mean(name, known)
    return hint.removeprefix("did you mean '").removesuffix("'?"), hint


def enum_hint(enum: Any, token: str) -> str:
    """Return which value of an enum `token` may have meant, or which there are."""
    known = enum.values_by_name
    upper = token.upper()
    bare = upper.removeprefix("TYPE_")
    suffixed = [value for value in known if value == upper or value.endswith(f"_{upper}")]
    if enum.name == "DataType" and bare in _DATATYPE_ALIASES:
        return f"did you mean '{_DATATYPE_ALIASES[bare]}'?"
    if suffixed:
        return f"did you mean '{suffixed[0]}'?"
    return did_you_mean(upper, known) or "one of " + ", ".join(known)


def fields_hint(descriptor: Any) -> str:
    """Return which fields a message has."""
    return "its fields are " + ", ".join(field.name for field in descriptor.fields)


def boolean_meant(text: str) -> str:
    """Return `true` or `false` for a word that means one of them, or an empty string."""
    word = text.lower()
    return "true" if word in _YES else "false" if word in _NO else ""


def scalar_value(declared: Any, token: str) -> object:
    """Return the value that protobuf makes of a token for a field that is no string, or None."""
    if token[0] in QUOTES or declared.type == FieldDescriptor.TYPE_STRING:
        return None
    try:
        if declared.type in INTEGERS:
            low, high = INTEGERS[declared.type]
            return text_format.ParseInteger(token, is_signed=low < 0, is_long=high > 2**32)
        if declared.type in FLOATS:
            return text_format.ParseFloat(token)
        if declared.enum_type is None:
            return text_format.ParseBool(token)
        if token == TYPE_BYTES and declared.enum_type.name == "DataType":
            return token
        number = text_format.ParseEnum(declared, token)
    except ValueError:
        return None
    return number if ENUM_NUMBERS[0] <= number <= ENUM_NUMBERS[1] else None


def remedy(declared: Any, instead: str) -> str:
    """Return what to write in place of `instead`: a token, or what stands there in words."""
    bare = instead[1:-1] if instead[:1] in QUOTES else instead
    structure = instead in ("a list", "{ … }")
    if declared.message_type is not None:
        if boolean_meant(bare):
            return f"write {declared.name} {{ }}"
        fields = declared.message_type.fields
        if len(fields) != 1 or fields[0].message_type is not None:
            return fields_hint(declared.message_type)
        return f"write {declared.name} {{ {fields[0].name}: {_inner_example(fields[0], instead)} }}"
    if structure:
        example = '"…"' if declared.type == FieldDescriptor.TYPE_STRING else "…"
        return f"write {declared.name}: {example}"
    if declared.enum_type is not None:
        return (
            f"write {bare}"
            if bare in declared.enum_type.values_by_name
            else enum_hint(declared.enum_type, bare)
        )
    if declared.type == FieldDescriptor.TYPE_STRING:
        return f'write "{shown(instead)}"'
    if declared.type == FieldDescriptor.TYPE_BOOL:
        meant = boolean_meant(bare)
        return f"write {meant}" if meant else ""
    if bare and bare != instead and scalar_value(declared, bare) is not None:
        return f"write {bare}"
    return bounds_hint(declared) if declared.type in INTEGERS and _WHOLE_NUMBER.match(instead) else ""


def _inner_example(declared: Any, instead: str) -> str:
    """Return what stands for a value of the only field of a message: `instead` itself, if it is one."""
    if declared.is_repeated:
        return "[ … ]"
    if declared.type == FieldDescriptor.TYPE_STRING:
        return shown(instead) if instead[0] in QUOTES else '"…"'
    return shown(instead) if scalar_value(declared, instead) is not None else "…"


def entry_hint(descriptor: Any, token: str) -> str:
    """Return how to write one entry of a map, for an author who wrote something like `{ "a": "b" }`."""
    key = descriptor.fields_by_name["key"]
    written = token[1:-1] if token[:1] in QUOTES else token
    example_key = f'"{shown(written)}"' if key.type == FieldDescriptor.TYPE_STRING else "1"
    value = descriptor.fields_by_name["value"]
    if value.message_type is None:
        return f'an entry is {{ key: {example_key} value: "…" }}'
    inner = value.message_type.fields[0]
    example = f'{inner.name}: "…"' if len(value.message_type.fields) == 1 and inner.enum_type is None else "…"
    return f"an entry is {{ key: {example_key} value {{ {example} }} }}"


def shown(token: str) -> str:
    """Return a token as a message quotes it."""
    if not token:
        return "the end of the file"
    return token if len(token) <= _LONGEST_SHOWN else token[: _LONGEST_SHOWN - 1] + "…"
