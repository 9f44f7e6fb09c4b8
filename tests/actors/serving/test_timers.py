"""Deadlines of many things in one heap."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.serving.policy.timers import Timers
from tests.support.examples import examples


def test_timers_forget_what_is_dropped():
    timers: Any = Timers()
    numbers = [timers.set(float(n), n) for n in range(200)]
    for number in numbers[:150]:
        timers.drop(number)
    assert timers.next_due() == 150.0
    assert timers.pop_due(149.0) is None
    assert [timers.pop_due(151.0) for _ in range(3)] == [150, 151, None]
    timers.set(0.0, "new")
    assert timers.pop_due(0.0) == "new"
    assert len(timers) == 48


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=200), st.floats(0, 10))
def test_exactly_what_runs_and_is_due_comes_out_in_its_order(plans, now):
    timers: Any = Timers()
    set_for = [(at, keep, number, timers.set(at, number)) for number, (at, keep) in enumerate(plans)]
    for _, keep, _, timer in set_for:
        if not keep:
            timers.drop(timer)
    expected = [
        number for at, keep, number, _ in sorted(set_for, key=lambda each: each[0]) if keep and at <= now
    ]
    found = []
    while (number := timers.pop_due(now)) is not None:
        found.append(number)
    assert found == expected
    assert len(timers) == sum(keep for _, keep in plans) - len(expected)
