"""Packed BYTES tensors of any length are walked in slices, and found to be what they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.strings import Strings, headers, walk, walk_at_once
from actors.values.tensors import pack_bytes


def plainly(data, most):
    """The same, element by element."""
    at = seen = 0
    while at < len(data) and seen < most:
        if len(data) - at < 4:
            return Strings(seen, at, len(data), -1)
        length = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + length > len(data):
            return Strings(seen, at, len(data), length)
        at += 4 + length
        seen += 1
    rest = data[at : at + 4]
    length = 0 if not rest else int.from_bytes(rest, "little") if len(rest) == 4 else -1
    return Strings(seen, at, len(data), length)


LENGTHS = st.one_of(
    st.lists(st.integers(0, 30), max_size=40),
    st.tuples(st.integers(0, 5), st.integers(0, 80), st.lists(st.integers(0, 5), max_size=3)).map(
        lambda drawn: [drawn[0]] * drawn[1] + drawn[2]
    ),
)


@given(lengths=LENGTHS, cut=st.integers(0, 12), most=st.integers(0, 100))
def test_a_walk_finds_what_reading_element_by_element_finds(lengths, cut, most):
    data = pack_bytes([b"x" * length for length in lengths])
    data = data[: max(0, len(data) - cut)]
    assert walk_at_once(data, most) == plainly(data, most)


@pytest.mark.parametrize(
    "elements",
    [[b""] * 200_000, [b"", b"a"] * 100_000],
    ids=["all alike", "no two neighbours alike"],
)
def test_a_walk_of_many_elements_stops_often(elements):
    stops = sum(1 for _ in walk(pack_bytes(elements), len(elements)))
    assert stops >= len(pack_bytes(elements)) // (64 * 1024)


@pytest.mark.parametrize("lengths", [[3] * 20, [3] * 20 + [1, 2]], ids=["all alike", "alike at first"])
@pytest.mark.parametrize("cut", [0, 1, 4, 6])
def test_elements_of_one_length_are_counted_together_and_those_behind_them_singly(lengths, cut):
    data = pack_bytes([b"x" * length for length in lengths])
    data = data[: len(data) - cut]
    assert walk_at_once(data, 100) == plainly(data, 100)


# Lengths of a mixed text, long elements among short ones, none at all, and contents that look like lengths.
CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=3).map(lambda drawn: drawn + b"\0\0\0"),
    st.sampled_from([b"", b"x" * 255, b"x" * 256, b"x" * 65_536, b"\0" * 50, b"a\0b\0c\0"]),
    st.text(max_size=20).map(lambda drawn: drawn.encode("utf-16-le", "surrogatepass")),
)


@given(
    contents=st.lists(CONTENTS, min_size=1, max_size=12),
    usual=st.lists(st.integers(1, 30), min_size=2, max_size=9),
    every=st.integers(1, 60),
    cut=st.integers(0, 300),
    most=st.one_of(st.just(1 << 40), st.integers(0, 30_000)),
)
def test_long_tensors_of_short_elements_are_walked_as_if_element_by_element(
    contents, usual, every, cut, most
):
    elements = [
        contents[place // every % len(contents)] if place % every == 0 else b"x" * usual[place % len(usual)]
        for place in range(4_000)
    ]
    data = pack_bytes(elements)[: 256 * 1024]
    data = data[: max(0, len(data) - cut)]
    assert walk_at_once(data, most) == plainly(data, most)


@pytest.mark.slow
def test_a_million_short_strings_take_a_stop_for_each_32_kib():
    """Read one by one, they would take one for each 2,048 elements, of 0.2 ms."""
    elements = [b"%d" % (place * 7919 % 10 ** (1 + place % 7)) for place in range(1_000_000)]
    data = pack_bytes(elements)
    stops = sum(1 for _ in walk(data, len(elements)))
    assert len(data) // (32 * 1024) <= stops <= len(data) // (31 * 1024)


def test_empty_elements_that_are_out_of_step_with_the_zeros_before_them_are_not_read_in_one_piece():
    """The element before them ends within their zeros, so that all of them are missed by a search."""
    usual = [b"x" * (30 + place % 3) for place in range(480)]
    data = pack_bytes([*usual, b"a\0", *[b""] * 3_500])
    found, _ = headers(memoryview(data), 0, 1 << 40)
    assert len(usual) < found.size < 700
    assert walk_at_once(data, 1 << 40) == plainly(data, 1 << 40)
