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


def test_nothing_is_taken_back_where_no_other_instance_has_room():
    assert overdue([busy_for(60.0), FULL], NOW) == []


def test_an_idle_instance_takes_what_waits_behind_an_execution_that_lasts():
    assert overdue([busy_for(0.02), IDLE, busy_for(0.001)], NOW) == [0]


def test_the_longest_busy_instance_comes_first():
    assert overdue([busy_for(0.02), busy_for(5.0), IDLE, busy_for(1.0)], NOW) == [1, 3, 0]


def test_nothing_moves_to_and_fro_between_instances_whose_executions_take_alike():
    standings = [busy_for(0.004, room=True, took=0.02), busy_for(0.019)]
    assert overdue(standings, NOW) == []


def test_an_instance_that_goes_on_takes_what_waits_behind_one_that_hangs():
    standings = [busy_for(0.004, room=True, took=0.02), busy_for(0.1)]
    assert overdue(standings, NOW) == [1]


def test_an_instance_that_is_at_a_long_execution_itself_takes_nothing():
    assert overdue([busy_for(1.0, room=True), busy_for(60.0)], NOW) == []


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


@pytest.mark.parametrize("seconds", [0.0, PATIENCE / 2])
def test_short_executions_never_have_anything_taken_back(seconds):
    assert overdue([busy_for(seconds), IDLE, IDLE], NOW) == []
