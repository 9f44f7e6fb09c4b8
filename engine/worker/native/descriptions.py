"""A batch as the shim reads it, and what the shim writes of it: bytes in the order that `c/host.c` says.

Everything is in the machine's own order, without padding.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from actors.values.datatypes import BY_NUMBER, DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.raw import RawOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.values.requests import Parameter
    from engine.worker.backends.base import BatchRequest
    from engine.worker.backends.raw import RawInput, Room

_HEAD = struct.Struct("=QIIQQQI")
_TOGETHER = struct.Struct("=IBB")
_PLACE = struct.Struct("=QQ")
_U64 = struct.Struct("=Q")
_U32 = struct.Struct("=I")
_I64 = struct.Struct("=q")
_DOUBLE = struct.Struct("=d")
_EVENT = struct.Struct("=QIB")
_DIMS = [struct.Struct(f"={dims}q") for dims in range(65)]

_STRING, _INT, _BOOL, _NUMBER = range(4)
_STACKED, _EACH, _ALL_FAILED = range(3)
_FINE, _FAILED, _UNANSWERED = range(3)

HAS_RESPONSE = 1
FINAL = 2
GONE = 4

_CODES = (
    ErrorCode.UNKNOWN,
    ErrorCode.INTERNAL,
    ErrorCode.NOT_FOUND,
    ErrorCode.INVALID_ARG,
    ErrorCode.UNAVAILABLE,
    ErrorCode.UNSUPPORTED,
    ErrorCode.ALREADY_EXISTS,
    ErrorCode.CANCELLED,
)
"""By their numbers in the C API."""


def code_of(number: int) -> ErrorCode:
    """Return the code that a library gave; UNKNOWN for a number that is none."""
    return _CODES[number] if 0 <= number < len(_CODES) else ErrorCode.UNKNOWN


# -- describing


def describe(
    token: int,
    rows: Sequence[int],
    inputs: Sequence[RawInput],
    places: Mapping[str, int],
    room: Room,
    flags: tuple[int, int],
) -> bytearray:
    """Return a batch without what requests carry besides inputs; `places` are those of declared inputs."""
    head = _HEAD.pack(token, len(rows), len(inputs), room.address, room.nbytes, *flags)
    text = bytearray(head)
    text += struct.pack(f"={len(rows)}Q", *rows)
    for each in inputs:
        if each.shape is None:
            parts = each.parts or ()
            dims = len(parts[0][0]) if parts else 0
            text += _TOGETHER.pack(places[each.name], dims, 1) + _U64.pack(each.address)
            for shape, nbytes in parts:
                text += _DIMS[dims].pack(*shape) + _U64.pack(nbytes)
        else:
            dims = len(each.shape)
            text += _TOGETHER.pack(places[each.name], dims, 0) + _DIMS[dims].pack(*each.shape)
            text += _PLACE.pack(each.address, each.nbytes)
    return text


def describe_requests(requests: Sequence[BatchRequest], outputs: Mapping[str, int]) -> bytes:
    """Return what requests carry besides inputs; `outputs` are the places of the declared ones."""
    return b"\0" + b"".join(_request(request, outputs) for request in requests)


PLAIN = b"\1"
"""In place of `describe_requests`: they carry nothing, and want all outputs."""


def _request(request: BatchRequest, outputs: Mapping[str, int]) -> bytes:
    text = bytearray(_text(request.id))
    correlation = request.correlation_id
    if isinstance(correlation, str):
        text += b"\1" + _text(correlation)
    else:
        text += b"\0" + _U64.pack(correlation & 0xFFFF_FFFF_FFFF_FFFF)
    text += _U32.pack(request.flags) + _U64.pack(request.timeout)
    wanted = [outputs[name] for name in request.requested_outputs if name in outputs]
    text += struct.pack(f"={len(wanted) + 1}I", len(wanted), *wanted)
    parameters = [_parameter(key, value) for key, value in request.parameters.items()]
    return bytes(text + _U32.pack(len(parameters)) + b"".join(parameters))


def _parameter(key: str, value: Parameter) -> bytes:
    name = _text(key)
    if isinstance(value, bool):
        return name + bytes((_BOOL, value))
    if isinstance(value, int):
        return name + bytes((_INT,)) + _I64.pack(_signed(value))
    if isinstance(value, float):
        return name + bytes((_NUMBER,)) + _DOUBLE.pack(value)
    return name + bytes((_STRING,)) + _text(value)


def _signed(value: int) -> int:
    """Return an integer as the 64 bits of a signed one: the protocol's may be unsigned."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >> 63 else value


