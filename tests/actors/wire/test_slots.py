"""A worker's slots: leases balance, segments grow and are handed over, and idle memory is given back."""

from typing import Any

import pytest

from actors.wire.arena import INPUT, OUTPUT, ControlPage, Segment, segment_size
from actors.wire.slots import IDLE_KEEP, Slot
from chaos.record.descriptors import left_open, open_descriptors


class Sent:
    """Counts the segments that were handed over, and may refuse one."""

    def __init__(self):
        self.segments = []
        self.refuse = False

    def __call__(self, slot, side, segment):
        if self.refuse:
            raise OSError(24, "Too many open files")
        self.segments.append((side, segment.size))


def test_a_slot_is_free_when_its_last_lease_ends():
    freed: list[Any] = []
    slot = Slot(3, Sent(), freed.append)
    slot.lease()
    slot.lease()
    slot.release()
    assert (freed, slot.leased) == ([], True)
    slot.release()
    assert (freed, slot.leased) == ([slot], False)


def test_a_segment_is_replaced_only_where_it_is_too_small():
    sent = Sent()
    slot = Slot(0, sent, lambda slot: None)
    assert sent.segments == [(INPUT, 65536), (OUTPUT, 65536)]
    slot.make_room(OUTPUT, 65536)
    assert len(sent.segments) == 2
    slot.make_room(OUTPUT, 65537)
    assert sent.segments[2:] == [(OUTPUT, 131072)]


def test_a_segment_that_could_not_be_handed_over_is_not_used():
    sent = Sent()
    slot = Slot(0, sent, lambda slot: None)
    sent.refuse = True
    before = open_descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        slot.make_room(INPUT, 100_000)
    assert slot.segments[INPUT].size == 65536
    assert not left_open(before)


@pytest.mark.parametrize(("nbytes", "kept"), [(2 * 1024 * 1024, False), (512 * 1024, True)])
def test_large_segments_are_given_back_after_an_idle_turn(nbytes, kept):
    slot = Slot(0, Sent(), lambda slot: None)
    slot.make_room(INPUT, nbytes)
    slot.lease()
    slot.segments[INPUT].view[0] = 1
    list(slot.trimming())
    slot.release()
    assert slot.segments[INPUT].view[0] == 1
    list(slot.trimming())
    assert (slot.segments[INPUT].view[0] == 1) is kept


def test_a_slot_that_is_leased_while_it_is_trimmed_keeps_what_is_written_then():
    slot = Slot(0, lambda slot, side, segment: None, lambda slot: None)
    slot.lease()
    slot.make_room(INPUT, 4 * IDLE_KEEP)
    slot.release()
    view = slot.segments[INPUT].view
    view[:] = b"x" * len(view)
    list(slot.trimming())
    steps = slot.trimming()
    next(steps)
    next(steps)
    assert view[0] == 0
    slot.lease()
    view[:] = b"y" * len(view)
    assert list(steps) == []
    assert bytes(view[: IDLE_KEEP + 1]) == b"y" * (IDLE_KEEP + 1)
    assert view[-1] == ord("y")


def test_a_dead_workers_memory_is_returned_in_pieces_but_for_what_is_viewed():
    slot = Slot(0, lambda slot, side, segment: None, lambda slot: None)
    slot.lease()
    for side in (INPUT, OUTPUT):
        slot.make_room(side, 4 * IDLE_KEEP)
        slot.segments[side].view[:] = b"x" * (4 * IDLE_KEEP)
    assert len(list(slot.emptying())) >= 4
    assert [slot.segments[side].view[-1] for side in (INPUT, OUTPUT)] == [0, ord("x")]
    slot.release()
    list(slot.emptying())
    assert slot.segments[OUTPUT].view[-1] == 0


def test_a_slot_tells_when_its_worker_began():
    segment = Segment.create(segment_size(0))
    control = ControlPage(segment, 1, 1)
    slot = Slot(0, Sent(), lambda slot: None, control)
    assert Slot(0, Sent(), lambda slot: None).begun_ns == 0
    control.offer(0, 1)
    assert control.begin(0, 7, 0, 123)
    assert slot.begun_ns == 123
    segment.close_fd()
