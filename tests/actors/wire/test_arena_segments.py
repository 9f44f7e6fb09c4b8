"""Shared memory that its other user can neither shrink nor grow, and the page that says what is going on."""

import ctypes
import mmap
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from actors.wire.arena import MAX_LANES, MAX_SLOTS, PAGE, ControlPage, Segment, align, segment_size
from chaos.record.descriptors import left_open, open_descriptors


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
    assert list(segment.trimming()) == [None] * -(-segment.size // 2**20)
    assert os.fstat(segment.fd).st_blocks < used
    assert not np.frombuffer(segment.view, np.uint8).any()


def test_an_array_over_a_segment_outlives_its_owner():
    array = np.frombuffer(Segment.create(PAGE).view, np.uint8)
    assert not array.any()


def test_a_segment_that_can_not_be_mapped_leaves_no_descriptor_behind():
    before = open_descriptors()
    with pytest.raises(OSError, match=r"."):
        Segment.create(1 << 62)
    assert not left_open(before)


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
    control.offer(0, 1)
    control.offer(2, 1)
    assert control.begin(0, 11, 0)
    assert control.begin(1, 12, 2)
    assert control.executing() == {11, 12}
    control.end(0)
    assert control.executing() == {12}


def test_the_page_tells_when_each_slot_was_begun_with(control):
    control.offer(0, 1)
    control.offer(2, 1)
    control.begin(0, 11, 0, 2**63)
    control.begin(1, 12, 2)
    assert (control.begun(0), control.begun(2)) == (2**63, 0)
    control.offer(0, 1)
    control.take_back(0)
    assert not control.begin(0, 13, 0, 7)
    assert control.begun(0) == 2**63, "the batch was taken back, and nothing began"


def test_a_lane_that_does_not_exist_is_not_believed(control):
    control.offer(0, 1)
    assert control.begin(MAX_LANES - 1, 99, 0)
    assert control.executing() == frozenset()


def test_a_batch_is_begun_or_taken_back_and_never_both(control):
    for slot in range(3):
        control.offer(slot, 1)
    assert control.begin(0, 11, 0)
    assert not control.take_back(0)
    assert control.take_back(1)
    assert not control.begin(1, 12, 1)
    assert control.executing() == {11}
    assert control.begin(1, 13, 2)


def test_a_slot_that_holds_nothing_can_be_neither_begun_nor_taken_back(control):
    assert not control.begin(0, 11, 0)
    assert not control.take_back(0)


def test_the_next_batch_of_a_slot_has_a_claim_of_its_own(control):
    control.offer(0, 1)
    assert control.take_back(0)
    control.offer(0, 1)
    assert control.begin(0, 12, 0)
    control.offer(0, 1)
    assert control.take_back(0)


def test_a_page_has_room_for_so_many_slots_and_says_so():
    assert ControlPage.size_for(MAX_SLOTS, 1) % mmap.PAGESIZE == 0
    with pytest.raises(ValueError, match=f"up to {MAX_SLOTS} slots, not {MAX_SLOTS + 1}"):
        ControlPage.size_for(MAX_SLOTS + 1, 1)


BEGINNER = """
import os, sys
from actors.wire.arena import ControlPage, Segment

descriptor, size, rounds = map(int, sys.argv[1:])
page = ControlPage(Segment(descriptor, size), 1, 1)
sys.stdin.readline()
won = [page.begin(0, 1, turn) for turn in range(rounds)]
print("".join("X" if each else "." for each in won))
"""


@pytest.mark.system
@pytest.mark.slow
def test_of_two_processes_that_want_the_same_batch_exactly_one_gets_it():
    segment = Segment.create(ControlPage.size_for(MAX_SLOTS, 1))
    page = ControlPage(segment, 1, 1)
    for slot in range(MAX_SLOTS):
        page.offer(slot, 1)
    command = [sys.executable, "-c", BEGINNER, *map(str, (segment.fd, segment.size, MAX_SLOTS))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=(segment.fd,)
    ) as beginner:
        assert beginner.stdin is not None
        assert beginner.stdout is not None
        beginner.stdin.write("\n")
        beginner.stdin.flush()
        deadline = time.monotonic() + 60
        while not page.executing() and beginner.poll() is None and time.monotonic() < deadline:
            pass
        taken = "".join(".X"[page.take_back(slot)] for slot in reversed(range(MAX_SLOTS)))[::-1]
        begun = beginner.stdout.readline().strip()
    assert all({ours, theirs} == {".", "X"} for ours, theirs in zip(taken, begun, strict=True)), (
        taken,
        begun,
    )
    segment.close_fd()
    page.close()


def test_a_cancel_flag_is_its_requests_own_and_cleared_for_the_next_batch(control):
    control.cancel(1, 3)
    assert control.cancelled(1, 3)
    assert not control.cancelled(1, 2)
    assert not control.cancelled(0, 3)
    assert not control.cancelled(2, 3)
    control.offer(1, 10)
    assert not control.cancelled(1, 3)


def test_requests_beyond_the_page_run_to_their_end(control):
    control.cancel(0, 10)
    assert not control.cancelled(0, 10)
    assert not control.cancelled(1, 0)  # where its flag would have been
    control.cancel(1, 0)
    control.offer(0, 4096)
    assert control.cancelled(1, 0)


def test_the_page_has_room_for_every_slot():
    assert ControlPage.size_for(1, 1) == 3 * PAGE
    assert ControlPage.size_for(8, 4096) >= MAX_LANES * 8 + 8 * 4096


def test_a_library_reads_the_flags_of_a_slot_where_they_are_told_to_be(control):
    control.cancel(1, 3)
    address, count = control.flags(1)
    assert bytes((ctypes.c_uint8 * count).from_address(address)) == bytes([0, 0, 0, 1, *[0] * 6])
    assert control.flags(1) == (address, count)
    assert control.flags(2) == (address + count, count)
