"""Entries as bytes, for a store that keeps nothing else.

The layout is: four bytes that mark an entry, the length of a JSON head (four bytes, little-endian), the head,
and the outputs' data one behind the other. The head lists name, datatype, shape and size of each output. What
is read back is not trusted: the store may be shared with any other client.
"""

from __future__ import annotations

from typing import Final

import orjson

from actors.caching.far_cache import MalformedEntry
from actors.caching.policy.cache import KeptAnswer, KeptOutput, entry_size
from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.errors import InvalidArgument
from actors.values.tensors import element_count, packed_row_bounds

MAGIC: Final = b"TRC1"
_HEAD_AT: Final = len(MAGIC) + 4


def encoded(entry: KeptAnswer) -> bytes:
    """Return `entry` as bytes."""
    head = orjson.dumps(
        [[kept.name, kept.datatype.protocol_name, kept.shape, len(kept.data)] for kept in entry.outputs]
    )
    return b"".join((MAGIC, len(head).to_bytes(4, "little"), head, *(kept.data for kept in entry.outputs)))


def decoded(data: bytes) -> KeptAnswer:
    """Return the entry that was encoded as `data`, with memory of its own.

    Raises MalformedEntry otherwise.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise MalformedEntry("it does not begin as an entry does")
    at = _HEAD_AT + int.from_bytes(data[len(MAGIC) : _HEAD_AT], "little")
    try:
        head = orjson.loads(memoryview(data)[_HEAD_AT:at])
    except orjson.JSONDecodeError as error:
        raise MalformedEntry(f"its head is no JSON: {error}") from error
    if not isinstance(head, list):
        raise MalformedEntry("its head is no list")
    outputs = []
    for item in head:
        name, datatype, shape, nbytes = _read(item)
        outputs.append(_output(name, datatype, shape, data[at : at + nbytes], nbytes))
        at += nbytes
    if at != len(data):
        raise MalformedEntry(f"it has {len(data)} bytes where its head speaks of {at}")
    return KeptAnswer(tuple(outputs), entry_size(outputs))


def _read(item: object) -> tuple[str, DataType, tuple[int, ...], int]:
    if not isinstance(item, list) or len(item) != 4:
        raise MalformedEntry(f"an output is a list of four, got {item!r:.80}")
    name, datatype, shape, nbytes = item
    known = BY_PROTOCOL_NAME.get(datatype) if isinstance(datatype, str) else None
    if not isinstance(name, str) or known is None or not isinstance(shape, list):
        raise MalformedEntry(f"an output has a name, a datatype and a shape, got {item!r:.80}")
    if not all(_is_size(each) for each in (*shape, nbytes)):
        raise MalformedEntry(f"sizes are whole numbers from 0 on, got {item!r:.80}")
    return name, known, tuple(shape), nbytes


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _output(name: str, datatype: DataType, shape: tuple[int, ...], data: bytes, nbytes: int) -> KeptOutput:
    count = element_count(shape)
    if len(data) != nbytes:
        raise MalformedEntry(f"output '{name}' is cut short")
    if datatype is DataType.BYTES:
        if count > nbytes // 4:  # each has a length in front
            raise MalformedEntry(f"output '{name}' can't have {count} elements in {nbytes} bytes")
        try:
            packed_row_bounds(data, name, 1, count)
        except InvalidArgument as error:
            raise MalformedEntry(error.message) from error
    elif count * datatype.size != nbytes:
        raise MalformedEntry(f"output '{name}' can't have {nbytes} bytes")
    return KeptOutput(name, datatype, shape, data)
