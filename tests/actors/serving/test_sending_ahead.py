"""What may wait in a worker behind an execution, and when it goes to another instance."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.ahead import PATIENCE, Workload, lasts, outlasts, overdue

NOW = 100.0
IDLE = Workload(math.inf, room=True)
FULL = Workload(NOW - 0.001, room=False)


def busy_for(seconds, *, room=False, took=0.0):
    return Workload(NOW - seconds, room=room, took=took)


def test_an_execution_lasts_when_it_takes_twice_as_long_as_the_last_one_did_and_longer_than_a_moment():
    assert not lasts(NOW - PATIENCE / 2, 0.0, NOW)
    assert lasts(NOW - 2 * PATIENCE, 0.0, NOW)
    assert not lasts(NOW - 2 * PATIENCE, PATIENCE, NOW)
    assert lasts(NOW - 4 * PATIENCE, PATIENCE, NOW)


def test_a_worker_with_a_free_lane_is_a_place_for_anything():
    assert not lasts(math.inf, 0.0, NOW)
    assert not outlasts(math.inf, NOW)


@pytest.mark.parametrize(
    ("instances", "late"),
    [
        ([busy_for(60.0), FULL], []),
        ([busy_for(0.02), IDLE, busy_for(0.001)], [0]),
        ([busy_for(0.02), busy_for(5.0), IDLE, busy_for(1.0)], [1, 3, 0]),
        ([busy_for(0.004, room=True, took=0.02), busy_for(0.019)], []),
        ([busy_for(0.004, room=True, took=0.02), busy_for(0.1)], [1]),
        ([busy_for(1.0, room=True), busy_for(60.0)], []),
        ([busy_for(0.0), IDLE, IDLE], []),
        ([busy_for(PATIENCE / 2), IDLE, IDLE], []),
    ],
    ids=[
        "no other instance has room",
        "an idle instance takes what waits behind an execution that lasts",
        "the longest busy instance comes first",
        "executions that take alike",
        "an instance that goes on takes what waits behind one that hangs",
        "an instance at a long execution itself takes nothing",
        "an execution that has just begun",
        "a short execution",
    ],
)
def test_what_is_taken_back_is_what_waits_behind_a_lasting_execution(instances, late):
    assert overdue(instances, NOW) == late


standings = st.lists(
    st.builds(
        Workload,
        busy_since=st.one_of(st.just(math.inf), st.floats(0.0, NOW)),
        room=st.booleans(),
        took=st.floats(0.0, 10.0),
    ),
    max_size=6,
)


@given(standings)
def test_only_what_waits_behind_a_lasting_execution_is_taken_and_only_for_an_instance_with_room(given):
    late = overdue(given, NOW)
    assert len(set(late)) == len(late)
    for at in late:
        assert outlasts(given[at].busy_since, NOW)
        takers = [each for each in given if each.room and not lasts(each.busy_since, each.took, NOW)]
        assert takers
    assert late == sorted(late, key=lambda at: given[at].busy_since)
