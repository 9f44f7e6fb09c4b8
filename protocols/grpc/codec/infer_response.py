"""Turns `InferResponse`s into ModelInferResponse and ModelStreamInferResponse bytes, written by hand.

Between the answers of one model, little changes but the id and the tensors' bytes. So the bytes before and
between those are kept. An answer's bytes are those that protobuf writes when told to be deterministic: maps
are in the order of their keys. Contract: grpc.md sections 8 and 9.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, Unsupported
from actors.values.requests import InferResponse
from actors.values.specs import ModelSpec
from actors.values.tensors import Buffer, Tensor, element_count
from protocols.grpc.codec.infer_meaning import AnswerPlan
from protocols.grpc.codec.protobuf import delimited, varint
from protocols.kserve.classification import classified
from protocols.kserve.elements import INT64_MAX
from protocols.kserve.responses import COPIED, NO_BYTES_PARAMETER

Encoded = tuple[Sequence["Buffer"], int, bool]
"""One message: its buffers, their total size, and whether they view the response's memory."""

_Described = tuple[str, DataType, Sequence[int], int, bytes]

MAX_MESSAGE: Final = 2**31 - 1
"""gRPC's limit for a message, in bytes (contract, section 1)."""

_FINAL: Final = "triton_final_response"
_KEPT: Final = 512  # heads that are remembered, and parameters
_SHORT: Final = 64  # characters of the longest key that is remembered
_REMEMBERED: Final = frozenset({bool, int})  # an exact type each: a float of 1.0 equals 1

# ModelInferResponse: tags of its fields, and of those inside.
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETER, _OUTPUT, _RAW = 0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32
_KEY, _VALUE = 0x0A, 0x12
_NAME, _DATATYPE, _SHAPE = 0x0A, 0x12, 0x1A
# InferParameter
_BOOL, _INT64, _STRING, _DOUBLE = 0x08, 0x10, 0x1A, 0x21
# ModelStreamInferResponse
_ERROR_MESSAGE, _INFER_RESPONSE = 0x0A, 0x12

_double = struct.Struct("<d").pack


class _Head(NamedTuple):
    """What an answer has before the id, between the parameters and the first tensor, and before each tensor.

    `tensors` has, for each, its name, datatype and shape, the size it should have, and the tag and length
    that stand before it if it has that size.
    """

    version: int
    model: bytes
    outputs: bytes
    tensors: Sequence[_Described]


# The head of the latest answer of each model: mostly that of its next one, too.
_latest: Final[dict[str, _Head]] = {}


def encode(
    response: InferResponse,
    plan: AnswerPlan,
    spec: ModelSpec,
    *,
    max_message: int = MAX_MESSAGE,
) -> tuple[Sequence[Buffer], int]:
    """Return the ModelInferResponse that carries `response`, its outputs in the form that `plan` asks for.

    The message is buffers, some of which view the response's memory, and their size. Raises InvalidArgument
    where an output can't be classified as asked or the message is over `max_message` bytes, Internal where
    the response contradicts itself, and Unsupported.
    """
    buffers, size, _ = _parts(response, plan, spec, None)
    if size > max_message:
        raise _too_large(size, max_message)
    return buffers, size


def encode_stream(
    response: InferResponse, plan: AnswerPlan, spec: ModelSpec, *, final: bool, max_message: int = MAX_MESSAGE
) -> Encoded:
    """Return the ModelStreamInferResponse that carries `response`. Like `encode`.

    `final` becomes the parameter `triton_final_response`. Up to 64 KiB of tensors are copied into one buffer;
    more are borrowed.
    """
    buffers, inner, borrowed = _parts(response, plan, spec, final)
    before = b"%c%b" % (_INFER_RESPONSE, varint(inner))
    size = len(before) + inner
    if size > max_message:
        raise _too_large(size, max_message)
    buffers.insert(0, before)
    return (buffers, size, True) if borrowed else ((b"".join(buffers),), size, False)


def encode_stream_error(
    message: str,
    request_id: str,
    model_name: str = "",
    model_version: str = "",
    final: bool | None = None,
) -> bytes:
    """Return the ModelStreamInferResponse that tells the error of one request of a stream.

    Before the request's execution only the id is known. After it has begun, so are the model, the version as
    it was asked for, and whether this is the request's last answer.
    """
    inner = (
        _string(_MODEL_NAME, model_name) + _string(_MODEL_VERSION, model_version) + _string(_ID, request_id)
    )
    if final is not None:
        inner += _parameters(None, final)
    return _string(_ERROR_MESSAGE, message) + delimited(_INFER_RESPONSE, inner)


