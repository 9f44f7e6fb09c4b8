"""The logging extension: settings as both protocols tell them, and a change of them read step by step.

A change is a series of steps, each on what the step before left. Keys are read in one order, whatever the
order in which they were sent. A key that is wrong ends the series, and the steps before it stand. What may
log otherwise than a step says is for its caller: a step is a whole state.

Contract: http.md section 5.2, grpc.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from actors.values.errors import Internal, InvalidArgument, Unavailable, Unsupported
from actors.values.interfaces import LogState
from protocols.kserve.documents import misfit, not_a

_FLAGS: Final = ("log_info", "log_warning", "log_error")
_LEVEL: Final = "log_verbose_level"
KEYS: Final = ("log_file", *_FLAGS, _LEVEL, "log_format")
"""The settings, in the order in which they are told and applied."""

_UINT32_MAX: Final = 2**32 - 1
_SHOWN: Final = 200  # characters of a format that is none
_FILE_STAYS: Final = "log file location can not be updated through network protocol"

Given = tuple[str | None, object]
"""A value of the gRPC message, and which member holds it."""


def described(state: LogState) -> dict[str, bool | int | str]:
    """Return the settings by their names on the wire."""
    return {
        "log_file": state.file,
        "log_info": state.info,
        "log_warning": state.warning,
        "log_error": state.error,
        _LEVEL: state.verbose_level,
        "log_format": state.format,
    }


def known(document: Mapping[str, object]) -> dict[str, object]:
    """Return what of a change has a meaning, for an audit log."""
    return {key: document[key] for key in KEYS if document.get(key) is not None}


def json_steps(state: LogState, document: Mapping[str, Any], formats: Sequence[str]) -> Iterator[LogState]:
    """Yield `state` after each key of an HTTP request. A null changes nothing.

    Raises Unsupported for a file, Internal for a value of another type, Unavailable for an unknown format.
    """
    if document.get("log_file") is not None:
        raise Unsupported(_FILE_STAYS)
    for key in KEYS[1:]:
        value = document.get(key)
        if value is None:
            continue
        if key in _FLAGS:
            if type(value) is not bool:
                raise misfit(document, key, "boolean")
        elif key == _LEVEL:
            _check_level(document, value)
        elif type(value) is not str:
            raise misfit(document, key, "string")
        elif value not in formats:
            raise Unavailable(f"invalid argument for --log_format, got: {value[:_SHOWN]}")
        state = _with(state, key, value)
        yield state


def _check_level(document: Mapping[str, Any], value: object) -> None:
    if type(value) is not int or value < 0:
        raise misfit(document, _LEVEL, "unsigned-integer")
    if value > _UINT32_MAX:
        raise Internal(f"Unable to parse '{_LEVEL}': {not_a('unsigned-integer')}, at most {_UINT32_MAX}")


def message_steps(
    state: LogState, given: Mapping[str, Any], read: Callable[[Any], Given], formats: Sequence[str]
) -> Iterator[LogState]:
    """Yield `state` after each key of a gRPC message; `read` tells a value and its member.

    Raises Unsupported for a file, and InvalidArgument for a value of another type or an unknown format.
    """
    if "log_file" in given:
        raise Unsupported(_FILE_STAYS)
    for key in KEYS[1:]:
        if key not in given:
            continue
        member, value = read(given[key])
        wanted, said = _WANTED[key]
        if member != wanted:
            raise InvalidArgument(f"expect {said} for '{key}'")
        if key == "log_format" and value not in formats:
            raise InvalidArgument(f"invalid argument for log_format, got: {str(value)[:_SHOWN]}")
        state = _with(state, key, value)
        yield state


_WANTED: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(_FLAGS, ("bool_param", "boolean")),
    _LEVEL: ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def _with(state: LogState, key: str, value: Any) -> LogState:
    return replace(state, **{key.removeprefix("log_"): value})
