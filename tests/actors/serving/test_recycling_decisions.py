"""When a worker has done its time, and what `tritium.recycle` may say."""

import math

import pytest

from actors.serving.policy.recycling import (
    AFTER_FAILURE,
    LONGEST_REST,
    LOOK_EVERY,
    REST,
    SHORTEST_REST,
    InvalidRecycling,
    Rest,
    Wear,
    ceiling_reached,
    next_look,
    read_recycle,
)
from actors.values.specs import Recycle

ALL = Recycle(memory=1000, requests=10, seconds=60.0)


@pytest.mark.parametrize(
    ("wear", "ceiling"),
    [
        (Wear(memory=999, requests=9, seconds=59.9), ""),
        (Wear(memory=1000), "memory"),
        (Wear(requests=10), "requests"),
        (Wear(seconds=60.0), "seconds"),
        (Wear(memory=1000, requests=10, seconds=60.0), "memory"),
    ],
)
def test_a_worker_has_done_its_time_when_it_reaches_a_ceiling(wear, ceiling):
    assert ceiling_reached(wear, ALL) == ceiling


def test_a_ceiling_that_is_not_set_is_never_reached():
    wear = Wear(memory=2**60, requests=2**60, seconds=1e9)
    assert ceiling_reached(wear, Recycle()) == ""
    assert ceiling_reached(wear, Recycle(seconds=1.0)) == "seconds"


def test_memory_and_requests_are_looked_at_now_and_then():
    assert next_look([0.0], Recycle(memory=1, seconds=1e6)) == LOOK_EVERY
    assert next_look([], Recycle(requests=1)) == LOOK_EVERY


def test_for_an_age_nobody_looks_before_the_oldest_has_it():
    assert next_look([10.0, 40.0], Recycle(seconds=60.0)) == 20.0
    assert next_look([70.0], Recycle(seconds=60.0)) == LOOK_EVERY
    assert next_look([], Recycle(seconds=60.0)) == 60.0


def test_after_a_replacement_there_is_rest_in_proportion_to_what_it_took():
    rest = Rest()
    assert rest.until == -math.inf
    rest.replaced(10.0, 13.0)
    assert rest.until == 13.0 + 3.0 * REST
    rest.replaced(20.0, 20.0)
    assert rest.until == 20.0 + SHORTEST_REST
    rest.replaced(0.0, 10_000.0)
    assert rest.until == 10_000.0 + LONGEST_REST


def test_replacements_that_fail_are_tried_more_and_more_seldom():
    rest = Rest()
    pauses = []
    for _ in range(8):
        rest.failed(0.0)
        pauses.append(rest.until)
    assert pauses[:3] == [AFTER_FAILURE, 2 * AFTER_FAILURE, 4 * AFTER_FAILURE]
    assert pauses[-1] == LONGEST_REST
    rest.replaced(0.0, 0.0)
    rest.failed(0.0)
    assert rest.until == AFTER_FAILURE


def test_ceilings_are_read_in_the_units_of_their_names():
    assert read_recycle({"memory_mb": 2, "requests": 5, "seconds": 1.5}) == Recycle(
        memory=2 * 1024 * 1024, requests=5, seconds=1.5
    )
    assert read_recycle({"requests": 1}) == Recycle(requests=1)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "has no ceiling: use one or more of"),
        ([], "is no JSON object"),
        ({"memory": 5}, "'memory' is unknown: did you mean 'memory_mb'?"),
        ({"requests": 0}, "'requests' is 0: use a whole number of at least 1"),
        ({"memory_mb": 1.5}, "'memory_mb' is 1.5: use a whole number of at least 1"),
        ({"seconds": 0.5}, "'seconds' is 0.5: use a number of at least 1"),
        ({"seconds": True}, "'seconds' is true"),
    ],
)
def test_what_makes_no_sense_is_told_with_what_would(document, told):
    with pytest.raises(InvalidRecycling) as caught:
        read_recycle(document)
    assert told in caught.value.message
