"""The generate extension's JSON, without tensors: requests and responses are one object of plain values.

The model decides what a key of a request means. The name of one of its inputs makes the value a tensor, any
other name makes it a parameter. The object `parameters` is read in the same way. Clients send no shapes:
those are worked out from the number of elements and what the model declares.

Contract: http.md section 10; texts and codes are exact. Errors come in the order of the keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, TritiumError
from actors.values.requests import InferRequest, InferResponse, Parameter, ReplyPort
from actors.values.specs import InputSpec, ModelSpec
from actors.values.tensors import Buffer, Tensor, element_count
from protocols.kserve.caps import RAISE_LIMIT, check_json_size, check_parameters
from protocols.kserve.documents import Verbatim, dump, misfit, not_a, parse_members, read_short, text
from protocols.kserve.elements import INT64_MAX, Packing, can_pack, pack, render
from protocols.kserve.long_texts import LongArray, LongText
from protocols.kserve.meanings import custom_parameter
from protocols.kserve.responses import parameter_values

NOT_ONE_RESPONSE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)
_NESTED: Final = "parameters"
# Members of the request's object are values of its first level, and those of `parameters` of the second.
_DEPTH_OF_NESTED: Final = 2
_ARRAYS: Final = frozenset((list, LongArray))


def decode_generate(
    body: Buffer,
    spec: ModelSpec,
    *,
    max_input_size: int,
    requested_version: int,
    reply: ReplyPort,
    accepted_at: float,
) -> InferRequest:
    """Return the request for the model `spec` in the JSON object `body`. It asks for all outputs.

    `max_input_size` bounds the JSON text, and then the bytes of all tensors together. Raises InvalidArgument
    and Internal, and TooLong where `decode_long_generate` must do it.
    """
    check_json_size(len(body), max_input_size)
    document = read_short(body)
    request = InferRequest(
        model_name=spec.name, requested_version=requested_version, reply=reply, accepted_at=accepted_at
    )
    _fill(request, document, spec, max_input_size, lambda: _repeated_inputs(body, document, spec))
    return request


def decode_long_generate(
    body: Buffer,
    spec: ModelSpec,
    *,
    max_input_size: int,
    requested_version: int,
    reply: ReplyPort,
    accepted_at: float,
) -> Generator[None, None, InferRequest]:
    """Do as `decode_generate` does, in slices."""
    size = len(body)
    check_json_size(size, max_input_size)

    def taker_for(depth: int, _: Mapping[str, Any], key: str) -> Packing | None:
        declared = spec.inputs_by_name.get(key) if depth <= _DEPTH_OF_NESTED else None
        if declared is None or not can_pack(declared.datatype):
            return None
        return Packing(key, declared.datatype, None, INT64_MAX, size)

    reading = LongText(body, taker_for)
    document = yield from reading.document()
    request = InferRequest(
        model_name=spec.name, requested_version=requested_version, reply=reply, accepted_at=accepted_at
    )

    def repeated() -> Iterable[str]:
        holders = (document, document.get(_NESTED))
        return (key for holder, key in reading.repeated if any(holder is each for each in holders))

    _fill(request, document, spec, max_input_size, repeated)
    return request


def _fill(
    request: InferRequest,
    document: Any,
    spec: ModelSpec,
    max_input_size: int,
    repeated: Callable[[], Iterable[str]],
) -> None:
    """Put the members of `document` into `request`. `repeated` tells which keys it has more than once."""
    if type(document) is not dict:
        raise Internal("attempt to get members for non-object")
    if "id" in document:
        if type(document["id"]) is not str:
            raise misfit(document, "id", "string")
        request.id = document["id"]
    for key in repeated():
        if key in spec.inputs_by_name:
            raise InvalidArgument(f"{request.prefix}input '{key}' already exists in request")
    reader = _Reader(spec, max_input_size)
    reader.read_all(document)
    check_parameters(len(reader.parameters))
    request.inputs = reader.inputs
    request.parameters = reader.parameters or None


class _Reader:
    """Collects tensors and parameters, keeping count of the tensors' bytes."""

    __slots__ = ("_batches", "_limit", "_nbytes", "_specs", "inputs", "parameters")

    def __init__(self, spec: ModelSpec, limit: int) -> None:
        self._specs = spec.inputs_by_name
        self._batches = spec.batches
        self._limit = limit
        self._nbytes = 0
        self.inputs: list[Tensor] = []
        self.parameters: dict[str, Parameter] = {}

    def read_all(self, document: Mapping[str, Any]) -> None:
        """Read the request's object."""
        for key, value in document.items():
            if key == _NESTED:
                self._read_nested(value)
            else:
                self._read(key, value)

    def _read_nested(self, value: Any) -> None:
        if _NESTED in self._specs:
            raise InvalidArgument(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if type(value) is not dict:
            raise Internal(f"Expected JSON object for keyword: '{_NESTED}': {not_a('object')}")
        try:
            for key, member in value.items():
                self._read(key, member)
        except TritiumError as error:
            raise TritiumError.of(error.code, f"Converting keyword: '{_NESTED}': {error.message}") from error

    def _read(self, key: str, value: Any) -> None:
        declared = self._specs.get(key)
        if declared is None:
            self.parameters[key] = custom_parameter(key, value)
        else:
            self.inputs.append(self._tensor(declared, value if type(value) in _ARRAYS else [value]))

    def _tensor(self, declared: InputSpec, elements: list[Any] | LongArray) -> Tensor:
        name, datatype = declared.name, declared.datatype
        count = elements.length if isinstance(elements, LongArray) else len(elements)
        dims = (-1, *declared.dims) if self._batches else declared.dims
        shape = deduce_shape(dims, count)
        if shape is None:
            raise InvalidArgument(f"The schema can not convert input '{name}' to tensor with proper shape")
        if datatype is not DataType.BYTES:
            self._account(name, count * datatype.size)
        data = pack(elements, name, datatype, count, INT64_MAX)
        if datatype is DataType.BYTES:
            self._account(name, len(data))
        return Tensor(name, datatype, shape, data)

    def _account(self, name: str, nbytes: int) -> None:
        self._nbytes += nbytes
        if self._nbytes > self._limit:
            raise InvalidArgument(
                f"request size of {self._nbytes} bytes with input '{name}' of size {nbytes} bytes exceeds the maximum "
                f"allowed input size of {self._limit}. {RAISE_LIMIT}"
            )


def deduce_shape(dims: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return a shape of `count` elements that `dims` allows, or None where the rules find none.

    Each fixed dimension divides the count. What is left becomes the innermost dimension of -1, and each other
    -1 becomes 1.
    """
    left = count
    for dim in dims:
        if dim > 0:
            left, rest = divmod(left, dim)
            if rest:
                return None
    shape = list(dims)
    for place in reversed(range(len(shape))):
        if shape[place] == -1:
            shape[place], left = left, 1
    return tuple(shape) if left == 1 else None


def _repeated_inputs(body: Buffer, document: Mapping[str, Any], spec: ModelSpec) -> Iterable[str]:
    """Return the keys that the object, or its `parameters`, has twice.

    A model must not get just one of two texts. The fast parser keeps the last of equal keys and does not
    report them. So where the text has the quoted name of an input more than once, it is read again by a
    slower parser.
    """
    nested = document.get(_NESTED)
    given = {*document, *(nested if type(nested) is dict else ())} & spec.inputs_by_name.keys()
    whole = body if isinstance(body, bytes) else bytes(body)
    if not any(whole.count(json.dumps(name, ensure_ascii=False).encode()) > 1 for name in given):
        return ()
    members = parse_members(whole)
    return (*members.repeated, *getattr(members.get(_NESTED), "repeated", ()))


def encode_generated(response: InferResponse) -> bytes:
    """Return `response` as the text of one JSON object, its keys in alphabetical order.

    A tensor of one element is that element, any other a flat array. Where a parameter has the name of an
    output, the output is shown. Raises InvalidArgument for outputs that JSON can't carry, Internal where an
    output contradicts itself, and Unsupported.
    """
    document: dict[str, Any] = {} if response.parameters is None else parameter_values(response.parameters)
    if response.id:
        document["id"] = text(response.id)
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    for tensor in response.outputs:
        elements = render(tensor.name, tensor.datatype, tensor.shape, tensor.data)
        document[tensor.name] = Verbatim(elements[1:-1] if element_count(tensor.shape) == 1 else elements)
    return dump({key: document[key] for key in sorted(document)})


def event(document: Sequence[Buffer]) -> list[Buffer]:
    """Return one server-sent event that carries the JSON text in the buffers `document`.

    The text must have no line breaks in it.
    """
    return [b"data: ", *document, b"\n\n"]
