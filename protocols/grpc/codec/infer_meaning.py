"""What a ModelInferRequest says, apart from its id and its raw tensors: a protobuf message, read and checked.

Contract: grpc.md section 7; texts and codes are exact, and errors come in the order in which Triton looks.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.errors import Internal, InvalidArgument
from actors.values.regions import RegionPlace, RegionPlaces
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, Parameter
from actors.values.specs import ModelSpec
from actors.values.tensors import Buffer
from protocols.grpc.codec.protobuf import Malformed
from protocols.grpc.codec.typed_contents import Piece, packing, packing_lifted
from protocols.kserve.caps import check_count, check_dims, check_name, check_parameters
from protocols.kserve.meanings import unknown_datatype
from protocols.kserve.proto.grpc_service_pb2 import ModelInferRequest

Forwarded = Mapping[str, str] | InvalidArgument | None
"""Metadata that becomes parameters, None for none, or the error in it, raised when its turn comes."""

Lifted = Mapping[int, Sequence[Piece]]
"""Typed contents that were too long to be parsed, by the places of their inputs."""

_UINT64_MAX: Final = 2**64 - 1
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_CUSTOM: Final = frozenset(("bool_param", "int64_param", "string_param", "double_param"))
_FLAGS: Final = {"sequence_start": FLAG_SEQUENCE_START, "sequence_end": FLAG_SEQUENCE_END}


@dataclass(frozen=True, slots=True, eq=False)
class AnswerPlan:
    """How a client wants its answer.

    `classes` maps each output that the client named to how many best classes it wants of it (0: the output as
    it is). It is None where the client named none and wants all outputs. `empty_final` asks for a last
    streamed answer without outputs, where a model gives no outputs with its last answer.
    """

    classes: Mapping[str, int] | None = None
    empty_final: bool = False


ALL_OUTPUTS: Final = AnswerPlan()


@dataclass(slots=True, eq=False)
class Meaning:
    """What a request says, apart from its id and, where `data` is None, its tensors' bytes."""

    model_name: str
    model_version: str
    parameters: Mapping[str, Parameter] | None = None
    priority: int = 0
    timeout: float = 0.0
    correlation_id: int | str = 0
    flags: int = 0
    names: Sequence[str] = ()
    datatypes: Sequence[DataType] = ()
    shapes: Sequence[tuple[int, ...]] = ()
    data: Sequence[Buffer] | None = None
    requested_outputs: tuple[str, ...] = ()
    plan: AnswerPlan = ALL_OUTPUTS
    # Of tensors in shared memory; None: there are none. `data` has no entries for inputs that lie there.
    regions: RegionPlaces | None = None


def accepted(forwarded: Mapping[str, str] | InvalidArgument) -> Mapping[str, str]:
    """Return metadata that becomes parameters. Raises the error in it."""
    if isinstance(forwarded, InvalidArgument):
        raise InvalidArgument(forwarded.message)  # anew: this one is raised for many requests
    return forwarded


def no_data(name: str, spec: ModelSpec) -> InvalidArgument:
    """Return the error for an input that came without a tensor."""
    return InvalidArgument(
        f"unable to find data for input tensor '{name}' for model '{spec.name}' in request."
    )


def reading(
    document: ModelInferRequest,
    request_id: str,
    raw_count: int,
    lifted: Lifted,
    spec: ModelSpec,
    forwarded: Forwarded,
) -> Generator[None, None, Meaning]:
    """Return what a request means, in slices. `raw_count` tensors came raw; `lifted` contents are long.

    Raises InvalidArgument, Internal and Unsupported.
    """
    _check_counts(document, spec)
    meaning = Meaning(document.model_name, document.model_version)
    empty_final = _read_parameters(document.parameters, meaning)
    meaning.names = tuple(declared.name for declared in document.inputs)
    meaning.shapes = tuple(tuple(declared.shape) for declared in document.inputs)
    meaning.requested_outputs = tuple(output.name for output in document.outputs)
    if forwarded is not None:
        accepted(forwarded)
    places: list[RegionPlace | None] = []
    meaning.data = yield from _reading_data(document.inputs, raw_count, lifted, spec, places)
    classes: dict[str, int] = {}
    wanted: dict[str, RegionPlace] = {}
    for output in document.outputs:
        classes[output.name] = _read_output(output, wanted)
    if wanted or any(places):
        meaning.regions = RegionPlaces(places, wanted)
    if classes or empty_final:
        meaning.plan = AnswerPlan(classes or None, empty_final)
    # The core checks datatypes after everything else. Later code could not carry one that does not exist.
    meaning.datatypes = tuple(
        BY_PROTOCOL_NAME.get(declared.datatype) or _refuse_datatype(declared.name, request_id, spec)
        for declared in document.inputs
    )
    return meaning


def _check_counts(document: ModelInferRequest, spec: ModelSpec) -> None:
    """Raise InvalidArgument where a request has more of anything than it may (`protocols.kserve.caps`)."""
    check_parameters(len(document.parameters))
    check_count(len(document.inputs), len(spec.inputs), "input", spec.name)
    check_count(len(document.outputs), len(spec.outputs), "output", spec.name)
    for key in document.parameters:
        check_name(key, "a parameter")
    for declared in document.inputs:
        check_name(declared.name, "an input")
        check_name(declared.datatype, "a datatype")
        check_dims(declared.name, len(declared.shape))
        check_parameters(len(declared.parameters))
    for output in document.outputs:
        check_name(output.name, "an output")
        check_parameters(len(output.parameters))


