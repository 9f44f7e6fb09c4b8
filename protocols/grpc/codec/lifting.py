"""Long typed contents, taken out of a ModelInferRequest before protobuf sees it.

Protobuf reads a message in one go, during which nothing else of the process runs: 60 MB of numbers take most
of a second. So this module finds long contents by the fields around them, which takes microseconds. The code
that needs them reads them piece by piece (`protocols.grpc.codec.contents`). An empty `contents` stays behind in
their place.

Where nothing is long, everything is left to protobuf. Protobuf also finds what is wrong with the rest.
Reference: the protobuf documentation, "Encoding" ("Packed repeated fields"); contract, grpc.md section 5.2.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.values.tensors import MAX_DIMS
from protocols.grpc.codec.counting import Count, Schema, fields, survey
from protocols.grpc.codec.wire import DELIMITED, FIELDS_AT_ONCE, Malformed, delimited

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

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
# Fields that numbers may come in. A client that packs its numbers sends one field.
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

    The pieces are those of `protocols.grpc.codec.wire.splitting`. Stops now and then, a few milliseconds apart at
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
    """Return contents in pieces, None where they are in other fields than usual."""
    if begin == end:
        return None
    if view[begin] == _STRING:
        return (Piece(STRINGS, view[begin:end]),)
    pieces: list[Piece] = []
    for tag, _, content, behind in fields(view, begin, end):
        if tag & 7 != DELIMITED or tag >> 3 >= STRINGS or len(pieces) == _PIECES:
            return None
        pieces.append(Piece(tag >> 3, view[content:behind]))
    return pieces