def _parts(
    response: InferResponse, plan: AnswerPlan, spec: ModelSpec, final: bool | None
) -> tuple[list[Buffer], int, bool]:
    """Return the pieces of a ModelInferResponse, their size, and whether they are too long to be copied."""
    outputs = response.outputs
    if plan.classes is not None:
        outputs = _chosen(outputs, plan.classes, spec)
    head = _latest.get(response.model_name)
    if head is None or head.version != response.model_version or not _fits(head.tensors, outputs):
        head = _head_of(response, outputs)
    front = head.model
    if response.id:
        written = response.id.encode("utf-8", "replace")
        length = len(written)
        front += b"%c%c%b" % (_ID, length, written) if length < 0x80 else delimited(_ID, written)
    if response.parameters or final is not None:
        front += _parameters(response.parameters, final)
    front += head.outputs
    buffers: list[Buffer] = [front]
    size = len(front)
    tensors = 0
    for tensor, (_, _, _, expected, before) in zip(outputs, head.tensors, strict=True):
        data = tensor.data
        nbytes = len(data)
        if nbytes != expected:
            before = _raw_head(nbytes)
        buffers += (before, data)
        size += len(before)
        tensors += nbytes
    return buffers, size + tensors, tensors > COPIED


def _fits(described: Sequence[_Described], outputs: Sequence[Tensor]) -> bool:
    """Return whether the outputs have these names, datatypes and shapes."""
    if len(described) != len(outputs):
        return False
    for tensor, (name, datatype, shape, _, _) in zip(outputs, described, strict=True):
        if tensor.shape != shape or tensor.datatype is not datatype or tensor.name != name:
            return False
    return True


def _head_of(response: InferResponse, outputs: Sequence[Tensor]) -> _Head:
    """Return the head of an answer, and remember it as its model's latest."""
    head = _head(
        response.model_name,
        response.model_version,
        *[(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in outputs],
    )
    if len(_latest) >= _KEPT:
        _latest.clear()
    _latest[response.model_name] = head
    return head


def _chosen(outputs: Sequence[Tensor], classes: Mapping[str, int], spec: ModelSpec) -> list[Tensor]:
    """Return the outputs that the client named, in the model's order, classified where it asked for that."""
    return [
        classified(tensor, classes[tensor.name], spec) if classes[tensor.name] else tensor
        for tensor in outputs
        if tensor.name in classes  # the backend made others too, which the client did not ask for
    ]


@lru_cache(maxsize=_KEPT)
def _head(model_name: str, model_version: int, *outputs: tuple[str, DataType, tuple[int, ...]]) -> _Head:
    """Return the parts shared by all answers with `outputs` of these names, datatypes and shapes."""
    described = b""
    tensors: list[_Described] = []
    for name, datatype, shape in outputs:
        output = _string(_NAME, name) + _string(_DATATYPE, datatype.protocol_name)
        if shape:
            output += delimited(_SHAPE, b"".join(varint(int(dim)) for dim in shape))
        described += delimited(_OUTPUT, output)
        size = element_count(shape) * datatype.size
        tensors.append((name, datatype, shape, size, _raw_head(size)))
    model = _string(_MODEL_NAME, model_name) + _string(_MODEL_VERSION, str(model_version))
    return _Head(model_version, model, described, tensors)


def _raw_head(nbytes: int) -> bytes:
    return b"%c%b" % (_RAW, varint(nbytes))


def _string(tag: int, value: str) -> bytes:
    """Return a string field, nothing for an empty one, as protobuf has it.

    Bytes that were not UTF-8 become `?`.
    """
    return delimited(tag, value.encode("utf-8", "replace")) if value else b""


def _parameters(parameters: Mapping[str, object] | None, final: bool | None) -> bytes:
    """Return the fields of the map `parameters`, in the order of their keys."""
    values = dict(parameters or {})
    if final is not None:
        values[_FINAL] = final
    return b"".join([_parameter_or_known(key, values[key]) for key in sorted(values)])


def _parameter_or_known(key: str, value: object) -> bytes:
    """Return a field of the map. Flags and numbers are often the same again, and are remembered."""
    if type(value) in _REMEMBERED and len(key) <= _SHORT:
        return _known_parameter(key, value)
    return _parameter(key, value)


@lru_cache(maxsize=_KEPT, typed=True)
def _known_parameter(key: str, value: object) -> bytes:
    return _parameter(key, value)


def _parameter(key: str, value: object) -> bytes:
    name = delimited(_KEY, key.encode("utf-8", "replace"))
    return delimited(_PARAMETER, name + delimited(_VALUE, _parameter_value(key, value)))


def _parameter_value(key: str, value: object) -> bytes:
    match value:
        case bool():
            return b"%c%c" % (_BOOL, value)
        case int():
            if not -INT64_MAX - 1 <= value <= INT64_MAX:
                raise Internal(
                    f"response parameter '{key}' is {value}, which no int64_param holds; give it as a string"
                )
            return b"%c%b" % (_INT64, varint(value))
        case str():
            return delimited(_STRING, value.encode("utf-8", "replace"))
        case float():
            return b"%c%b" % (_DOUBLE, _double(value))
        case bytes():
            raise Unsupported(NO_BYTES_PARAMETER)
        case _:
            raise Internal(
                f"response parameter '{key}' is a {type(value).__name__}; bool, int, float and str can be sent"
            )


def _too_large(size: int, limit: int) -> InvalidArgument:
    return InvalidArgument(f"Response has byte size {size} which exceeds gRPC's byte size limit {limit}.")
