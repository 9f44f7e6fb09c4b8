"""What is left of a scattered write, and copies of memory that is wanted back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.seams.steps import at_once
from protocols.transport.buffers import Cut, behind, copying


def test_what_is_left_begins_where_the_write_ended():
    buffers = [b"abc", b"", b"defg", b"h"]
    for count in range(9):
        assert b"".join(behind(buffers, count)) == b"abcdefgh"[count:]


def test_buffers_behind_the_one_that_was_cut_are_not_copied():
    cut, later = bytearray(b"abc"), b"defg"
    rest = behind([b"x", cut, later], 2)
    cut[1:] = b"BC"
    assert bytes(rest[0]) == b"BC"
    assert rest[1] is later


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 1 << 20])
def test_a_copy_keeps_what_the_memory_held(size):
    memory = bytearray(b"\1") * size
    copy, other = at_once(copying([memory, b"ab"]))
    memory[:] = bytes(size)
    assert (bytes(copy), bytes(other)) == (b"\1" * size, b"ab")
    assert memoryview(copy).readonly


def test_a_long_buffer_is_copied_in_slices():
    assert sum(1 for _ in copying([bytes(1 << 20), bytes(10)])) == 5


@given(
    st.lists(st.binary(max_size=8), max_size=6), st.lists(st.tuples(st.integers(1, 10), st.integers(0, 10)))
)
def test_pieces_are_cut_from_the_front_in_order(buffers, takes):
    whole = b"".join(buffers)
    cut = Cut(buffers)
    for size, taken in takes:
        piece = bytes(cut.front(size))
        assert piece == whole[:size]
        count = min(taken, len(piece))
        cut.drop(count)
        whole = whole[count:]
    rest = cut.rest()
    assert b"".join(rest) == whole
    assert bool(rest) == bool(whole)
