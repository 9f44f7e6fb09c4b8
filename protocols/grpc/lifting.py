"""Long typed contents, taken out of a ModelInferRequest before protobuf sees it.

Protobuf reads a message in one go, during which nothing else of the process runs: 60 MB of numbers take most of a second.
So contents that are long are found here by the fields around them, which takes microseconds, and are read piece by piece
by whoever wants them (`protocols.grpc.contents`). An empty `contents` stays behind in their place.

Where there is nothing long everything is left to protobuf, and what is wrong with the rest is for protobuf to find.
Reference: the protobuf documentation, "Encoding" ("Packed repeated fields"); contract, grpc.md section 5.2.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.messages.tensors import MAX_DIMS
from protocols.grpc.wire import (
    DELIMITED,
    FIELDS_AT_ONCE,
    GROUP,
    Malformed,
    delimited,
    long_size,
    skip_group,
    skip_value,
    tag_at,
)

if TYPE_CHECKING:
    from actors.messages.tensors import Buffer

LONG: Final = 1024
"""From how many bytes on an input's contents are lifted."""

UNPACKED: Final = 256 * 1024
"""Bytes that contents may have, all together, which are short, or neither packed nor all strings.

Protobuf reads those in one go, and makes an object of each element.
"""

MOST_REST: Final = 16 * 1024 * 1024
"""Bytes that a request may have beside its tensors: names, shapes and parameters."""

MAX_INNER_FIELDS: Final = 16_384
"""Fields that all inputs, outputs and parameters of a message may have together, contents left out,"""

_INNER_FIELDS: Final = 4200  # and that one of them may have: as many as its parameters need,
_SHAPE_BYTES: Final = 10 * MAX_DIMS  # and bytes of a shape
_PIECES: Final = 64  # fields that numbers may come in; who packs them sends one

# ModelInferRequest's fields that have fields of their own, and those of an input
_PARAMETER, _INPUT, _OUTPUT = 0x22, 0x2A, 0x32
_SHAPE, _CONTENTS = 0x1A, 0x2A
_Schema = Mapping[int, "_Schema"]  # a message's fields that have fields of their own, by their tags
_ENTRY: Final[_Schema] = {0x12: {}}  # of a map to InferParameter
_MESSAGES: Final[_Schema] = {_PARAMETER: _ENTRY, _INPUT: {_PARAMETER: _ENTRY}, _OUTPUT: {0x12: _ENTRY}}
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


class _Count:
    """How many fields may still come: of all that is inside of others, and of the one that is looked into.

    `loose` is the bytes of contents that are left to protobuf.
    """

    __slots__ = ("here", "left", "loose")

    def __init__(self) -> None:
        self.left = MAX_INNER_FIELDS
        self.here = _INNER_FIELDS
        self.loose = 0

    def spend(self, fields: int) -> None:
        self.left -= fields
        self.here -= fields
        if self.left < 0 or self.here < 0:
            raise Malformed(
                f"its inputs, outputs and parameters have more than {MAX_INNER_FIELDS} fields together, or one of them"
                f" more than {_INNER_FIELDS}"
            )


def lifting(message: Iterable[memoryview]) -> Generator[None, None, Lifted]:
    """Take long contents out of a ModelInferRequest, which comes in pieces of whole fields (`protocols.grpc.wire.splitting`).

    Stops now and then, a few milliseconds apart at the most. Raises Malformed for what can't be one, or would take
    protobuf, or its reader, too long.
    """
    kept: list[Buffer] = []
    contents: dict[int, Sequence[Piece]] = {}
    inputs = size = 0
    count = _Count()
    stop_at = count.left - FIELDS_AT_ONCE
    for view in message:
        kept_from = 0
        for tag, start, content, end in _fields(view, 0, len(view)):
            inside = _MESSAGES.get(tag)
            if inside is None:
                continue
            count.here = _INNER_FIELDS
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
                _survey(view, content, end, inside, count)
            if count.left < stop_at:
                stop_at = count.left - FIELDS_AT_ONCE
                yield
        kept.append(view[kept_from:])
        size += len(view) - kept_from
    if size > MOST_REST:
        raise Malformed(f"it has {size} bytes beside its tensors, more than {MOST_REST}")
    return Lifted(b"".join(kept), contents)


def _survey(view: memoryview, at: int, end: int, inside: _Schema, count: _Count) -> None:
    """Count the fields between two places, and those inside of them: protobuf makes an object of each."""
    for tag, _, content, behind in _fields(view, at, end, count):
        below = inside.get(tag)
        if below is not None:
            _survey(view, content, behind, below, count)


def _fields(
    view: memoryview, at: int, end: int, count: _Count | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag of each field between two places, and where it, its content and what follows it begin."""
    try:
        while at < end:
            start = at
            tag, content = tag_at(view, start)
            fields = 1
            if tag & 7 == DELIMITED:
                size, content = long_size(view, content)
                at = content + size
            elif tag & 7 == GROUP:
                at, fields = skip_group(view, tag >> 3, content)
            else:
                at = skip_value(view, tag, content)
            if count is not None:
                count.spend(fields)
            if at > end:
                raise Malformed(f"the field at byte {start} ends behind what it is a part of")
            yield tag, start, content, at
    except IndexError:
        raise Malformed(f"it is cut short after {len(view)} bytes") from None


def _without_contents(
    view: memoryview, begin: int, end: int, count: _Count
) -> tuple[bytes, Sequence[Piece]] | None:
    """Return an input without its contents, and these; None where protobuf is to read it as it is."""
    found: tuple[int, int, int] | None = None
    several = False
    size = 0
    before = count.left
    for tag, start, content, behind in _fields(view, begin, end, count):
        if tag == _CONTENTS:
            several = found is not None
            found = (start, content, behind)
            size += behind - content
        elif tag == _SHAPE and behind - content > _SHAPE_BYTES:
            raise Malformed(f"the shape at byte {start} has {behind - content} bytes, over {_SHAPE_BYTES}")
    if found is None:
        count.left = before  # it is looked into once more
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
    for tag, _, content, behind in _fields(view, begin, end):
        if tag & 7 != DELIMITED or tag >> 3 >= STRINGS or len(pieces) == _PIECES:
            return None
        pieces.append(Piece(tag >> 3, view[content:behind]))
    return pieces
