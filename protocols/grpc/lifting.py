"""Long typed contents, taken out of a ModelInferRequest before protobuf sees it.

Protobuf reads a message in one go, during which nothing else of the process runs: 60 MB of numbers take most of a second.
So contents that are long are found here by the fields around them, which takes microseconds, and are read piece by piece
by whoever wants them (`protocols.grpc.contents`). An empty `contents` stays behind in their place.

Where there is nothing long everything is left to protobuf, and what is wrong with the rest is for protobuf to find.
Reference: the protobuf documentation, "Encoding" ("Packed repeated fields"); contract, grpc.md section 5.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.grpc.wire import (
    DELIMITED,
    GROUP,
    MAX_FIELDS,
    Malformed,
    delimited,
    long_size,
    skip_group,
    skip_value,
    tag_at,
)

if TYPE_CHECKING:
    from actors.messages.tensors import Buffer

LONG_STRINGS: Final = 4 * 1024 * 1024
"""From how many bytes on strings are lifted: protobuf takes them apart in a twentieth of the time that it takes here."""

_LONG: Final = 1024  # bytes of a field that is looked into: so many that are shorter are read in milliseconds
_INNER_FIELDS: Final = 4096  # that such a field may have,
_SHAPE_BYTES: Final = 8192  # and bytes of a shape, which has a dimension in each
_PIECES: Final = 64  # fields that numbers may come in; who packs them sends one

# ModelInferRequest's fields that have fields of their own, and those of an input
_INPUT, _OUTPUT = 0x2A, 0x32
_SHAPE, _CONTENTS = 0x1A, 0x2A
# InferTensorContents
_STRING: Final = 0x42
STRINGS: Final = _STRING >> 3
"""The number of `bytes_contents`. All fields with lower numbers hold numbers, packed."""


class Piece(NamedTuple):
    """Elements of typed contents, as they came: the number of their field in InferTensorContents, and its content.

    Strings are in one piece, each as a field with its tag.
    """

    field: int
    content: memoryview


class Lifted(NamedTuple):
    """A message without its long contents, which are here by the places of their inputs."""

    message: bytes
    contents: Mapping[int, Sequence[Piece]]


def lift(message: Iterable[memoryview]) -> Lifted:
    """Take long contents out of a ModelInferRequest, which comes in pieces of whole fields (`protocols.grpc.wire.split`).

    Raises Malformed for what can't be one, or would take protobuf, or its reader, too long.
    """
    kept: list[Buffer] = []
    contents: dict[int, Sequence[Piece]] = {}
    inputs = 0
    for view in message:
        kept_from = 0
        for tag, start, content, end in _fields(view, 0, len(view), MAX_FIELDS):
            if tag == _INPUT:
                lifted = _without_contents(view, content, end) if end - content >= _LONG else None
                if lifted is not None:
                    kept += (view[kept_from:start], delimited(_INPUT, lifted[0]))
                    kept_from = end
                    contents[inputs] = lifted[1]
                inputs += 1
            elif tag == _OUTPUT and end - content >= _LONG:
                for _ in _fields(view, content, end, _INNER_FIELDS):
                    pass
        kept.append(view[kept_from:])
    return Lifted(b"".join(kept), contents)


def _fields(view: memoryview, at: int, end: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag of each field between two places, and where it, its content and what follows it begin."""
    try:
        while at < end:
            start = at
            tag, content = tag_at(view, start)
            if tag & 7 == DELIMITED:
                size, content = long_size(view, content)
                at = content + size
            elif tag & 7 == GROUP:
                at, inside = skip_group(view, tag >> 3, content)
                most -= inside
            else:
                at = skip_value(view, tag, content)
            most -= 1
            if most < 0:
                raise Malformed(
                    f"it has more than {MAX_FIELDS} fields, or one of them more than {_INNER_FIELDS}"
                )
            if at > end:
                raise Malformed(f"the field at byte {start} ends behind what it is a part of")
            yield tag, start, content, at
    except IndexError:
        raise Malformed(f"it is cut short after {len(view)} bytes") from None


def _without_contents(view: memoryview, begin: int, end: int) -> tuple[bytes, Sequence[Piece]] | None:
    """Return an input without its contents, and these; None where protobuf is to read it as it is."""
    found: tuple[int, int, int] | None = None
    several = False
    for tag, start, content, behind in _fields(view, begin, end, _INNER_FIELDS):
        if tag == _CONTENTS:
            several = found is not None
            found = (start, content, behind)
        elif tag == _SHAPE and behind - content > _SHAPE_BYTES:
            raise Malformed(f"the shape at byte {start} has {behind - content} bytes, over {_SHAPE_BYTES}")
    if found is None:
        return None
    start, content, behind = found
    pieces = None if several else _pieces(view, content, behind)
    if pieces is None:
        if end - begin >= LONG_STRINGS:
            raise Malformed(
                f"the contents at byte {start} are long, and neither packed nor all strings; raw_input_contents take"
                " tensors of any size"
            )
        return None
    return b"".join((view[begin:start], delimited(_CONTENTS, b""), view[behind:end])), pieces


def _pieces(view: memoryview, begin: int, end: int) -> Sequence[Piece] | None:
    """Return contents in pieces, None where they are short strings, or in other fields than usual."""
    if begin == end:
        return None
    if view[begin] == _STRING:
        return (Piece(STRINGS, view[begin:end]),) if end - begin >= LONG_STRINGS else None
    pieces: list[Piece] = []
    for tag, _, content, behind in _fields(view, begin, end, MAX_FIELDS):
        if tag & 7 != DELIMITED or tag >> 3 >= STRINGS or len(pieces) == _PIECES:
            return None
        pieces.append(Piece(tag >> 3, view[content:behind]))
    return pieces
