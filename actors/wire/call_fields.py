"""The fields of a worker's letter beyond its bytes. Each is checked, since a worker may be hostile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from actors.values.requests import Parameter
from actors.wire.batch_frames import check_parameters
from actors.wire.call_frames import LARGEST_BODY, Letter
from actors.wire.frames import FrameError, parse_json

_SUBJECT_LIMIT: Final = 256  # characters


_SHORT: Final = 1024  # bytes of the longest text whose fields are remembered
_KEPT: Final = 64  # texts that are remembered


@dataclass(slots=True, kw_only=True)
class CallFields:
    """A call, but for its inputs and on whose behalf it is made.

    `timeout` is in seconds, 0 for none. Calls with the same text share their fields.

    Not frozen, which would take longer to make than to check.
    """

    model: str
    version: int
    id: str
    requested_outputs: Sequence[str]
    correlation_id: int | str
    flags: int
    timeout: float
    priority: int
    parameters: Mapping[str, Parameter] | None  # with `trace` among them
    own_parameters: Mapping[str, Parameter] | None  # without
    trace: str  # the span in which the model makes it, as `traceparent`; empty: it has not said
    decoupled: bool
    blocking: bool


@dataclass(frozen=True, slots=True)
class Attached:
    """A question or a message."""

    subject: str
    body: Mapping[str, Any]
    attachments: Mapping[str, bytes]


def read_call(letter: Letter) -> CallFields:
    """Return the fields of a call. Raises FrameError."""
    if letter.text and len(letter.text) <= _SHORT:
        return _known_call(letter.text)
    return _read_call(letter.fields)


@lru_cache(maxsize=_KEPT)
def _known_call(text: bytes) -> CallFields:
    """Return the fields of a call with this text, which a letter was found to have."""
    return _read_call(parse_json(text))


def _read_call(fields: Mapping[str, Any]) -> CallFields:
    trace = _text(fields, "trace")
    parameters = own = _parameters(fields)
    if trace:
        parameters = {"traceparent": trace, **(own or {})}
    correlation_id = fields.get("correlation_id", 0)
    return CallFields(
        model=_text(fields, "model"),
        version=_number(fields, "version", -1, low=-(2**63)),
        id=_text(fields, "id"),
        requested_outputs=_names(fields.get("outputs", ())),
        correlation_id=_text(fields, "correlation_id")
        if isinstance(correlation_id, str)
        else _number(fields, "correlation_id", 0, high=2**64),
        flags=_number(fields, "flags", 0, high=2**31),
        timeout=_number(fields, "timeout", 0) / 1e6,
        priority=_number(fields, "priority", 0, high=2**64),
        parameters=parameters,
        own_parameters=own,
        trace=trace,
        decoupled=_truth(fields, "decoupled"),
        blocking=_truth(fields, "blocking"),
    )


def read_attached(letter: Letter) -> Attached:
    """Return a question or a message. Raises FrameError."""
    subject = _text(letter.fields, "subject")
    sizes = letter.fields.get("attachments")
    if len(subject) > _SUBJECT_LIMIT or not isinstance(sizes, list):
        raise FrameError(f"a letter on '{subject[:_SUBJECT_LIMIT]}' with attachments {type(sizes).__name__}")
    view = memoryview(letter.data)
    attachments: dict[str, bytes] = {}
    end = len(view)
    for name, nbytes in reversed([_attachment(each) for each in sizes]):
        if nbytes > end:
            raise FrameError(f"attachment '{name}' of {nbytes} bytes in a letter of {len(view)}")
        attachments[name] = bytes(view[end - nbytes : end])
        end -= nbytes
    if end > LARGEST_BODY:
        raise FrameError(f"a letter on '{subject}' with {end} bytes of JSON; at most {LARGEST_BODY} are read")
    try:
        body = parse_json(view[:end])
    except ValueError as error:
        raise FrameError(f"a letter on '{subject}' is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise FrameError(f"a letter on '{subject}' holds {type(body).__name__}, not an object")
    return Attached(subject, body, dict(reversed(attachments.items())))


def _attachment(each: object) -> tuple[str, int]:
    if not (isinstance(each, list) and len(each) == 2):
        raise FrameError("an attachment without a name and a size")
    name, nbytes = each
    return _text({"name": name}, "name"), _number({"size": nbytes}, "size", 0)


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str) or not (value.isascii() or travels(value)):
        raise FrameError(f"a worker's {key!r} is of type {type(value).__name__}, or no text that can travel")
    return value


def travels(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON may bring half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(fields: Mapping[str, Any], key: str, default: int, *, low: int = 0, high: int = 2**63) -> int:
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < high:
        raise FrameError(f"a worker's {key!r} is {str(value)[:80]!r}")
    return value


def _truth(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool):
        raise FrameError(f"a worker's {key!r} is of type {type(value).__name__}")
    return value


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise FrameError(f"a worker's outputs are of type {type(value).__name__}")
    return tuple(_text({"output": each}, "output") for each in value)


def _parameters(fields: Mapping[str, Any]) -> Mapping[str, Parameter] | None:
    parameters = fields.get("parameters")
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise FrameError("a call's parameters are no object")
    try:
        check_parameters(parameters)
    except ValueError as error:
        raise FrameError(f"a call's parameters can't travel: {error}") from error
    return parameters
