"""What the JSON text of an infer request says, apart from its binary tensors.

Contract: http.md sections 6 and 7; texts and codes are exact. Errors come in the order in which Triton reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.errors import Internal, InvalidArgument
from actors.values.regions import RegionPlace, RegionPlaces
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, Parameter
from actors.values.specs import ModelSpec
from actors.values.tensors import MAX_DIMS, Buffer
from protocols.kserve.caps import MAX_NAME, check_count, check_dims, check_name, check_parameters
from protocols.kserve.documents import misfit, not_a
from protocols.kserve.elements import INT64_MAX, pack
from protocols.kserve.long_texts import CountingTaker, LongArray


class OutputChoice(NamedTuple):
    """How a client wants one output: as binary or JSON, and as its `classes` best classes (0: as it is).

    One that is `shared` lies in a region, and has no data in the answer.
    """

    binary: bool
    classes: int
    shared: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OutputPlan:
    """How a client wants its outputs. `named` is None where it named none and wants them all."""

    binary: bool
    named: Mapping[str, OutputChoice] | None


JSON_OUTPUTS: Final = OutputPlan(binary=False, named=None)
BINARY_OUTPUTS: Final = OutputPlan(binary=True, named=None)


class InputMeaning(NamedTuple):
    """One input."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    size: int  # bytes behind the JSON text
    data: Buffer | None  # what the JSON text itself held


@dataclass(slots=True, eq=False)
class Meaning:
    """What a JSON text says, apart from its binary tensors."""

    id: str = ""
    parameters: Mapping[str, Parameter] | None = None
    priority: int = 0
    timeout: float = 0.0
    correlation_id: int | str = 0
    flags: int = 0
    inputs: Sequence[InputMeaning] = ()
    binary_size: int = 0
    requested_outputs: tuple[str, ...] = ()
    outputs: OutputPlan = JSON_OUTPUTS
    regions: RegionPlaces | None = None  # None: no tensor lies in shared memory


def read_meaning(document: Any, behind: int, spec: ModelSpec, *, limit: int, framed: bool) -> Meaning:
    """Return the meaning of `document`. `behind` is the number of bytes after its text."""
    members: dict[str, Any] = document if type(document) is dict else {}
    meaning = Meaning()
    if "id" in members:
        if type(members["id"]) is not str:
            raise misfit(members, "id", "string")
        meaning.id = members["id"]
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
    wanted: dict[str, RegionPlace] = {}
    if "outputs" in members:
        _read_outputs(members["outputs"], meaning, spec, wanted)
    if wanted or any(reader.places):
        meaning.regions = RegionPlaces(reader.places, wanted)
    return meaning


def _read_parameters(document: Any, meaning: Meaning) -> None:  # noqa: C901  a case for each parameter
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

    __slots__ = ("_framed", "_limit", "_request_id", "_spec", "left", "places")

    def __init__(self, spec: ModelSpec, request_id: str, left: int, *, limit: int, framed: bool) -> None:
        self._spec = spec
        self._request_id = request_id
        self._limit = limit
        self._framed = framed
        self.left = left
        self.places: list[RegionPlace | None] = []  # of each input, where it lies in shared memory

    def read(self, element: Any) -> InputMeaning:
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
            self.places.append(_region_place(parameters))
            return InputMeaning(name, datatype or self._no_datatype(name), shape, 0, b"")
        self.places.append(None)
        if "binary_data_size" in parameters:
            size = self._binary_size(name, parameters)
            return InputMeaning(name, datatype or self._no_datatype(name), shape, size, None)
        data = element["data"]
        if type(data) is not list and type(data) is not LongArray:
            raise misfit(element, "data", "array")
        count = _element_count(name, shape)
        if count == 0:
            return InputMeaning(name, datatype or self._no_datatype(name), shape, 0, b"")
        if datatype is None:
            raise InvalidArgument(f"invalid datatype for input {name}")
        return InputMeaning(name, datatype, shape, 0, pack(data, name, datatype, count, self._limit))

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


def _region_place(parameters: dict[str, Any]) -> RegionPlace:
    region = parameters["shared_memory_region"]
    if type(region) is not str:
        raise misfit(parameters, "shared_memory_region", "string")
    offset = nbytes = 0
    if "shared_memory_offset" in parameters:
        offset = _unsigned(parameters, "shared_memory_offset")
    if "shared_memory_byte_size" in parameters:
        nbytes = _unsigned(parameters, "shared_memory_byte_size")
    return RegionPlace(region, offset, nbytes)


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


def _read_outputs(document: Any, meaning: Meaning, spec: ModelSpec, wanted: dict[str, RegionPlace]) -> None:
    """Note in `meaning` how outputs are wanted, and in `wanted` which of them in shared memory."""
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
        choice = _output_choice(parameters) if type(parameters) is dict else OutputChoice(False, 0)
        if choice.shared:
            wanted[name] = _region_place(parameters)
        named[name] = choice
    if names:
        meaning.requested_outputs = tuple(names)
        meaning.outputs = OutputPlan(meaning.outputs.binary, named)


def _output_choice(parameters: dict[str, Any]) -> OutputChoice:
    classes = _unsigned(parameters, "classification", verb="set") if "classification" in parameters else 0
    binary = parameters.get("binary_data", False)
    shared = "shared_memory_region" in parameters
    if shared:
        if type(parameters["shared_memory_region"]) is not str:
            raise misfit(parameters, "shared_memory_region", "string")
        if classes:
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'classification'")
        if binary is True:
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'binary_data'")
    if type(binary) is not bool:
        raise misfit(parameters, "binary_data", "boolean")
    return OutputChoice(binary, classes, shared)
