"""Protobuf's wire format, as far as the inference codec reads and writes it by hand.

`splitting` takes a ModelInferRequest apart without building any of it: the two fields that change from
request to request (the id and the raw tensors), and the rest, whose bytes are left to protobuf. It accepts
what protobuf accepts, padded varints, unknown fields and groups included. Where the two could differ, the
rest still has to pass protobuf.

`counting` counts the fields of a message before protobuf makes objects of them. Two bytes make a field, and
protobuf makes an object of a hundred bytes of it, in one go, during which nothing else of the process runs.
So a long message is walked first, in slices, and refused where it has more fields than any client sends.

Reference: the protobuf documentation, "Encoding"; limits are those of its own decoders.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from actors.values.native import mypyc_attr
from actors.values.tensors import Buffer

MAX_FIELDS: Final = 8192
"""Top-level fields that one message may have.

Two bytes make a field, which costs a hundred times that when taken apart.
"""

FIELDS_AT_ONCE: Final = 256
"""Fields that are taken apart between two stops: some tenths of a millisecond."""

# Tags (number << 3 | wire type) of ModelInferRequest's fields, all of them length-delimited.
MODEL_NAME: Final = 0x0A
MODEL_VERSION: Final = 0x12
ID: Final = 0x1A
RAW: Final = 0x3A
_OTHERS: Final = frozenset((MODEL_NAME, MODEL_VERSION, 0x22, 0x2A, 0x32))

_MAX_SIZE: Final = 2**31 - 1
_MAX_TAG: Final = 2**32 - 1
_TAG_VARINT: Final = 5  # bytes that a tag may take
VALUE_VARINT: Final = 10
"""Bytes that a length or a value may take. The lowest 64 of its bits count."""
_GROUP_FIELDS: Final = 1024  # fields that a group may have: they are skipped in one go
_LONGEST_ID: Final = 16 * 1024 * 1024  # bytes: a longer one takes milliseconds to be read
_GROUP_DEPTH: Final = 100  # as deep as protobuf follows

_VARINT, _FIXED64, DELIMITED, GROUP, _GROUP_END, _FIXED32 = range(6)


Schema = Mapping[int, "Schema"]
"""A message's fields that have fields of their own, by their tags."""

MAX_INNER_FIELDS: Final = 16_384
"""Fields that all fields of a message may have together, without typed contents."""

INNER_FIELDS: Final = 4200
"""Fields that one field of a message may have: as many as the parameters of an input need."""


class Malformed(ValueError):
    """The bytes are no protobuf message; says what is wrong, and at which byte."""


class Pieces(NamedTuple):
    """A ModelInferRequest taken apart.

    `rest` is everything but the id and the raw tensors, in its order, no field cut.
    """

    rest: list[memoryview]
    id: str
    raw: list[memoryview]


