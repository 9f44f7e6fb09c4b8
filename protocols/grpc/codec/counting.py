"""The fields of protobuf messages, counted before protobuf makes objects of them.

Two bytes make a field, and protobuf makes an object of a hundred bytes of it. It does so in one go, during
which nothing else of the process runs. So a long message is walked first, in slices, and refused where it has
more fields than any client sends.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from protocols.grpc.codec.wire import (
    DELIMITED,
    FIELDS_AT_ONCE,
    GROUP,
    MAX_FIELDS,
    Malformed,
    long_size,
    skip_group,
    skip_value,
    tag_at,
)

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

Schema = Mapping[int, "Schema"]
"""A message's fields that have fields of their own, by their tags."""

MAX_INNER_FIELDS: Final = 16_384
"""Fields that all fields of a message may have together, without typed contents."""

INNER_FIELDS: Final = 4200
"""Fields that one field of a message may have: as many as the parameters of an input need."""


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
