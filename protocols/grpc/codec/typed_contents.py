"""Typed tensor contents (`InferTensorContents`): taken out of long requests, and turned into binary layout.

Protobuf reads a message in one go, during which nothing else of the process runs: 60 MB of numbers take most
of a second. So `lifting` finds long contents by the fields around them, which takes microseconds. An empty
`contents` stays behind in their place, and `packing_lifted` reads them piece by piece. Where nothing is long,
everything is left to protobuf, and `packing` reads what it made. Protobuf also finds what is wrong with the
rest.

Integers narrower than their field are cut to their low bytes; FP16 and BF16 have no field.
Reference: the protobuf documentation, "Encoding" ("Packed repeated fields"); contract, grpc.md sections 5.2
and 7.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument
from actors.values.strings import chained
from actors.values.tensors import MAX_DIMS, Buffer, pack_bytes
from protocols.grpc.codec.protobuf import (
    DELIMITED,
    FIELDS_AT_ONCE,
    VALUE_VARINT,
    Count,
    Malformed,
    Schema,
    delimited,
    fields,
    long_size,
    survey,
)
from protocols.kserve.proto.grpc_service_pb2 import InferTensorContents

LONG: Final = 1024
"""Bytes from which on an input's contents are lifted."""

UNPACKED: Final = 256 * 1024
"""Bytes that contents which are not lifted may have together.

Those are short, or neither packed nor all strings. Protobuf reads
those in one go, and makes an object of each element.
"""

MOST_REST: Final = 16 * 1024 * 1024
"""Bytes that a request may have beside its tensors: names, shapes and parameters."""

_SHAPE_BYTES: Final = 10 * MAX_DIMS  # bytes that a shape may have
# Fields that numbers may come in. A client that packs its numbers sends one field. So many empty ones have at
# most 15 bytes each (tag and length), less than `LONG` together: what is lifted holds something.
_PIECES: Final = 64

# ModelInferRequest's fields that have fields of their own, and those of an input
_PARAMETER, _INPUT, _OUTPUT = 0x22, 0x2A, 0x32
_SHAPE, _CONTENTS = 0x1A, 0x2A
_ENTRY: Final[Schema] = {0x12: {}}  # of a map to InferParameter
_MESSAGES: Final[Schema] = {_PARAMETER: _ENTRY, _INPUT: {_PARAMETER: _ENTRY}, _OUTPUT: {0x12: _ENTRY}}
# InferTensorContents
_STRING: Final = 0x42
STRINGS: Final = _STRING >> 3
"""The number of `bytes_contents`. All fields with lower numbers hold numbers, packed."""

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
_SHORT: Final = tuple(size.to_bytes(4, "little") for size in range(0x80))
# Elements, or bytes of encoded ones, converted in one go: each takes a few dozen nanoseconds.
_AT_ONCE: Final = 16 * 1024
_STRINGS_AT_ONCE: Final = 1024
# Bytes of strings that numpy looks at in one go; the fewest strings in them that are worth it; how many of
# them must come to each letter that is taken for the begin of another one; how often strings are read one by
# one before they are searched again.
_SEARCHED_AT_ONCE: Final = 32 * 1024
_WORTH_A_SEARCH: Final = 256
_PLACES_A_STOP: Final = 16
_SEARCHES_LEFT_OUT: Final = 8
_FLOATS: Final = frozenset((DataType.FP32, DataType.FP64))
_AS_ON_THE_WIRE: Final = frozenset((DataType.BOOL, DataType.FP32, DataType.FP64))


class Piece(NamedTuple):
    """Elements of typed contents, as they came: their field's number in InferTensorContents, and content.

    Strings are in one piece, each as a field with its tag.
    """

    field: int
    content: memoryview


class Lifted(NamedTuple):
    """A message without its long contents, which are here by the places of their inputs."""

    message: bytes
    contents: Mapping[int, Sequence[Piece]]


class _Count(Count):
    """Also counts the bytes of contents that are left to protobuf (`loose`)."""

    __slots__ = ("loose",)

    def __init__(self) -> None:
        super().__init__()
        self.loose = 0


def lifting(message: Iterable[memoryview]) -> Generator[None, None, Lifted]:
    """Take long contents out of a ModelInferRequest, which comes in pieces of whole fields.

    The pieces are those of `protocols.grpc.codec.protobuf.splitting`. Stops now and then, a few milliseconds apart at
    the most. Raises Malformed for a message that can't be a ModelInferRequest, or would take protobuf, or its
    reader, too long.
    """
    kept: list[Buffer] = []
    contents: dict[int, Sequence[Piece]] = {}
    inputs = size = 0
    count = _Count()
    stop_at = count.left - FIELDS_AT_ONCE
    for view in message:
        kept_from = 0
        for tag, start, content, end in fields(view, 0, len(view)):
            inside = _MESSAGES.get(tag)
            if inside is None:
                continue
            count.look_into_next()
            lifted = None
            if tag == _INPUT:
                lifted = _without_contents(view, content, end, count)
                if lifted is not None:
                    kept += (view[kept_from:start], delimited(_INPUT, lifted[0]))
                    size += start - kept_from + len(lifted[0])
                    kept_from = end
                    contents[inputs] = lifted[1]
                inputs += 1
            if lifted is None:
                survey(view, content, end, inside, count)
            if count.left < stop_at:
                stop_at = count.left - FIELDS_AT_ONCE
                yield
        kept.append(view[kept_from:])
        size += len(view) - kept_from
    if size > MOST_REST:
        raise Malformed(f"it has {size} bytes beside its tensors, more than {MOST_REST}")
    return Lifted(b"".join(kept), contents)


