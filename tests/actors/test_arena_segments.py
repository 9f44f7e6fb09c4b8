"""Shared memory that its other user can neither shrink nor grow, and the page that says what is going on."""

import mmap
import os

import numpy as np
import pytest

from actors.arena import MAX_LANES, PAGE, ControlPage, Segment, align, segment_size


@pytest.fixture
def segment():
    made = Segment.create(64 * 1024)
    yield made
    made.close_fd()


@pytest.mark.parametrize("size", [0, 4096, 64 * 1024 - 1, 64 * 1024 + 1, 1 << 30])
def test_whoever_has_the_descriptor_can_neither_shrink_nor_grow_it(segment, size):
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fd, size)
    assert os.fstat(segment.fd).st_size == segment.size


def test_the_seals_themselves_cannot_be_changed(segment):
    import fcntl

    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.fd, 1033, 0x0008)


def test_writing_beyond_the_end_does_not_grow_it(segment):
    with pytest.raises(PermissionError):
        os.pwrite(segment.fd, b"x", segment.size)


def test_both_sides_see_the_same_bytes_after_the_descriptor_is_closed(segment):
    other = Segment(os.dup(segment.fd), segment.size)
    other.close_fd()
    segment.close_fd()
    segment.close_fd()
    segment.view[100:105] = b"hello"
    assert bytes(other.view[100:105]) == b"hello"


def test_trimming_gives_the_pages_back_and_leaves_zeros(segment):
    segment.view[:] = b"\xff" * segment.size
    used = os.fstat(segment.fd).st_blocks
    segment.trim()
    assert os.fstat(segment.fd).st_blocks < used
    assert not np.frombuffer(segment.view, np.uint8).any()


def test_an_array_over_a_segment_outlives_its_owner():
    array = np.frombuffer(Segment.create(PAGE).view, np.uint8)
    assert not array.any()


def test_closing_unmaps():
    segment = Segment.create(PAGE)
    segment.close_fd()
    segment.close()
    with pytest.raises(ValueError, match="released"):
        segment.view[0]


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [
        (0, 64 * 1024),
        (64 * 1024, 64 * 1024),
        (64 * 1024 + 1, 128 * 1024),
        (1024 * 1024, 1024 * 1024),
        (1024 * 1024 + 1, 2 * 1024 * 1024),
        (10 * 1024 * 1024 - 1, 10 * 1024 * 1024),
    ],
)
def test_segments_grow_in_steps_of_whole_pages(nbytes, size):
    assert segment_size(nbytes) == size
    assert size % mmap.PAGESIZE == 0


def test_tensors_start_on_cache_lines():
    assert [align(offset) for offset in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]


@pytest.fixture
def control():
    segment = Segment.create(ControlPage.size_for(3, 10))
    segment.close_fd()
    page = ControlPage(segment, 2, 10)
    yield page
    page.close()


def test_the_page_tells_what_each_lane_executes(control):
    assert control.executing() == frozenset()
    control.begin(0, 11)
    control.begin(1, 12)
    assert control.executing() == {11, 12}
    control.end(0)
    assert control.executing() == {12}


def test_a_lane_that_does_not_exist_is_not_believed(control):
    control.begin(MAX_LANES - 1, 99)
    assert control.executing() == frozenset()


def test_a_cancel_flag_is_its_requests_own_and_cleared_for_the_next_batch(control):
    control.cancel(1, 3)
    assert control.cancelled(1, 3)
    assert not control.cancelled(1, 2)
    assert not control.cancelled(0, 3)
    assert not control.cancelled(2, 3)
    control.clear(1, 10)
    assert not control.cancelled(1, 3)


def test_requests_beyond_the_page_run_to_their_end(control):
    control.cancel(0, 10)
    assert not control.cancelled(0, 10)
    assert not control.cancelled(1, 0)  # where its flag would have been
    control.cancel(1, 0)
    control.clear(0, 4096)
    assert control.cancelled(1, 0)


def test_the_page_has_room_for_every_slot():
    assert ControlPage.size_for(1, 1) == PAGE
    assert ControlPage.size_for(8, 4096) >= MAX_LANES * 8 + 8 * 4096
