"""Messages are walked before protobuf makes objects of their fields."""

import pytest

from actors.seams.steps import at_once
from protocols.grpc.codec.protobuf import (
    FIELDS_AT_ONCE,
    INNER_FIELDS,
    MAX_FIELDS,
    MAX_INNER_FIELDS,
    Malformed,
    counting,
    delimited,
    schema_of,
)
from protocols.kserve.proto.grpc_service_pb2 import RepositoryModelLoadRequest

LOAD = schema_of(RepositoryModelLoadRequest.DESCRIPTOR)
"""Its parameters are a map, whose entries have a key and a message of their own."""


def parameter(fields):
    """A parameter whose value has so many fields; with the key and the value itself it has two more."""
    return delimited(0x1A, delimited(0x0A, b"k") + delimited(0x12, b"\x08\1" * fields))


def test_only_fields_that_are_messages_have_fields_of_their_own():
    assert set(LOAD) == {0x1A}
    assert LOAD[0x1A] == {0x12: {}}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        RepositoryModelLoadRequest(model_name="m" * 100_000).SerializeToString(),
        b"\x08\1" * MAX_FIELDS,
        b"\x0a" + b"\xff\xff\x03" + b"\x08" * 65_535,  # a text is not looked into
        parameter(INNER_FIELDS - 2),
        parameter(INNER_FIELDS - 2) * 3,
        b"\x0b\x08\1\x0c",
        b"\x0d\1\2\3\4" + b"\x09\1\2\3\4\5\6\7\x08",
    ],
)
def test_a_message_of_few_fields_passes(message):
    at_once(counting(message, LOAD))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\x08\1" * (MAX_FIELDS + 1), f"it has more than {MAX_FIELDS} fields"),
        (parameter(INNER_FIELDS - 1), f"or one of them more than {INNER_FIELDS}"),
        (parameter(INNER_FIELDS - 2) * 4, f"more than {MAX_INNER_FIELDS} fields together"),
        (delimited(0x1A, b"\x0b" + b"\x08\1" * 1000 + b"\x0c") * 17, "fields together"),
        (b"\x08", "it is cut short after 1 bytes"),
        (b"\x0a\2a", "the field at byte 0 ends behind what it is a part of"),
        (delimited(0x1A, b"\x12\5"), "the field at byte 2 ends behind what it is a part of"),
        (b"\x0e", "no known wire type"),
        (b"\x0b\x14", "the group that ends at byte 1 was never begun"),
    ],
)
def test_a_message_that_protobuf_would_make_too_much_of_is_refused(message, told):
    with pytest.raises(Malformed, match=told):
        at_once(counting(message, LOAD))


@pytest.mark.parametrize("message", [b"\x08\1" * MAX_FIELDS, parameter(100) * 100])
def test_fields_are_counted_in_slices(message):
    stops = sum(1 for _ in counting(message, LOAD))
    assert stops >= MAX_FIELDS // FIELDS_AT_ONCE - 2