def _without_contents(
    view: memoryview, begin: int, end: int, count: _Count
) -> tuple[bytes, Sequence[Piece]] | None:
    """Return an input without its contents, and its contents; None where protobuf is to read it as it is."""
    found: tuple[int, int, int] | None = None
    several = False
    size = 0
    before = count.left
    for tag, start, content, behind in fields(view, begin, end, count):
        if tag == _CONTENTS:
            several = found is not None
            found = (start, content, behind)
            size += behind - content
        elif tag == _SHAPE and behind - content > _SHAPE_BYTES:
            raise Malformed(f"the shape at byte {start} has {behind - content} bytes, over {_SHAPE_BYTES}")
    if found is None:
        count.left = before  # the input is looked into once more
        return None
    start, content, behind = found
    pieces = None if several or size < LONG else _pieces(view, content, behind)
    if pieces is None:
        count.left = before
        count.loose += size
        if count.loose > UNPACKED:
            raise Malformed(
                f"the contents at byte {start} and before it are long, and neither packed nor all strings;"
                " raw_input_contents take tensors of any size"
            )
        return None
    return b"".join((view[begin:start], delimited(_CONTENTS, b""), view[behind:end])), pieces


def _pieces(view: memoryview, begin: int, end: int) -> Sequence[Piece] | None:
    """Return contents of at least one byte in pieces, None where they are in other fields than usual."""
    if view[begin] == _STRING:
        return (Piece(STRINGS, view[begin:end]),)
    pieces: list[Piece] = []
    for tag, _, content, behind in fields(view, begin, end):
        if tag & 7 != DELIMITED or tag >> 3 >= STRINGS or len(pieces) == _PIECES:
            return None
        pieces.append(Piece(tag >> 3, view[content:behind]))
    return pieces


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
    """Do as `packing` does with contents that were taken out of their message, at least `LONG` bytes of them.

    Raises Malformed as well, where the pieces do not hold what their fields say.
    """
    populated = [
        field
        for number, field in enumerate(_FIELDS, 1)
        if any(piece.field == number and piece.content for piece in pieces)
    ]
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
    at = left_out = 0
    while at < len(part):
        together = None if left_out else _short_strings(part, at)
        if together is None:
            left_out = left_out - 1 if left_out else _SEARCHES_LEFT_OUT
            at = _some_strings(part, at, packed)
        else:
            packed += together.data
            at += together.used
        yield
    return packed


def _some_strings(part: memoryview, at: int, packed: bytearray) -> int:
    """Append strings from `at` on, one by one, and return where they end. Raises Malformed."""
    end = len(part)
    try:
        for _ in range(_STRINGS_AT_ONCE):
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
            if at >= end:
                break
    except IndexError:
        at = end + 1
    if at > end:
        raise Malformed("the last string of packed contents is cut short")
    return at


class _Together(NamedTuple):
    """Strings as BYTES tensors have them, and how many bytes of the contents they took."""

    data: memoryview
    used: int


def _short_strings(part: memoryview, at: int) -> _Together | None:
    """Return strings from `at` on whose lengths take one byte; None where there are few.

    A string begins with its tag. Where that letter is found within a string, the place before it does not end
    there, so it is passed over.
    """
    look = np.frombuffer(part, np.uint8, min(_SEARCHED_AT_ONCE, len(part) - at), at)
    places = np.flatnonzero(look[:-1] == _STRING)
    if places.size < _WORTH_A_SEARCH or places[0]:
        return None
    sizes = look[places + 1]
    # A longer string takes two bytes for its length at least: the end worked out here is never a place.
    ends = np.where(sizes < 0x80, places + sizes + 2, -1)
    stops = np.flatnonzero(ends[:-1] != places[1:])
    found, used = places[:-1], int(places[-1])
    if stops.size > places.size // _PLACES_A_STOP:
        return None
    if stops.size:
        known = look.size - 2

        def end_of(begin: int) -> int:
            short = begin <= known and look[begin] == _STRING and look[begin + 1] < 0x80
            return begin + 2 + int(look[begin + 1]) if short else known + 3

        found, used = chained(places, stops.tolist(), look.size, end_of)
        if found.size < _WORTH_A_SEARCH:
            return None
    # The tag and the length become a length of four bytes.
    headers = found + 2 * np.arange(found.size)
    packed = np.empty(used + 2 * found.size, np.uint8)
    room = np.ones(packed.size, np.bool_)
    room[headers + 2] = False
    room[headers + 3] = False
    packed[room] = look[:used]
    packed[headers] = packed[headers + 1]
    packed[headers + 1] = 0
    packed[headers + 2] = 0
    packed[headers + 3] = 0
    return _Together(packed.data, used)