def _text(text: str) -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


# -- what became of it


class Failure:
    """An error of one request."""

    __slots__ = ("code", "message")

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code = code
        self.message = message


class Response:
    """One response: its outputs, which may lie in the batch's room, and its parameters."""

    __slots__ = ("outputs", "parameters")

    def __init__(self, outputs: Sequence[RawOutput], parameters: Mapping[str, Any] | None) -> None:
        self.outputs = outputs
        self.parameters = parameters


class Event:
    """What has become of a request of a decoupled model."""

    __slots__ = ("index", "kind", "response", "token")

    def __init__(self, token: int, index: int, kind: int, response: Response | Failure | None) -> None:
        self.token = token
        self.index = index
        self.kind = kind
        self.response = response


class Outcome:
    """What became of a batch: `stacked`, `each` or `failure`. `needed` is how many bytes of room it took."""

    __slots__ = ("each", "failure", "needed", "stacked")

    def __init__(
        self,
        *,
        needed: int = 0,
        stacked: Sequence[RawOutput] | None = None,
        each: Sequence[Response | Failure | None] | None = None,
        failure: Failure | None = None,
    ) -> None:
        self.needed = needed
        self.stacked = stacked
        self.each = each
        self.failure = failure


class Reading:
    """Reads what the shim has written; `fetch` copies so many bytes from an address."""

    def __init__(self, data: bytes, names: Sequence[str], fetch: Any) -> None:
        self._data = data
        self._at = 0
        self._names = names  # of the declared outputs
        self._fetch = fetch

    def outcome(self, requests: int) -> Outcome:
        """Return what became of a batch."""
        kind = self._byte()
        if kind == _ALL_FAILED:
            return Outcome(failure=self._failure())
        needed = self._take(_U64)
        if kind == _STACKED:
            return Outcome(needed=needed, stacked=[self._in_room() for _ in range(self._take(_U32))])
        return Outcome(needed=needed, each=[self._answer() for _ in range(requests)])

    def events(self) -> list[Event]:
        """Return what has become of requests of a decoupled model, in order."""
        found = []
        while self._at < len(self._data):
            token, index, kind = _EVENT.unpack_from(self._data, self._at)
            self._at += _EVENT.size
            found.append(Event(token, index, kind, self._answer() if kind & HAS_RESPONSE else None))
        return found

    def _take(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _text(self) -> str:
        size = self._take(_U32)
        self._at += size
        return self._data[self._at - size : self._at].decode(errors="replace")

    def _failure(self) -> Failure:
        code = code_of(self._byte())
        return Failure(code, self._text())

    def _answer(self) -> Response | Failure | None:
        kind = self._byte()
        if kind == _UNANSWERED:
            return None
        if kind == _FAILED:
            return self._failure()
        parameters = {}
        for _ in range(self._take(_U32)):
            key = self._text()
            parameters[key] = self._value()
        outputs = [self._output() for _ in range(self._take(_U32))]
        return Response(outputs, parameters or None)

    def _value(self) -> Any:
        kind = self._byte()
        if kind == _STRING:
            return self._text()
        if kind == _INT:
            return self._take(_I64)
        return bool(self._byte()) if kind == _BOOL else self._take(_DOUBLE)

    def _shape(self) -> tuple[DataType, Sequence[int]]:
        datatype = BY_NUMBER[self._byte()]
        form = _DIMS[self._byte()]
        shape = form.unpack_from(self._data, self._at)
        self._at += form.size
        return datatype, shape

    def _in_room(self) -> RawOutput:
        place = self._take(_U32)
        datatype, shape = self._shape()
        at, nbytes = _PLACE.unpack_from(self._data, self._at)
        self._at += _PLACE.size
        return RawOutput(self._names[place], datatype, shape, nbytes, at)

    def _output(self) -> RawOutput:
        place = self._take(_U32)
        name = self._text() or self._names[place]
        datatype, shape = self._shape()
        at = self._take(_I64)
        nbytes, address = _PLACE.unpack_from(self._data, self._at)
        self._at += _PLACE.size
        data = b"" if at >= 0 else self._fetch(address, nbytes)
        return RawOutput(name, datatype, shape, nbytes, at, data)