def _refuse_datatype(name: str, request_id: str, spec: ModelSpec) -> DataType:
    raise unknown_datatype(name, request_id, spec)


# Parameters


def _read_parameters(parameters: Mapping[str, Any], meaning: Meaning) -> bool:
    """Set what `parameters` mean, in their keys' order; return whether a last empty answer is wanted."""
    custom: dict[str, Parameter] = {}
    empty_final = False
    for key in sorted(parameters):
        choice = parameters[key]
        kind: str | None = choice.WhichOneof("parameter_choice")
        value: Any = None if kind is None else getattr(choice, kind)
        match key:
            case "sequence_id":
                _expect(key, kind, "int64_param", "string_param")
                meaning.correlation_id = value if kind == "string_param" else value & _UINT64_MAX
            case "sequence_start" | "sequence_end":
                _expect(key, kind, "bool_param")
                if value:
                    meaning.flags |= _FLAGS[key]
            case "priority":
                _expect(key, kind, "int64_param", "uint64_param")
                if value < 0:
                    raise InvalidArgument("invalid value for 'priority', expected value >= 0.")
                meaning.priority = value
            case "timeout":
                _expect(key, kind, "int64_param")
                meaning.timeout = (value & _UINT64_MAX) / 1_000_000
            case "triton_enable_empty_final_response":
                _expect(key, kind, "bool_param")
                empty_final = value
            case _:
                custom[key] = _custom_parameter(key, kind, value)
    meaning.parameters = custom or None
    return empty_final


def _expect(key: str, kind: str | None, *expected: str) -> None:
    if kind not in expected:
        raise InvalidArgument(f"invalid value type for '{key}' parameter, expected {' or '.join(expected)}.")


def _custom_parameter(key: str, kind: str | None, value: Any) -> Parameter:
    if key.startswith("triton_"):
        raise InvalidArgument(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            f"with 'triton_' are allowed: {_EMPTY_FINAL}"
        )
    if kind not in _CUSTOM:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
        )
    parameter: Parameter = value
    return parameter


# Tensors


def _reading_data(
    inputs: Sequence[Any],
    raw_count: int,
    lifted: Lifted,
    spec: ModelSpec,
    places: list[RegionPlace | None],
) -> Generator[None, None, list[Buffer] | None]:
    """Return typed contents, packed; None where the inputs' data is among the raw tensors.

    Adds to `places` where each input lies in shared memory, or None.
    """
    typed: list[Buffer] = []
    taken = 0
    for place, declared in enumerate(inputs):
        name = declared.name
        shared = _region_place(declared)
        places.append(shared)
        typed_here = declared.HasField("contents")
        if shared is not None and typed_here:
            raise InvalidArgument(
                f"unexpected 'content' provided when using shared memory for input tensor '{name}' "
                f"for model '{spec.name}'"
            )
        if shared is not None:
            continue
        if typed_here and raw_count:
            raise InvalidArgument(
                f"contents field must not be specified when using raw_input_contents for '{name}' "
                f"for model '{spec.name}'"
            )
        if typed_here:
            datatype = BY_PROTOCOL_NAME.get(declared.datatype)
            if place in lifted:
                typed.append((yield from _packing(lifted[place], datatype, name, spec)))
            else:
                contents = declared.contents
                typed.append((yield from packing(contents, datatype, name=name, model=spec.name)))
        elif taken < raw_count:
            taken += 1
        else:
            raise no_data(name, spec)
    return typed or None


def _packing(
    pieces: Sequence[Piece], datatype: DataType | None, name: str, spec: ModelSpec
) -> Generator[None, None, Buffer]:
    try:
        return (yield from packing_lifted(pieces, datatype, name=name, model=spec.name))
    except Malformed as error:
        raise Internal(f"failed to parse the contents of input tensor '{name}': {error}") from error


def _region_place(tensor: Any) -> RegionPlace | None:
    """Return where `tensor` lies in shared memory, once its parameters about that are checked.

    Contract: shared_memory.md section 6.1.
    """
    parameters = tensor.parameters
    if not parameters:
        return None
    named = "shared_memory_region" in parameters
    if named:
        _expect_kind(tensor, "shared_memory_region", "string_param")
    numbers = {"shared_memory_offset": 0, "shared_memory_byte_size": 0}
    for key in numbers:
        if key not in parameters:
            continue
        if not named:
            raise InvalidArgument(
                f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
            )
        _expect_kind(tensor, key, "int64_param")
        numbers[key] = parameters[key].int64_param & _UINT64_MAX
    if not named:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    region: str = parameters["shared_memory_region"].string_param
    return RegionPlace(region, numbers["shared_memory_offset"], numbers["shared_memory_byte_size"])


def _expect_kind(tensor: Any, key: str, expected: str) -> None:
    if tensor.parameters[key].WhichOneof("parameter_choice") != expected:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter for tensor '{tensor.name}', expected {expected}."
        )


def _read_output(output: Any, wanted: dict[str, RegionPlace]) -> int:
    """Return how many best classes the client wants of an output; 0 means the output as it is.

    Adds it to `wanted` if it is wanted in shared memory.
    """
    shared = _region_place(output)
    classes = 0
    if "classification" in output.parameters:
        choice = output.parameters["classification"]
        if choice.WhichOneof("parameter_choice") != "int64_param":
            raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
        classes = choice.int64_param
        if classes <= 0:
            raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
        if shared is not None:
            raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
    if shared is not None:
        wanted[output.name] = shared
    return classes
