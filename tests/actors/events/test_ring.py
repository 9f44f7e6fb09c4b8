"""What the ring keeps, where followers go on, and what they are told of what is gone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.events.policy import (
    OVERHEAD,
    PORTION_BYTES,
    Place,
    Ring,
    RingLimits,
    id_of,
    place_after,
    portion,
)
from actors.values.errors import InvalidArgument
from actors.values.events import ToldEvent, WantedEvents

BOOT = "3f2a9c1d"
ALL = WantedEvents()


def told(number=0, *, event="model_ready", level="info", model="m", size=2):
    return ToldEvent(event=event, level=level, model=model, text=json.dumps(number).encode().ljust(size))


def ring(count=0, *, entries=10, room=10_000):
    kept = Ring(RingLimits(entries=entries, bytes=room))
    for number in range(1, count + 1):
        kept.add(told(number))
    return kept


def numbers(taken):
    return [int(event.text) for _, event in taken.events]


def test_the_newest_events_are_kept_and_numbered_from_one():
    kept = ring(25)
    assert (kept.latest, kept.oldest, kept.kept) == (25, 16, 10)
    assert [(number, int(each.text)) for number, each in kept.after(22)] == [(23, 23), (24, 24), (25, 25)]


def test_an_empty_ring_has_nothing_and_says_what_comes_next():
    kept = ring()
    assert (kept.latest, kept.oldest, kept.kept, kept.bytes) == (0, 1, 0, 0)
    assert list(kept.after(0)) == []


def test_bytes_are_bounded_too():
    kept = ring(entries=1000, room=10 * (OVERHEAD + 100))
    for number in range(30):
        kept.add(told(number, size=100))
    assert kept.kept == 10
    kept.add(told(30, size=5 * (OVERHEAD + 100)))
    assert kept.bytes <= 10 * (OVERHEAD + 100)
    assert kept.kept < 10


def test_an_event_without_any_room_is_counted_and_not_kept():
    kept = ring(3, room=1000)
    kept.add(told(4, size=5000))
    assert (kept.latest, kept.oldest, kept.kept, kept.bytes) == (4, 5, 0, 0)


@given(st.integers(1, 8), st.integers(1, 3000), st.lists(st.integers(1, 400), max_size=60))
def test_neither_bound_is_ever_exceeded(entries, most, sizes):
    kept = Ring(RingLimits(entries=entries, bytes=most))
    for number, size in enumerate(sizes, 1):
        kept.add(told(number, size=size))
        assert kept.kept <= entries
        assert kept.bytes <= most
        assert kept.oldest + kept.kept == kept.latest + 1 == number + 1


@pytest.mark.parametrize(
    ("after", "place"),
    [
        (None, Place(25)),
        ("", Place(0)),
        ("0", Place(0)),
        (f"{BOOT}-22", Place(22)),
        (f"{BOOT}-3", Place(3)),
        (f"{BOOT}-99", Place(25)),  # no such event can have been told
        ("0000abcd-22", Place(15, gap=True)),
    ],
)
def test_a_follower_goes_on_behind_the_event_that_it_has(after, place):
    assert place_after(after, ring(25), BOOT) == place


@pytest.mark.parametrize(
    "after", ["7", "x", f"{BOOT}-", f"{BOOT}--1", f"{BOOT.upper()}-1", f"{BOOT}-" + "1" * 16]
)
def test_what_is_no_id_is_refused_with_one_that_is(after):
    with pytest.raises(InvalidArgument, match=rf"such as {BOOT}-25, or 0 for all that are kept"):
        place_after(after, ring(25), BOOT)


def test_a_portion_has_what_is_wanted_and_goes_past_the_rest():
    kept = ring(4)
    kept.add(told(5, model="other"))
    taken, there = portion(kept, Place(2), WantedEvents(models=["m"]), BOOT)
    assert numbers(taken) == [3, 4]
    assert [id_ for id_, _ in taken.events] == [id_of(BOOT, 3), id_of(BOOT, 4)]
    assert (taken.upto, taken.gap, taken.missed, there) == (id_of(BOOT, 5), False, 0, Place(5))
    nothing, same = portion(kept, there, ALL, BOOT)
    assert (nothing.events, nothing.upto, same) == ([], id_of(BOOT, 5), there)


def test_a_follower_that_the_ring_has_left_behind_learns_how_much_it_missed():
    taken, there = portion(ring(25), Place(3), ALL, BOOT)
    assert (numbers(taken), taken.gap, taken.missed, there) == (list(range(16, 26)), True, 12, Place(25))
    assert not portion(ring(25), there, ALL, BOOT)[0].gap


def test_a_follower_of_an_earlier_start_learns_that_something_is_missing():
    place = place_after("0000abcd-22", ring(25), BOOT)
    taken, there = portion(ring(25), place, ALL, BOOT)
    assert (numbers(taken), taken.gap, taken.missed) == (list(range(16, 26)), True, None)
    assert there == Place(25)


def test_a_portion_is_bounded_and_the_next_one_goes_on():
    kept = ring(entries=100, room=10**7)
    for number in range(1, 11):
        kept.add(told(number, size=PORTION_BYTES // 3))
    place = Place(0)
    seen: list[int] = []
    while len(seen) < 10:
        taken, place = portion(kept, place, ALL, BOOT)
        assert len(taken.events) <= 4
        seen += numbers(taken)
    assert seen == list(range(1, 11))


def test_one_look_passes_over_a_bounded_number_of_events():
    kept = ring(2000, entries=5000, room=10**7)
    none = WantedEvents(events=["no_such"])
    place, looks = Place(0), 0
    while place.number < 2000:
        taken, place = portion(kept, place, none, BOOT)
        assert taken.events == []
        looks += 1
    assert looks == 4


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 12))
def test_whatever_is_dropped_or_taken_no_event_goes_unaccounted(first, more, entries):
    kept = ring(first, entries=entries)
    place = place_after(None, kept, BOOT)
    for number in range(first + 1, first + more + 1):
        kept.add(told(number))
    taken, there = portion(kept, place, ALL, BOOT)
    assert (taken.missed or 0) + len(taken.events) == more
    assert there == Place(first + more)


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (WantedEvents(), True),
        (WantedEvents(models=["res*"]), True),
        (WantedEvents(models=["other", "resnet"]), True),
        (WantedEvents(models=["other"]), False),
        (WantedEvents(events=["worker_*"]), True),
        (WantedEvents(events=["model_*"]), False),
        (WantedEvents(level="warning"), True),
        (WantedEvents(level="error"), False),
        (WantedEvents(models=["resnet"], events=["worker_exited"], level="info"), True),
        (WantedEvents(models=["resnet"], events=["child_*"], level="info"), False),
    ],
)
def test_what_is_wanted_fits_every_field_and_any_value_of_one(wanted, is_wanted):
    assert wanted.wants(told(event="worker_exited", level="warning", model="resnet")) is is_wanted
