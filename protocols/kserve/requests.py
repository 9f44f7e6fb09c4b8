"""Turns bodies of the infer endpoint, as bytes, into `InferRequest`s.

A body is one of three things: a JSON text; a JSON text of a stated length with the bytes of its binary inputs
behind it; or (length 0) the bytes of the model's only input. Binary tensors stay views of the body; nothing
is copied.

Clients repeat themselves: between the requests of one client the JSON text in front of binary inputs is often
the same byte for byte. `InferDecoder` keeps what such texts meant, so that most requests only cost the
slicing.

Contract: http.md sections 6 and 7; texts and codes are exact. Errors come in the order in which Triton reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.errors import Internal, InvalidArgument, Unsupported
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from actors.values.specs import ModelSpec
from actors.values.tensors import MAX_DIMS, Tensor, element_count
from protocols.kserve.caps import MAX_NAME, check_count, check_dims, check_name, check_parameters
from protocols.kserve.documents import misfit, not_a
from protocols.kserve.elements import INT64_MAX, Packing, can_pack, pack
from protocols.kserve.forwarding import with_forwarded
from protocols.kserve.long_texts import CountingTaker, LongArray, LongText
from protocols.kserve.raw_requests import raw_tensor
from protocols.kserve.short_texts import read_short
from protocols.kserve.sizes import RAISE_LIMIT, check_json_size
from protocols.memo import MEANING_FACTOR, MEANINGS_BYTES, Memo

if TYPE_CHECKING:
    from collections.abc import Generator

    from actors.values.requests import Parameter, ReplyPort
    from actors.values.tensors import Buffer

DEFAULT_MAX_INPUT_SIZE: Final = 64 * 1024 * 1024

_KEPT_TEXTS: Final = 512  # JSON texts that a decoder remembers
_KEPT_LENGTH: Final = 4096  # bytes of the longest text that is remembered
# The root, `inputs`, an input: its members are values of the third level.
_DEPTH_OF_INPUT: Final = 3
NO_SHARED_MEMORY: Final = "shared memory is not supported by this version of Tritium"


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
    """What a JSON text says, apart from its binary tensors."""

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
        Raises InvalidArgument, Internal and Unsupported, and TooLong where `decode_long` must do it.
        """
        if json_size == 0:
            return self._decode_raw(body, spec, requested_version, reply, accepted_at, forwarded)
        size = len(body) if json_size is None else json_size
        meaning = self._meaning(body, size, spec, framed=json_size is not None)
        return _request(meaning, body, size, spec, requested_version, reply, accepted_at, forwarded)

    def decode_long(
        self,
        body: Buffer,
        json_size: int | None,
        spec: ModelSpec,
        *,
        requested_version: int,
        reply: ReplyPort,
        accepted_at: float,
        forwarded: Mapping[str, str] | None = None,
    ) -> Generator[None, None, tuple[InferRequest, OutputPlan]]:
        """Do as `decode` does, in slices."""
        size = len(body) if json_size is None else json_size
        check_json_size(size, self._max_input_size)
        limit = self._max_input_size

        def taker_for(depth: int, members: Mapping[str, Any], key: str) -> Packing | None:
            return _packing(members, limit, size) if depth == _DEPTH_OF_INPUT and key == "data" else None

        document = yield from LongText(memoryview(body)[:size], taker_for).document()
        inputs = document.get("inputs") if type(document) is dict else None
        for element in inputs if type(inputs) is list else ():
            data = element.get("data") if type(element) is dict else None
            if type(data) is LongArray:
                yield from _pack_anew(data, _packing(element, limit, size))
        framed = json_size is not None
        meaning = _read(document, len(body) - size, spec, limit=limit, framed=framed)
        return _request(meaning, body, size, spec, requested_version, reply, accepted_at, forwarded)

    def _meaning(self, body: Buffer, size: int, spec: ModelSpec, *, framed: bool) -> _Meaning:
        if size <= _KEPT_LENGTH and framed:
            key = bytes(body[:size])
            kept = self._meanings.get(key)
            if kept is not None and kept.binary_size == len(body) - size:
                return kept
            text: Buffer = key
        else:
            text = body if size == len(body) else memoryview(body)[:size]
        check_json_size(size, self._max_input_size)
        document = read_short(text)
        meaning = _read(document, len(body) - size, spec, limit=self._max_input_size, framed=framed)
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
        request.inputs = (raw_tensor(body, spec, request.prefix),)
        return request, BINARY_OUTPUTS


def _request(
    meaning: _Meaning,
    body: Buffer,
    size: int,
    spec: ModelSpec,
    requested_version: int,
    reply: ReplyPort,
    accepted_at: float,
    forwarded: Mapping[str, str] | None,
) -> tuple[InferRequest, OutputPlan]:
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


