"""Entries as bytes and back, and what is not believed."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.caching.far_cache import MalformedEntry
from actors.caching.policy.cache import KeptAnswer, KeptOutput, entry_size
from actors.values.datatypes import DataType
from actors.values.tensors import element_count, pack_bytes
from engine.stores.codec import MAGIC, decoded, encoded
from tests.support.examples import examples

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def outputs(draw):
    datatype = draw(st.sampled_from(DataType))
    shape = draw(SHAPES)
    count = element_count(shape)
    if datatype is DataType.BYTES:
        data = pack_bytes(draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count)))
    else:
        size = count * datatype.size
        data = draw(st.binary(min_size=size, max_size=size))
    return KeptOutput(draw(st.text(max_size=5)), datatype, shape, data)


def entry_of(kept):
    return KeptAnswer(tuple(kept), entry_size(kept))


def told(entry):
    return [(kept.name, kept.datatype, kept.shape, kept.data) for kept in entry.outputs]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(outputs(), max_size=3))
def test_what_is_written_is_read(kept):
    entry = entry_of(kept)
    again = decoded(encoded(entry))
    assert told(again) == told(entry)
    assert again.nbytes == entry.nbytes


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(outputs(), min_size=1, max_size=2), st.data())
def test_what_was_damaged_is_refused_or_reads_as_an_entry(kept, data):
    whole = bytearray(encoded(entry_of(kept)))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for damaged in (bytes(whole), cut):
        try:
            entry = decoded(damaged)
        except MalformedEntry:
            continue
        assert told(decoded(encoded(entry))) == told(entry)


def framed(head, data=b""):
    text = head if isinstance(head, bytes) else orjson.dumps(head)
    return MAGIC + len(text).to_bytes(4, "little") + text + data


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "does not begin"),
        (b"other", "does not begin"),
        (framed(b"{"), "no JSON"),
        (framed({"a": 1}), "no list"),
        (framed([1]), "list of four"),
        (framed([["a", "FP32", [1]]]), "list of four"),
        (framed([["a", "FP33", [1], 4]]), "a name, a datatype and a shape"),
        (framed([[1, "FP32", [1], 4]]), "a name, a datatype and a shape"),
        (framed([["a", "FP32", [-1], 4]]), "from 0 on"),
        (framed([["a", "FP32", [True], 4]]), "from 0 on"),
        (framed([["a", "FP32", [1], 4]], b"123"), "cut short"),
        (framed([["a", "FP32", [2], 4]], b"1234"), "can't have 4 bytes"),
        (framed([["a", "FP32", [1], 4]], b"12345"), "speaks of"),
        (framed([["a", "BYTES", [10**12], 4]], b"1234"), "can't have 1000000000000 elements"),
        (framed([["a", "BYTES", [1], 6]], b"\x05\0\0\0ab"), "cut short"),
    ],
)
def test_anything_else_is_no_entry(value, why):
    with pytest.raises(MalformedEntry, match=why):
        decoded(value)
