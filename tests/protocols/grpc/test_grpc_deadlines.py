from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.grpc.policy import TICK, DeadlineWheel


def test_deadlines_are_told_once_they_have_passed():
    wheel = DeadlineWheel()
    wheel.add("b", 2.0)
    wheel.add("a", 1.0)
    assert wheel.next_expiry() == pytest.approx(1.0)
    assert wheel.expire(0.9) == []
    assert wheel.expire(1.5) == ["a"]
    assert wheel.next_expiry() == pytest.approx(2.0)
    assert wheel.expire(2.5) == ["b"]
    assert wheel.expire(9.0) == []
    assert wheel.next_expiry() == math.inf


def test_discarded_deadlines_are_not_told():
    wheel = DeadlineWheel()
    wheel.add("a", 1.0)
    wheel.add("b", 1.0)
    wheel.discard("a")
    wheel.discard("never added")
    assert wheel.expire(2.0) == ["b"]
    assert len(wheel) == 0


def test_a_deadline_can_be_changed():
    wheel = DeadlineWheel()
    wheel.add("a", 1.0)
    wheel.add("a", 5.0)
    assert wheel.expire(2.0) == []
    wheel.add("a", math.inf)
    assert wheel.next_expiry() == math.inf


def test_a_call_without_a_deadline_is_never_told():
    wheel = DeadlineWheel()
    wheel.add("a", math.inf)
    assert len(wheel) == 0
    assert wheel.expire(1e300) == []


def test_a_deadline_that_has_passed_already_is_told_at_once():
    wheel = DeadlineWheel()
    wheel.add("a", 1.0)
    assert wheel.expire(100.0) == ["a"]


def test_finished_calls_leave_nothing_behind():
    def size(rounds):
        wheel = DeadlineWheel()
        wheel.add("stays", 1e9)
        for number in range(rounds):
            wheel.add("call", 1e6 + number * 7)
            wheel.discard("call")
        return sum(map(sys.getsizeof, vars(wheel).values()))

    assert size(20_000) < 2 * size(200)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 10)), max_size=40), st.lists(st.floats(0, 11)))
def test_each_deadline_is_told_once_neither_early_nor_late(added, times):
    wheel = DeadlineWheel()
    left = {}
    for key, deadline in added:
        wheel.add(key, deadline)
        left[key] = deadline
    for now in sorted(times):
        due = wheel.next_expiry() <= now
        told = wheel.expire(now)
        assert due == bool(told)
        for key in told:
            assert left.pop(key) <= now + 1e-9
        assert all(deadline + TICK + 1e-9 > now for deadline in left.values())
    assert len(wheel) == len(left)
