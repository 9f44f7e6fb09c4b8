"""Bodies of the infer endpoint, as bytes, into `InferRequest`s.

A body is a JSON text, or a JSON text of a stated length with the bytes of its binary inputs behind it, or (length 0)
the bytes of the model's only input. Binary tensors stay views on the body; nothing is copied.

Clients repeat themselves: between the requests of one client the JSON text in front of binary inputs is often the
same byte for byte. `InferDecoder` keeps what such texts meant, so that most requests only cost the slicing.

Contract: http.md sections 6 and 7; texts and codes are exact. Errors come in the order in which Triton reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors.messages.datatypes import BY_PROTOCOL_NAME, DataType
from actors.messages.errors import Internal, InvalidArgument, Unsupported
from actors.messages.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from actors.messages.tensors import Tensor
from actors.specs import InputSpec, ModelSpec
from protocols.kserve.documents import misfit, not_a, parse
from protocols.kserve.elements import INT64_MAX, pack
from protocols.kserve.forwarding import with_forwarded
from protocols.memo import MEANING_FACTOR, MEANINGS_BYTES, Memo

if TYPE_CHECKING:
    from actors.messages.requests import Parameter, ReplyPort
    from actors.messages.tensors import Buffer

DEFAULT_MAX_INPUT_SIZE: Final = 64 * 1024 * 1024

_KEPT_TEXTS: Final = 512  # JSON texts remembered by a decoder,
_KEPT_LENGTH: Final = 4096  # none longer than this
_SIGNED: Final = re.compile(rb"\s*[+-]?[0-9]+\s*")
_RESERVED_HEADERS: Final = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
NO_SHARED_MEMORY: Final = "shared memory is not supported by this version of Tritium"
RAISE_LIMIT: Final = "Use --http-max-input-size to increase the limit."


class OutputChoice(NamedTuple):
    """How a client wants one output: as binary or JSON, and as its `classes` best classes (0: as it is)."""

    binary: bool
    classes: int


@dataclass(frozen=True, slots=True, eq=False)
class OutputPlan:
    """How a client wants its outputs. `named` is None where it named none and wants them all."""

    binary: bool
    named: Mapping[str, OutputChoice] | None


JSON_OUTPUTS: Final = OutputPlan(binary=False, named=None)
BINARY_OUTPUTS: Final = OutputPlan(binary=True, named=None)


class _Input(NamedTuple):
    name: str
    datatype: DataType
    shape: tuple[int, ...]
    size: int  # bytes behind the JSON text
    data: Buffer | None  # what the JSON text itself held


@dataclass(slots=True, eq=False)
class _Meaning:
    """What a JSON text says, its binary tensors left open."""

    id: str = ""
    parameters: Mapping[str, Parameter] | None = None
    priority: int = 0
    timeout: float = 0.0
    correlation_id: int | str = 0
    flags: int = 0
    inputs: Sequence[_Input] = ()
    binary_size: int = 0
    requested_outputs: tuple[str, ...] = ()
    outputs: OutputPlan = JSON_OUTPUTS


class InferDecoder:
    """Decode infer bodies under one size limit, remembering the JSON texts of binary requests."""

    def __init__(self, *, max_input_size: int = DEFAULT_MAX_INPUT_SIZE) -> None:
        self._max_input_size = max_input_size
        self._meanings: Memo[bytes, _Meaning] = Memo(_KEPT_TEXTS, MEANINGS_BYTES)

    def decode(
        self,
        body: Buffer,
        json_size: int | None,
        spec: ModelSpec,
        *,
        requested_version: int,
        reply: ReplyPort,
        accepted_at: float,
        forwarded: Mapping[str, str] | None = None,
    ) -> tuple[InferRequest, OutputPlan]:
        """Return the request in `body` and how its answer is to be written.

        `json_size` is the value of the Inference-Header-Content-Length header, None where it was not sent;
        `forwarded` are headers that become parameters. The request's tensors view `body`.
        Raises InvalidArgument, Internal and Unsupported.
        """
        if json_size == 0:
            return self._decode_raw(body, spec, requested_version, reply, accepted_at, forwarded)
        size = len(body) if json_size is None else json_size
        meaning = self._meaning(body, size, spec, framed=json_size is not None)
        return (
            InferRequest(
                model_name=spec.name,
                requested_version=requested_version,
                id=meaning.id,
                inputs=_tensors(meaning.inputs, memoryview(body), size),
                requested_outputs=meaning.requested_outputs,
                parameters=meaning.parameters
                if forwarded is None
                else with_forwarded(meaning.parameters, forwarded),
                priority=meaning.priority,
                timeout=meaning.timeout,
                correlation_id=meaning.correlation_id,
                flags=meaning.flags,
                reply=reply,
                accepted_at=accepted_at,
            ),
            meaning.outputs,
        )

    def _meaning(self, body: Buffer, size: int, spec: ModelSpec, *, framed: bool) -> _Meaning:
        text = body if size == len(body) else bytes(body[:size])
        if size <= _KEPT_LENGTH and framed:
            text = bytes(text)
            kept = self._meanings.get(text)
            if kept is not None and kept.binary_size == len(body) - size:
                return kept
        check_json_size(size, self._max_input_size)
        meaning = _read(parse(text), len(body) - size, spec, limit=self._max_input_size, framed=framed)
        if meaning.binary_size and size <= _KEPT_LENGTH and all(part.data is None for part in meaning.inputs):
            self._meanings.remember(bytes(text), meaning, MEANING_FACTOR * size)
        return meaning

    def _decode_raw(
        self,
        body: Buffer,
        spec: ModelSpec,
        requested_version: int,
        reply: ReplyPort,
        accepted_at: float,
        forwarded: Mapping[str, str] | None,
    ) -> tuple[InferRequest, OutputPlan]:
        if len(body) > self._max_input_size:
            raise InvalidArgument(
                f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of "
                f"{self._max_input_size} bytes. {RAISE_LIMIT}"
            )
        request = InferRequest(
            model_name=spec.name,
            requested_version=requested_version,
            parameters=forwarded,
            reply=reply,
            accepted_at=accepted_at,
        )
        request.inputs = (_raw_tensor(body, spec, request.prefix),)
        return request, BINARY_OUTPUTS


def _tensors(parts: Sequence[_Input], body: memoryview, at: int) -> list[Tensor]:
    tensors = []
    for name, datatype, shape, size, data in parts:
        if data is None:
            end = at + size
            data = body[at:end]
            at = end
        tensors.append(Tensor(name, datatype, shape, data))
    return tensors


def check_json_size(size: int, limit: int) -> None:
    """Raise InvalidArgument for a JSON text of more than `limit` bytes."""
    if size > limit:
        raise InvalidArgument(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. {RAISE_LIMIT}"
        )


def parse_json_size(value: bytes, body_size: int) -> int:
    """Return the Inference-Header-Content-Length header as a number within the body."""
    size = int(value) if value.isdigit() and len(value) < 11 else _signed(value)
    if not 0 <= size <= body_size:
        raise InvalidArgument(
            f"inference header size should be in range (0, {body_size}), got: {value.decode('latin-1')}"
        )
    return size


def _signed(value: bytes) -> int:
    shown = value.decode("latin-1")
    if _SIGNED.fullmatch(value) is None:
        raise InvalidArgument(f"Unable to parse Inference-Header-Content-Length, got: {shown}")
    size = int(value) if len(value) < 100 else 2**31
    if not -(2**31) <= size < 2**31:
        raise InvalidArgument(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {shown}"
        )
    return size


def forward_headers(
    headers: Sequence[tuple[bytes, bytes]], pattern: re.Pattern[str]
) -> dict[str, str] | None:
    """Return the headers that `pattern` matches anywhere in their names, as parameters; None where none does.

    Raises InvalidArgument for a match with a name that Triton reserves.
    """
    forwarded: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        if pattern.search(name) is None:
            continue
        if name in _RESERVED_HEADERS or name.startswith("triton_"):
            raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        forwarded[name] = raw_value.decode("latin-1")
    return forwarded or None


def _read(document: Any, behind: int, spec: ModelSpec, *, limit: int, framed: bool) -> _Meaning:
    """Return what `document` says; `behind` is the number of bytes after its text."""
    members: dict[str, Any] = document if type(document) is dict else {}
    meaning = _Meaning()
    if "id" in members:
        meaning.id = members["id"]
        if type(meaning.id) is not str:
            raise misfit(members, "id", "string")
    if "parameters" in members:
        _read_parameters(members["parameters"], meaning)
    inputs = members.get("inputs")
    if type(inputs) is not list:
        raise misfit(members, "inputs", "array")
    reader = _InputReader(spec, meaning.id, behind, limit=limit, framed=framed)
    meaning.inputs = [reader.read(element) for element in inputs]
    meaning.binary_size = behind - reader.left
    if reader.left:
        raise InvalidArgument(f"unexpected additional input data for model '{spec.name}'")
    if "outputs" in members:
        _read_outputs(members["outputs"], meaning)
    return meaning


def _read_parameters(document: Any, meaning: _Meaning) -> None:
    if type(document) is not dict:
        raise Internal("Unable to parse 'parameters': attempt to get members for non-object")
    custom: dict[str, Parameter] = {}
    for key, value in document.items():
        kind = type(value)
        match key:
            case "sequence_id":
                if not (kind is str or (kind is int and value >= 0)):
                    raise misfit(document, key, "string")
                meaning.correlation_id = value
            case "sequence_start" | "sequence_end":
                if kind is not bool:
                    raise misfit(document, key, "boolean")
                if value:
                    meaning.flags |= FLAG_SEQUENCE_START if key == "sequence_start" else FLAG_SEQUENCE_END
            case "priority":
                meaning.priority = _unsigned(document, key)
            case "timeout":
                meaning.timeout = _unsigned(document, key) / 1_000_000
            case "binary_data_output":
                if kind is not bool:
                    raise misfit(document, key, "boolean")
                meaning.outputs = BINARY_OUTPUTS if value else JSON_OUTPUTS
            case _:
                if key.startswith("triton_"):
                    raise InvalidArgument(
                        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
                        "specified."
                    )
                custom[key] = custom_parameter(key, value)
    meaning.parameters = custom or None


def custom_parameter(key: str, value: Any) -> Parameter:
    """Return the JSON value of a parameter that has no meaning of its own; whole numbers beyond int64 as floats.

    Raises InvalidArgument where it is no scalar.
    """
    if type(value) is int:
        return value if value <= INT64_MAX else float(value)
    if type(value) not in {str, bool, float}:
        raise InvalidArgument(
            f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    parameter: Parameter = value
    return parameter


def _unsigned(holder: dict[str, Any], key: str, *, verb: str = "parse") -> int:
    value = holder[key]
    if type(value) is not int or value < 0:
        raise misfit(holder, key, "unsigned-integer", verb=verb)
    return value


def _string(holder: Any, key: str) -> str:
    value = holder.get(key) if type(holder) is dict else None
    if type(value) is not str:
        raise misfit(holder, key, "string")
    return value


class _InputReader:
    """Reads the elements of `inputs`, keeping count of the bytes `left` behind the JSON text."""

    __slots__ = ("_framed", "_limit", "_request_id", "_spec", "left")

    def __init__(self, spec: ModelSpec, request_id: str, left: int, *, limit: int, framed: bool) -> None:
        self._spec = spec
        self._request_id = request_id
        self._limit = limit
        self._framed = framed
        self.left = left

    def read(self, element: Any) -> _Input:
        name = _string(element, "name")
        datatype_name = _string(element, "datatype")
        shape = _shape(element)
        datatype = BY_PROTOCOL_NAME.get(datatype_name)
        parameters = element.get("parameters")
        if type(parameters) is not dict:
            parameters = {}
        _check_one_source(element, parameters)
        if "shared_memory_region" in parameters:
            raise Unsupported(NO_SHARED_MEMORY)
        if "binary_data_size" in parameters:
            size = self._binary_size(name, parameters)
            return _Input(name, datatype or self._no_datatype(name), shape, size, None)
        data = element["data"]
        if type(data) is not list:
            raise misfit(element, "data", "array")
        count = _element_count(name, shape)
        if count == 0:
            return _Input(name, datatype or self._no_datatype(name), shape, 0, b"")
        if datatype is None:
            raise InvalidArgument(f"invalid datatype for input {name}")
        return _Input(name, datatype, shape, 0, pack(data, name, datatype, count, self._limit))

    def _binary_size(self, name: str, parameters: dict[str, Any]) -> int:
        size = _unsigned(parameters, "binary_data_size")
        if size and not self._framed:
            raise InvalidArgument(
                "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' "
                "when passing inputs in binary data format"
            )
        if size > self.left:
            raise InvalidArgument(
                f"unexpected size for input '{name}', expecting {size - self.left} additional bytes "
                f"for model '{self._spec.name}'"
            )
        self.left -= size
        return size

    def _no_datatype(self, name: str) -> DataType:
        raise unknown_datatype(name, self._request_id, self._spec)


def unknown_datatype(name: str, request_id: str, spec: ModelSpec) -> InvalidArgument:
    """Return what the core says of input `name` whose datatype does not exist: nothing later could carry it there."""
    declared = spec.inputs_by_name.get(name)
    if declared is None:
        return InvalidArgument(f"unexpected inference input '{name}' for model '{spec.name}'")
    return InvalidArgument(
        f"[request id: {request_id or '<id_unknown>'}] inference input '{name}' data-type is '<invalid>', "
        f"but model '{spec.name}' expects '{declared.datatype}'"
    )


def _shape(element: Any) -> tuple[int, ...]:
    shape = element.get("shape")
    if type(shape) is not list:
        raise misfit(element, "shape", "array")
    for dim in shape:
        if type(dim) is not int or dim < 0:
            raise Internal(f"Unable to parse 'shape': {not_a('unsigned-integer')}")
    return tuple(shape)


_SOURCES: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


def _check_one_source(element: dict[str, Any], parameters: dict[str, Any]) -> None:
    in_parameters = ("binary_data_size" in parameters) + ("shared_memory_region" in parameters)
    if in_parameters + ("data" in element) == 1:
        return
    found = [
        f"'{field}'"
        for field, holder in (
            ("data", element),
            ("binary_data_size", parameters),
            ("shared_memory_region", parameters),
        )
        if field in holder
    ]
    raise InvalidArgument(_SOURCES + (f"set {' '.join(found)}" if found else "no field is set"))


def _element_count(name: str, shape: tuple[int, ...]) -> int:
    """Return how many elements the `data` array of an input must hold; none for an empty shape."""
    if not shape or 0 in shape:
        return 0
    count = 1
    for dim in shape:
        count *= dim
        if count > INT64_MAX:
            raise InvalidArgument(
                f"invalid shape for input '{name}': shape [{','.join(map(str, shape))}] causes total element count "
                f"to exceed maximum size of {INT64_MAX}"
            )
    return count


def _read_outputs(document: Any, meaning: _Meaning) -> None:
    if type(document) is not list:
        raise Internal(f"Unable to parse 'outputs': {not_a('array')}")
    named: dict[str, OutputChoice] = {}
    names: list[str] = []
    for element in document:
        name = _string(element, "name")
        names.append(name)
        parameters = element.get("parameters")
        named[name] = _output_choice(parameters) if type(parameters) is dict else OutputChoice(False, 0)
    if names:
        meaning.requested_outputs = tuple(names)
        meaning.outputs = OutputPlan(meaning.outputs.binary, named)


def _output_choice(parameters: dict[str, Any]) -> OutputChoice:
    classes = _unsigned(parameters, "classification", verb="set") if "classification" in parameters else 0
    binary = parameters.get("binary_data", False)
    if "shared_memory_region" in parameters:
        if type(parameters["shared_memory_region"]) is not str:
            raise misfit(parameters, "shared_memory_region", "string")
        if classes:
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'classification'")
        if binary is True:
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'binary_data'")
        raise Unsupported(NO_SHARED_MEMORY)
    if type(binary) is not bool:
        raise misfit(parameters, "binary_data", "boolean")
    return OutputChoice(binary, classes)


def _raw_tensor(body: Buffer, spec: ModelSpec, prefix: str) -> Tensor:
    """Return the model's single input made of a whole body, its shape deduced (contract, section 6.6)."""
    if len(spec.inputs) != 1:
        raise InvalidArgument(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got {len(spec.inputs)} inputs "
            f"in '{spec.name}' model configuration"
        )
    (declared,) = spec.inputs
    leading = (1,) if spec.batches else ()
    if declared.datatype is DataType.BYTES:
        if declared.dims != (1,):
            raise InvalidArgument(
                f"{prefix}For BYTE datatype raw input '{declared.name}', the model must have input shape [1]"
            )
        packed = len(body).to_bytes(4, "little") + bytes(body)
        return Tensor(declared.name, DataType.BYTES, (*leading, 1), packed)
    dims = _deduce(declared, len(body), prefix)
    return Tensor(declared.name, declared.datatype, (*leading, *dims), memoryview(body))


def _deduce(declared: InputSpec, nbytes: int, prefix: str) -> tuple[int, ...]:
    dims = declared.dims
    if dims.count(-1) == 0:
        return dims
    if dims.count(-1) > 1:
        raise InvalidArgument(
            f"{prefix}The shape of the raw input '{declared.name}' can not be deduced because there are more than "
            "one variable-sized dimension"
        )
    fixed = declared.datatype.size
    for dim in dims:
        fixed *= 1 if dim == -1 else dim
    deduced = nbytes // fixed if fixed else 0
    return tuple(deduced if dim == -1 else dim for dim in dims)
