"""The trace extension: changes of trace settings as both protocols bring them, and settings as they are told.

Contract: http.md section 5.1, grpc.md section 6.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from actors.values.errors import Internal, InvalidArgument, NotFound, Unavailable, Unsupported
from actors.values.interfaces import Models
from actors.values.tracing.settings import (
    HIGHEST_COUNT,
    HIGHEST_RATE,
    LEVELS,
    NO_TRACING,
    NOT_UPDATABLE,
    OFF,
    Given,
    SettingChange,
    TraceControl,
)
from protocols.kserve.documents import misfit

_LEVEL: Final = "trace_level"
_NUMBERS: Final = {
    "trace_rate": ("rate", 0, HIGHEST_RATE),
    "trace_count": ("count", -1, HIGHEST_COUNT),
    "log_frequency": ("log_frequency", 0, HIGHEST_RATE),
}
"""Settings that are numbers: what a change calls them, the least and the most."""

_KEYS: Final = (_LEVEL, *_NUMBERS)
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]{1,19}", re.ASCII)
_SHOWN: Final = 200  # characters of a client's value that an error repeats
_MOST_LEVELS: Final = 64


def control_of(traces: TraceControl | None) -> TraceControl:
    """Return what changes trace settings. Raises Unavailable where nothing does."""
    if traces is None:
        raise Unavailable(NO_TRACING)
    return traces


def check_ready(models: Models, name: str) -> None:
    """Raise NotFound for an unknown model, and InvalidArgument for one of which no version is ready."""
    if not name:
        return
    try:
        ready = models.versions(name)
    except Unavailable:  # it is loaded for the first time
        ready = ()
    if not ready:
        raise InvalidArgument(f"Request for unknown model : {name}")


def is_known(models: Models, name: str) -> bool:
    """Whether there is such a model. Raises InvalidArgument where no version of it is ready."""
    try:
        check_ready(models, name)
    except NotFound:
        return False
    return True


def known(document: Mapping[str, object]) -> dict[str, object]:
    """Return what of a change has a meaning, for an audit log."""
    return {key: document[key] for key in _KEYS if key in document}


def json_change(document: object) -> SettingChange:
    """Return the change that the body of an HTTP request asks for.

    Raises Unsupported for a file, Internal for a value of another type and InvalidArgument for one that makes
    no sense.
    """
    if not isinstance(document, dict):
        raise Internal("attempt to access non-existing object member 'trace_level'")
    if "trace_file" in document:
        raise Unsupported(NOT_UPDATABLE)
    fields: dict[str, Any] = {}
    if _LEVEL in document:
        levels = document[_LEVEL]
        if levels is None:
            fields["levels"] = Given.CLEAR
        elif type(levels) is list and all(type(level) is str for level in levels):
            fields["levels"] = _levels(levels)
        else:
            raise misfit(document, _LEVEL, "array")
    for key, (name, least, most) in _NUMBERS.items():
        if key not in document:
            continue
        value = document[key]
        if value is None:
            fields[name] = Given.CLEAR
        elif type(value) is str or type(value) is int:  # Triton takes strings alone
            fields[name] = _number(key, str(value), least, most, colon="got:")
        else:
            raise misfit(document, key, "string")
    return SettingChange(**fields)


def message_change(settings: Mapping[str, Sequence[str]]) -> SettingChange:
    """Return the change that the settings of a gRPC message ask for; one without a value is cleared.

    Raises Unsupported for a file, and InvalidArgument for a value that makes no sense.
    """
    if "trace_file" in settings:
        raise Unsupported(NOT_UPDATABLE)
    fields: dict[str, Any] = {}
    if _LEVEL in settings:
        fields["levels"] = _levels(settings[_LEVEL]) if settings[_LEVEL] else Given.CLEAR
    for key, (name, least, most) in _NUMBERS.items():
        if key not in settings:
            continue
        values = settings[key]
        if len(values) > 1:
            raise InvalidArgument(f"expect only 1 value for '{key}'")
        fields[name] = _number(key, values[0], least, most, colon="got: ") if values else Given.CLEAR
    return SettingChange(**fields)


def _levels(words: Sequence[str]) -> tuple[str, ...] | Given:
    """Return the levels that are on. Words that are no levels are passed over, as Triton does."""
    if OFF in words:
        if len(words) > 1:
            raise InvalidArgument("Expect only one trace level 'OFF' is specified")
        return ()
    return tuple(level for level in LEVELS if level in words[:_MOST_LEVELS]) or Given.KEEP


def _number(key: str, word: str, least: int, most: int, *, colon: str) -> int:
    shown = word[:_SHOWN]
    if _NUMBER.fullmatch(word) is None:
        raise InvalidArgument(f"Unable to parse '{key}', got: {shown}")
    value = int(word)
    if least < 0 and -(most + 1) <= value < least:
        raise InvalidArgument(f"Unable to parse '{key}'. Expecting value >= {least}, {colon}{shown}")
    if not least <= value <= most:
        raise InvalidArgument(
            f"Unable to parse '{key}', value is out of range [ {least}, {most} ], got: {shown}"
        )
    return value


def told_values(setting: Mapping[str, str | Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield settings as gRPC has them: each a list."""
    for key, value in setting.items():
        yield key, (value,) if isinstance(value, str) else value
