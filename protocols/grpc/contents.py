"""Typed tensor contents (`InferTensorContents`) into the protocol's binary layout.

Contract: grpc.md section 7. Integers narrower than their field are cut to their low bytes; FP16 and BF16 have no field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from actors.messages.datatypes import DataType
from actors.messages.errors import InvalidArgument
from actors.messages.tensors import pack_bytes

if TYPE_CHECKING:
    from actors.messages.tensors import Buffer
    from protocols.kserve.proto.grpc_service_pb2 import InferTensorContents


class _Field(NamedTuple):
    name: str
    implied: DataType  # what it holds where the declared datatype is none of `datatypes`
    datatypes: frozenset[DataType]


def _field(name: str, implied: DataType, *narrower: DataType) -> _Field:
    return _Field(name, implied, frozenset((implied, *narrower)))


_FIELDS: Final = (
    _field("bool_contents", DataType.BOOL),
    _field("int_contents", DataType.INT32, DataType.INT8, DataType.INT16),
    _field("int64_contents", DataType.INT64),
    _field("uint_contents", DataType.UINT32, DataType.UINT8, DataType.UINT16),
    _field("uint64_contents", DataType.UINT64),
    _field("fp32_contents", DataType.FP32),
    _field("fp64_contents", DataType.FP64),
    _field("bytes_contents", DataType.BYTES),
)
# Elements converted in one go. Each takes a few dozen nanoseconds, during which no other thread of the process runs:
# so many are the interpreter's own switch interval.
_AT_ONCE: Final = 64 * 1024
_AS_ON_THE_WIRE: Final = frozenset((DataType.BOOL, DataType.FP32, DataType.FP64))


def pack_contents(
    contents: InferTensorContents, datatype: DataType | None, *, name: str, model: str
) -> Buffer:
    """Return the elements of input `name` in binary layout; nothing where no field holds any.

    `datatype` is the declared one, None where it does not exist. Raises InvalidArgument where another field than the
    declared datatype's holds elements, or more than one does.
    """
    populated = [field for field in _FIELDS if getattr(contents, field.name)]
    if not populated:
        return b""
    field = populated[0]
    if datatype is None or datatype not in field.datatypes:
        raise InvalidArgument(
            f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type "
            f"'{field.implied}', expected datatype '{datatype or '<invalid>'}'"
        )
    if len(populated) > 1:
        raise InvalidArgument(
            f"unexpected explicit tensor data for input tensor '{name}' for model '{model}', "
            "binary data was already supplied."
        )
    return _pack(contents, datatype, field)


def _pack(contents: InferTensorContents, datatype: DataType, field: _Field) -> Buffer:
    values = getattr(contents, field.name)
    count = len(values)
    if datatype in _AS_ON_THE_WIRE:
        return _wire_tail(contents, count * datatype.size)
    slices = (values[at : at + _AT_ONCE] for at in range(0, count, _AT_ONCE))
    if datatype is DataType.BYTES:
        return b"".join(map(pack_bytes, slices))
    elements = np.empty(count, dtype=datatype.numpy)
    for at, part in zip(range(0, count, _AT_ONCE), slices, strict=True):
        converted = np.fromiter(part, dtype=field.implied.numpy, count=len(part))
        elements[at : at + _AT_ONCE] = converted.astype(datatype.numpy, copy=False)
    return elements.view(np.uint8).data


def _wire_tail(contents: InferTensorContents, nbytes: int) -> memoryview:
    """Return the packed elements of the one field that is set: protobuf writes them as the tensor's layout has them."""
    contents.DiscardUnknownFields()
    written = contents.SerializeToString()
    return memoryview(written)[len(written) - nbytes :]