def _packing(members: Mapping[str, Any], limit: int, text_size: int) -> Packing | None:
    """Return the taker of the data of the input that has `members`.

    None where the members don't describe an input, or are wrong.
    """
    name, shape = members.get("name"), members.get("shape")
    datatype_name = members.get("datatype")
    datatype = BY_PROTOCOL_NAME.get(datatype_name) if type(datatype_name) is str else None
    if type(name) is not str or datatype is None or not can_pack(datatype) or type(shape) is not list:
        return None
    if len(shape) > MAX_DIMS or not all(type(dim) is int and dim > 0 for dim in shape) or not shape:
        return None
    count = element_count(shape)
    return Packing(name, datatype, count, limit, text_size) if count * datatype.size <= limit else None


def _pack_anew(data: LongArray, packing: Packing | None) -> Generator[None, None, None]:
    """Give `data` to `packing` where it was read before everything that it depends on was known."""
    taker = data.taker
    if packing is None:
        return
    if isinstance(taker, Packing) and taker.datatype is packing.datatype and taker.count == packing.count:
        return
    yield from data.give(packing)


def _tensors(parts: Sequence[_Input], body: memoryview, at: int) -> list[Tensor]:
    tensors = []
    for name, datatype, shape, size, data in parts:
        if data is None:
            end = at + size
            data = body[at:end]
            at = end
        tensors.append(Tensor(name, datatype, shape, data))
    return tensors


def _read(document: Any, behind: int, spec: ModelSpec, *, limit: int, framed: bool) -> _Meaning:
    """Return the meaning of `document`. `behind` is the number of bytes after its text."""
    members: dict[str, Any] = document if type(document) is dict else {}
    meaning = _Meaning()
    if "id" in members:
        meaning.id = members["id"]
        if type(meaning.id) is not str:
            raise misfit(members, "id", "string")
    if "parameters" in members:
        _read_parameters(members["parameters"], meaning)
    inputs = members.get("inputs")
    if type(inputs) is LongArray:
        raise misfit(None, "name", "string")
    if type(inputs) is not list:
        raise misfit(members, "inputs", "array")
    check_count(len(inputs), len(spec.inputs), "input", spec.name)
    reader = _InputReader(spec, meaning.id, behind, limit=limit, framed=framed)
    meaning.inputs = [reader.read(element) for element in inputs]
    meaning.binary_size = behind - reader.left
    if reader.left:
        raise InvalidArgument(f"unexpected additional input data for model '{spec.name}'")
    if "outputs" in members:
        _read_outputs(members["outputs"], meaning, spec)
    return meaning


def _read_parameters(document: Any, meaning: _Meaning) -> None:
    if type(document) is not dict:
        raise Internal("Unable to parse 'parameters': attempt to get members for non-object")
    check_parameters(len(document))
    custom: dict[str, Parameter] = {}
    for key, value in document.items():
        check_name(key, "a parameter")
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
    """Return the JSON value of a parameter without a meaning of its own.

    Whole numbers beyond int64 are floats. Raises InvalidArgument where it is no scalar.
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
        if len(name) > MAX_NAME:
            check_name(name, "an input")
        datatype_name = _string(element, "datatype")
        shape = _shape(name, element)
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
        if type(data) is not list and type(data) is not LongArray:
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
    """Return the core's error for input `name`, whose datatype does not exist.

    No later code could carry it there.
    """
    declared = spec.inputs_by_name.get(name)
    if declared is None:
        return InvalidArgument(f"unexpected inference input '{name}' for model '{spec.name}'")
    return InvalidArgument(
        f"[request id: {request_id or '<id_unknown>'}] inference input '{name}' data-type is '<invalid>', "
        f"but model '{spec.name}' expects '{declared.datatype}'"
    )


def _shape(name: str, element: Any) -> tuple[int, ...]:
    shape = element.get("shape")
    if type(shape) is LongArray and isinstance(shape.taker, CountingTaker):
        check_dims(name, shape.taker.seen)
        raise Internal(f"Unable to parse 'shape': {not_a('unsigned-integer')}")
    if type(shape) is not list:
        raise misfit(element, "shape", "array")
    if len(shape) > MAX_DIMS:
        check_dims(name, len(shape))
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


def _read_outputs(document: Any, meaning: _Meaning, spec: ModelSpec) -> None:
    if type(document) is LongArray:
        raise misfit(None, "name", "string")
    if type(document) is not list:
        raise Internal(f"Unable to parse 'outputs': {not_a('array')}")
    check_count(len(document), len(spec.outputs), "output", spec.name)
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
