"""Memory files of a worker and of the server: sealed when they are sent, and checked when they are mapped."""

import fcntl
import mmap
import os

import pytest

from actors.wire.call_segments import map_segment, write_segment
from actors.wire.frames import FrameError
from chaos.record.descriptors import left_open, open_descriptors

SEALS = 0x000F


def test_no_worker_can_change_what_it_has_sent():
    data = bytes(range(256)) * 32
    descriptor = write_segment([data])
    view = map_segment(os.dup(descriptor), len(data), writable=False)
    for attempt in (
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: mmap.mmap(descriptor, len(data), prot=mmap.PROT_READ | mmap.PROT_WRITE),
    ):
        with pytest.raises(OSError, match=r"."):
            attempt()
    os.close(descriptor)
    assert bytes(view) == data


def test_a_segment_of_huge_pages_is_not_mapped():
    try:
        descriptor = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("this kernel has no huge pages")
    size = os.fstat(descriptor).st_blksize
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, 1033, SEALS)
    with pytest.raises(FrameError):
        map_segment(descriptor, size, writable=False)


def test_a_segment_that_can_not_be_written_leaves_no_descriptor_behind():
    def pieces():
        yield b"the first"
        raise MemoryError

    before = open_descriptors()
    with pytest.raises(MemoryError):
        write_segment(pieces())
    assert not left_open(before)
