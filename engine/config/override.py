"""The configuration that comes with a load request: ModelConfig as JSON.

Contract: model_config.md section 1. protobuf's JSON parser stops at its first mistake, and knows enums by
their exact names only. This reader takes the schema's own names and their camelCase, enums in any case, and
64-bit numbers as numbers or strings. It tells every mistake by its place in the document, such as
`input[0].dims[1]`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from engine.config.parse import Parsed, bytes_warning
from engine.config.unfilled import clear_unfilled
from engine.config.wording import (
    ENUM_NUMBERS,
    FLOATS,
    INTEGERS,
    TYPE_BYTES,
    boolean_meant,
    bounds_hint,
    enum_hint,
    field_suggestion,
    fields_hint,
    is_map,
    takes,
)
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig

_PREFIX: Final = "Invalid config override: "
_ELEMENT: Final = re.compile(r"\[[0-9]+\]\Z")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}\Z")
_LARGEST_FLOAT: Final = 3.4028234663852886e38  # of 32 bits
_SPECIAL_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONGEST_SHOWN: Final = 40


def parse_override(text: str, model_directory: Path) -> Parsed:
    """Read `text`, a JSON ModelConfig for the model in `model_directory`. Every mistake is told at once."""
    reader = _Reader(model_directory)
    try:
        document = json.loads(text, object_pairs_hook=_Object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reader.note("", f"it is no JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        reader.note("", "it is nested too deeply")
    except ValueError as error:  # of a constant or a number that Python would read and JSON doesn't have
        reader.note("", f"it is no JSON: {error}")
    else:
        reader.message(reader.config, document, "")
    errors = reader.errors
    reader.warnings += clear_unfilled(reader.config)
    return Parsed(
        config=None if errors else reader.config,
        problems=(*errors, *reader.warnings),
        partial=reader.config if errors and "" not in reader.spoilt else None,
        spoilt=frozenset(reader.spoilt),
    )


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its names were there twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: list[str] = []
        if len(self) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.repeated = sorted(name for name, count in counts.items() if count > 1)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


class _Refused(Exception):
    """A value that a field doesn't take: what it is told, and what would have worked."""

    def __init__(self, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


class _Reader:
    """One pass over a document. What can't be read is left out of `config`."""

    def __init__(self, path: Path) -> None:
        self.config = ModelConfig()
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []
        self.spoilt: list[str] = []
        self._path = path

    def note(self, key: str, detail: str, hint: str = "") -> None:
        key, detail, hint = _sayable(key), _sayable(detail), _sayable(hint)
        self.errors.append(Problem(message=_PREFIX + detail, path=self._path, key=key, hint=hint))
        self.spoilt.append(_ELEMENT.sub("", key))  # empty: the whole document

    def message(self, message: Any, value: object, key: str) -> None:
        """Read a JSON object into `message`, whose key is `key`."""
        if not isinstance(value, Mapping):
            if key:
                self.note(
                    key, f"'{key}' takes an object, not {_shown(value)}", _fields(message.DESCRIPTOR, value)
                )
            else:
                self.note("", "it is no JSON object", 'it is a configuration, such as {"max_batch_size": 8}')
            return
        given: dict[str, str] = {}  # by field: the name that it was given
        chosen: dict[str, str] = {}  # by oneof: its field
        for name in value.repeated if isinstance(value, _Object) else ():
            self.note(_join(key, name), f"'{_join(key, name)}' is given more than once", "keep one of them")
        for name, element in value.items():
            field = _field(message.DESCRIPTOR, name)
            if field is None:
                meant, hint = field_suggestion(message.DESCRIPTOR, name)
                self.note(
                    _join(key, name), f"'{message.DESCRIPTOR.name}' has no field '{_join(key, name)}'", hint
                )
                if meant:
                    self.spoilt.append(_join(key, meant))
            elif element is not None:  # null: as if it were not there
                where = _join(key, field.name)
                oneof = field.containing_oneof.name if field.containing_oneof is not None else ""
                if field.name in given:
                    self.note(where, f"'{where}' is given as '{given[field.name]}' too", "keep one of them")
                elif oneof and oneof in chosen:
                    self.note(where, f"'{where}' excludes '{_join(key, chosen[oneof])}'", "keep one of them")
                else:
                    self._read(message, field, element, where)
                given[field.name] = name
                chosen.setdefault(oneof, field.name)

    def _read(self, message: Any, field: Any, value: object, key: str) -> None:
        if is_map(field):
            self._map(getattr(message, field.name), field, value, key)
        elif field.is_repeated:
            self._list(getattr(message, field.name), field, value, key)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            self.message(inner, value, key)
        else:
            for scalar in self._scalar(field, value, key):
                setattr(message, field.name, scalar)

    def _list(self, target: Any, field: Any, value: object, key: str) -> None:
        if not isinstance(value, list):
            self.note(key, f"'{key}' takes a list, not {_shown(value)}", f"write [ {_shown(value)} ]")
            return
        for at, element in enumerate(value):
            where = f"{key}[{at}]"
            if field.message_type is not None:
                self.message(target.add(), element, where)
            else:
                target.extend(self._scalar(field, element, where))

    def _map(self, target: Any, field: Any, value: object, key: str) -> None:
        entry = field.message_type.fields_by_name
        if not isinstance(value, Mapping):
            self.note(key, f"'{key}' takes an object, not {_shown(value)}", 'write { "<key>": … }')
            return
        for name in value.repeated if isinstance(value, _Object) else ():
            self.note(f'{key}["{name}"]', f"'{key}[\"{name}\"]' is given more than once", "keep one of them")
        for name, element in value.items():
            where = f'{key}["{name}"]'
            for entry_key in self._scalar(entry["key"], name, where):
                if entry["value"].message_type is not None:
                    self.message(target[entry_key], element, where)
                else:
                    for scalar in self._scalar(entry["value"], element, where):
                        target[entry_key] = scalar

    def _scalar(self, field: Any, value: object, key: str) -> Iterator[Any]:
        """Give the value that the field takes; nothing if it takes none."""
        if field.enum_type is not None and field.enum_type.name == "DataType" and _is_bytes(value):
            self.warnings.append(bytes_warning(key, self._path))
            yield DataType.TYPE_STRING
            return
        try:
            yield _scalar(field, value)
        except _Refused as error:
            self.note(key, f"'{key}' {error.detail}", error.hint)


def _field(descriptor: Any, name: str) -> Any:
    name = _sayable(name)  # protobuf looks names up as UTF-8
    found = descriptor.fields_by_name.get(name)
    return descriptor.fields_by_camelcase_name.get(name) if found is None else found


def _fields(descriptor: Any, value: object) -> str:
    """Return what an object for `descriptor` holds: `value` itself, if it is what the only field takes."""
    if not descriptor.fields:
        return "write {}"
    only = descriptor.fields[0]
    if len(descriptor.fields) == 1 and only.message_type is None and not only.is_repeated:
        with contextlib.suppress(_Refused):
            _scalar(only, value)
            return f'write {{"{only.name}": {_shown(value)}}}'
    return fields_hint(descriptor)


def _is_bytes(value: object) -> bool:
    return isinstance(value, str) and value.upper() == TYPE_BYTES


def _scalar(field: Any, value: object) -> object:
    """Return what the field holds for a JSON value. Raises _Refused."""
    wrong = f"takes {takes(field, text_format=False)}, not {_shown(value)}"
    if field.enum_type is not None:
        return _enum(field.enum_type, value, wrong)
    if field.type in INTEGERS:
        low, high = INTEGERS[field.type]
        number = _whole(value)
        if number is None or not low <= number <= high:
            raise _Refused(wrong, "" if number is None else bounds_hint(field))
        return number
    if field.type in FLOATS:
        return _float(value, wrong, single=field.type == FieldDescriptor.TYPE_FLOAT)
    if field.type == FieldDescriptor.TYPE_BOOL:
        if isinstance(value, bool):
            return value
        meant = boolean_meant(value) if isinstance(value, str) else ""
        raise _Refused(wrong, f"write {meant}" if meant else "")
    if not isinstance(value, str):
        raise _Refused(wrong, f'write "{_shown(value)}"' if isinstance(value, int | float) else "")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Refused("is no text: it has half of a surrogate pair") from None
    return value


def _enum(enum: Any, value: object, wrong: str) -> int:
    if isinstance(value, str):
        found = enum.values_by_name.get(_sayable(value.upper()))
        if found is None:
            raise _Refused(f"is '{value}', which is no {enum.name}", enum_hint(enum, value))
        return int(found.number)
    number = _whole(value)
    if number is None or not ENUM_NUMBERS[0] <= number <= ENUM_NUMBERS[1]:
        raise _Refused(wrong, "one of " + ", ".join(enum.values_by_name))
    return number


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, str) and _WHOLE.match(value) else None


def _float(value: object, wrong: str, *, single: bool) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise _Refused(wrong)
        if isinstance(value, str) and value not in _SPECIAL_FLOATS and not _NUMBER.match(value):
            raise _Refused(wrong)
        number = (
            _SPECIAL_FLOATS[value] if isinstance(value, str) and value in _SPECIAL_FLOATS else float(value)
        )
    except (ValueError, OverflowError):
        raise _Refused(wrong) from None
    if single and math.isfinite(number) and abs(number) > _LARGEST_FLOAT:
        raise _Refused(wrong, f"up to {_LARGEST_FLOAT:g}")
    return number


def _sayable(text: str) -> str:
    """Return `text` with halves of surrogate pairs, which JSON may hold and UTF-8 not, spelt out."""
    return text.encode(errors="backslashreplace").decode()


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
