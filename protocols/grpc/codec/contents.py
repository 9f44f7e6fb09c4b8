"""Turns typed tensor contents (`InferTensorContents`) into the protocol's binary layout.

Contract: grpc.md section 7. Integers narrower than their field are
cut to their low bytes; FP16 and BF16 have no field.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument
from actors.values.tensors import pack_bytes
from protocols.grpc.codec.lifting import STRINGS, Piece
from protocols.grpc.codec.wire import DELIMITED, VALUE_VARINT, Malformed, long_size

if TYPE_CHECKING:
    from actors.values.tensors import Buffer
    from protocols.kserve.proto.grpc_service_pb2 import InferTensorContents


_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.intp]
_Numbers = npt.NDArray[np.uint64]


class _Field(NamedTuple):
    name: str
    # What it holds where the declared datatype is none of `datatypes`.
    implied: DataType
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
_STRING: Final = STRINGS << 3 | DELIMITED
_SHORT: Final = tuple(size.to_bytes(4, "little") for size in range(0x80))
# Elements, or bytes of encoded ones, converted in one go: each takes a few dozen nanoseconds.
_AT_ONCE: Final = 16 * 1024
_STRINGS_AT_ONCE: Final = 1024
_FLOATS: Final = frozenset((DataType.FP32, DataType.FP64))
_AS_ON_THE_WIRE: Final = frozenset((DataType.BOOL, DataType.FP32, DataType.FP64))


def packing(
    contents: InferTensorContents, datatype: DataType | None, *, name: str, model: str
) -> Generator[None, None, Buffer]:
    """Return, in slices, the elements of input `name` in binary layout; nothing where no field holds any.

    `datatype` is the declared one, None where it does not exist. Raises InvalidArgument where another field
    than the declared datatype's holds elements, or more than one does.
    """
    populated = [field for field in _FIELDS if getattr(contents, field.name)]
    if not populated:
        return b""
    return (yield from _pack(contents, *_checked(populated, datatype, name, model)))


def packing_lifted(
    pieces: Sequence[Piece], datatype: DataType | None, *, name: str, model: str
) -> Generator[None, None, Buffer]:
    """Do as `packing` does with contents that were taken out of their message.

    Raises Malformed as well, where the pieces do not hold what their fields say.
    """
    populated = [
        field
        for number, field in enumerate(_FIELDS, 1)
        if any(piece.field == number and piece.content for piece in pieces)
    ]
    if not populated:
        return b""
    datatype, field = _checked(populated, datatype, name, model)
    parts = [piece.content for piece in pieces if piece.content]
    if datatype is DataType.BYTES:
        return (yield from _strings(parts[0]))
    if field.implied in _FLOATS:
        return _floats(parts, datatype)
    return (yield from _integers(parts, datatype))


def _checked(
    populated: Sequence[_Field], datatype: DataType | None, name: str, model: str
) -> tuple[DataType, _Field]:
    """Return the datatype and the one field that holds elements, which suits it."""
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
    return datatype, field


def _pack(contents: InferTensorContents, datatype: DataType, field: _Field) -> Generator[None, None, Buffer]:
    values = getattr(contents, field.name)
    count = len(values)
    if datatype in _AS_ON_THE_WIRE:
        return _wire_tail(contents, count * datatype.size)
    if datatype is DataType.BYTES:
        packed = bytearray()
        for at in range(0, count, _AT_ONCE):
            packed += pack_bytes(values[at : at + _AT_ONCE])
            yield
        return packed
    elements = np.empty(count, dtype=datatype.numpy)
    for at in range(0, count, _AT_ONCE):
        part = values[at : at + _AT_ONCE]
        converted = np.fromiter(part, dtype=field.implied.numpy, count=len(part))
        elements[at : at + _AT_ONCE] = converted.astype(datatype.numpy, copy=False)
        yield
    return elements.view(np.uint8).data


def _wire_tail(contents: InferTensorContents, nbytes: int) -> memoryview:
    """Return the packed elements of the one field that is set.

    Protobuf writes them as the tensor's layout has them.
    """
    contents.DiscardUnknownFields()
    written = contents.SerializeToString()
    return memoryview(written)[len(written) - nbytes :]


# Contents that were lifted


def _floats(parts: Sequence[memoryview], datatype: DataType) -> Buffer:
    for part in parts:
        if len(part) % datatype.size:
            raise Malformed(f"{len(part)} bytes of packed {datatype} contents are no whole number of them")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _integers(parts: Sequence[memoryview], datatype: DataType) -> Generator[None, None, Buffer]:
    """Return the integers whose encodings are in `parts`, cut to the bytes of `datatype`."""
    count = 0
    for part in parts:
        for encoded in _slices(part):
            count += _last_bytes(encoded).size
            yield
    elements = np.empty(count, dtype=datatype.numpy)
    at = 0
    for part in parts:
        for encoded in _slices(part):
            values = _decoded(encoded)
            elements[at : at + values.size] = values != 0 if datatype is DataType.BOOL else values
            at += values.size
            yield
    return elements.view(np.uint8).data


def _slices(part: memoryview) -> Iterator[_Bytes]:
    """Yield the bytes of a packed field, cut between its numbers."""
    whole = np.frombuffer(part, dtype=np.uint8)
    at = 0
    while at < whole.size:
        encoded = whole[at : at + _AT_ONCE]
        last = _last_bytes(encoded[-VALUE_VARINT:])
        if not last.size:
            raise Malformed("a number of packed contents is cut short, or too long")
        at += encoded.size
        if at < whole.size:
            left = encoded[-VALUE_VARINT:].size - 1 - int(last[-1])
            encoded = encoded[: encoded.size - left]
            at -= left
        elif encoded[-1] > 0x7F:
            raise Malformed("the last number of packed contents is cut short")
        yield encoded


def _last_bytes(encoded: _Bytes) -> _Places:
    return np.flatnonzero(encoded < 0x80)


def _decoded(encoded: _Bytes) -> _Numbers:
    """Return the numbers in `encoded`, which ends with one: seven bits a byte, the lowest first."""
    last = _last_bytes(encoded)
    if last.size == encoded.size:
        return encoded.astype(np.uint64)
    first = np.concatenate(((0,), last[:-1] + 1))
    lengths = last - first + 1
    longest = int(lengths.max())
    if longest > VALUE_VARINT:
        raise Malformed(f"a number of packed contents takes more than {VALUE_VARINT} bytes")
    values = (encoded[first] & 0x7F).astype(np.uint64)
    for index in range(1, longest):
        longer = np.flatnonzero(lengths > index)
        bits = (encoded[first[longer] + index] & 0x7F).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * index)
    return values


def _strings(part: memoryview) -> Generator[None, None, Buffer]:
    """Return the strings of a `bytes_contents`, each behind its length, as BYTES tensors have them."""
    packed = bytearray()
    at, end = 0, len(part)
    walked = 0
    try:
        while at < end:
            walked += 1
            if walked == _STRINGS_AT_ONCE:
                walked = 0
                yield
            if part[at] != _STRING:
                raise Malformed("long contents hold strings and something else")
            size = part[at + 1]
            if size < 0x80:
                content = at + 2
                packed += _SHORT[size]
            else:
                size, content = long_size(part, at + 1)
                packed += size.to_bytes(4, "little")
            at = content + size
            packed += part[content:at]
    except IndexError:
        at = end + 1
    if at > end:
        raise Malformed("the last string of packed contents is cut short")
    return packed