def varint(value: int) -> bytes:
    """Return the shortest encoding of `value`; negative ones take ten bytes, as protobuf's int64 do."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def delimited(tag: int, content: bytes) -> bytes:
    """Return a length-delimited field: `tag` (a single byte), the length and `content`."""
    return b"%c%b%b" % (tag, varint(len(content)), content)


def splitting(message: Buffer) -> Generator[None, None, Pieces]:  # noqa: C901  a case for each wire type
    """Take a ModelInferRequest apart, in slices.

    Raises Malformed. Protobuf may still find a fault in `rest`.
    """
    view = memoryview(message)
    end = len(view)
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    request_id = ""
    at = kept_from = in_groups = 0
    try:
        for number in range(MAX_FIELDS):
            if at >= end:
                break
            if not (number + 1) % FIELDS_AT_ONCE:
                yield
            start = at
            tag = view[at]
            if tag != RAW and tag not in _OTHERS and tag != ID:
                tag, at = tag_at(view, at)
                if tag & 7 == GROUP:
                    at, fields = skip_group(view, tag >> 3, at)
                    in_groups += fields
                    if in_groups > MAX_FIELDS:
                        raise _too_many()
                    if fields > FIELDS_AT_ONCE:
                        yield
                    continue
                if tag not in {RAW, ID}:
                    at = skip_value(view, tag, at)
                    continue
            else:
                at += 1
            size = view[at]
            at += 1
            if size > 0x7F:
                size, at = long_size(view, at - 1)
            content, at = at, at + size
            if at > end:
                raise Malformed(
                    f"the field at byte {start} claims {size} bytes, of which {end - content} came"
                )
            if tag == RAW:
                raw.append(view[content:at])
            elif tag == ID:
                if size > _LONGEST_ID:
                    raise Malformed(f"its id has {size} bytes, more than {_LONGEST_ID}")
                request_id = str(view[content:at], "utf-8")
            else:
                continue
            if kept_from < start:
                rest.append(view[kept_from:start])
            kept_from = at
        else:
            if at < end:
                raise _too_many()
    except IndexError:
        raise Malformed(f"it is cut short after {end} bytes") from None
    except UnicodeDecodeError:
        raise Malformed("the id is not UTF-8") from None
    if at > end:
        raise Malformed(f"it is cut short after {end} bytes")
    if kept_from < end:
        rest.append(view[kept_from:])
    return Pieces(rest, request_id, raw)


def _too_many() -> Malformed:
    return Malformed(f"it has more than {MAX_FIELDS} fields")


def long_size(message: Buffer, at: int) -> tuple[int, int]:
    """Return the length that begins at `at`, and where its content begins.

    Raises Malformed and IndexError.
    """
    size, behind = _varint_at(message, at, VALUE_VARINT)
    size &= 2**64 - 1
    if size > _MAX_SIZE:
        raise Malformed(f"the length at byte {at} is {size}; lengths go up to {_MAX_SIZE}")
    return size, behind


def _varint_at(message: Buffer, at: int, longest: int) -> tuple[int, int]:
    value = 0
    for index in range(longest):
        byte = message[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise Malformed(f"the number at byte {at} takes more than {longest} bytes")


def tag_at(message: Buffer, at: int) -> tuple[int, int]:
    """Return the tag that begins at `at`, and what follows it. Raises Malformed and IndexError."""
    tag, behind = _varint_at(message, at, _TAG_VARINT)
    if tag > _MAX_TAG or not tag >> 3:
        raise Malformed(f"no field has the number that stands at byte {at}")
    return tag, behind


def skip_group(message: Buffer, number: int, at: int) -> tuple[int, int]:
    """Return the end of the group whose fields begin at `at`, and how many fields it has, itself included."""
    groups = [number]
    for fields in range(1, _GROUP_FIELDS + 1):
        start = at
        tag, at = tag_at(message, at)
        if tag & 7 == GROUP:
            if len(groups) >= _GROUP_DEPTH:
                raise Malformed(f"groups nest deeper than {_GROUP_DEPTH} levels at byte {start}")
            groups.append(tag >> 3)
        elif tag & 7 != _GROUP_END:
            at = skip_value(message, tag, at)
        elif groups.pop() != tag >> 3:
            raise Malformed(f"the group that ends at byte {start} was never begun")
        elif not groups:
            return at, fields
    raise Malformed(f"a group has more than {_GROUP_FIELDS} fields")


def skip_value(message: Buffer, tag: int, at: int) -> int:
    """Return where the value ends that begins at `at`, perhaps behind the message.

    Raises Malformed and IndexError.
    """
    kind = tag & 7
    if kind == _VARINT:
        return _varint_at(message, at, VALUE_VARINT)[1]
    if kind == _FIXED64:
        return at + 8
    if kind == DELIMITED:
        size, at = long_size(message, at)
        return at + size
    if kind == _FIXED32:
        return at + 4
    raise Malformed(f"the field before byte {at} is of no known wire type ({kind})")


@mypyc_attr(allow_interpreted_subclasses=True)
class Count:
    """How many fields may still come.

    `left` counts those inside of all others; `_here` those in the one that is looked into.
    """

    __slots__ = ("_here", "left")

    def __init__(self) -> None:
        self.left = MAX_INNER_FIELDS
        self._here = INNER_FIELDS

    def look_into_next(self) -> None:
        """Note that the fields spent from now on are inside of another field."""
        self._here = INNER_FIELDS

    def spend(self, fields: int) -> None:
        """Count `fields` fields. Raises Malformed where they are too many."""
        self.left -= fields
        self._here -= fields
        if self.left < 0 or self._here < 0:
            raise Malformed(
                f"its fields have more than {MAX_INNER_FIELDS} fields together, or one of them more than {INNER_FIELDS}"
            )


@cache
def schema_of(descriptor: Any) -> Schema:
    """Return the schema of a message that does not hold itself, by its protobuf descriptor."""
    return {
        field.number << 3 | DELIMITED: schema_of(field.message_type)
        for field in descriptor.fields
        if field.message_type is not None
    }


def counting(message: Buffer, schema: Schema) -> Generator[None, None, None]:
    """Raise Malformed for a message that has more fields than any client sends.

    Stops a few milliseconds apart at the most.
    """
    view = memoryview(message)
    count = Count()
    stop_at = count.left - FIELDS_AT_ONCE
    for number, (tag, _, content, end) in enumerate(fields(view, 0, len(view)), 1):
        if number > MAX_FIELDS:
            raise Malformed(f"it has more than {MAX_FIELDS} fields")
        below = schema.get(tag)
        if below is not None:
            count.look_into_next()
            survey(view, content, end, below, count)
        if count.left < stop_at or not number % FIELDS_AT_ONCE:
            stop_at = count.left - FIELDS_AT_ONCE
            yield


def survey(view: memoryview, at: int, end: int, schema: Schema, count: Count) -> None:
    """Count the fields between two places, and those inside of them."""
    for tag, _, content, behind in fields(view, at, end, count):
        below = schema.get(tag)
        if below is not None:
            survey(view, content, behind, below, count)


def fields(
    view: memoryview, at: int, end: int, count: Count | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag of each field between two places, and where it, its content and the next field begin.

    Raises Malformed for bytes that can't be fields.
    """
    try:
        while at < end:
            start = at
            tag, content = tag_at(view, start)
            spent = 1
            if tag & 7 == DELIMITED:
                size, content = long_size(view, content)
                at = content + size
            elif tag & 7 == GROUP:
                at, spent = skip_group(view, tag >> 3, content)
            else:
                at = skip_value(view, tag, content)
            if count is not None:
                count.spend(spent)
            if at > end:
                raise Malformed(f"the field at byte {start} ends behind what it is a part of")
            yield tag, start, content, at
    except IndexError:
        raise Malformed(f"it is cut short after {len(view)} bytes") from None
