"""What is due when, and when a server that does not answer is asked again."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.caching.policy.breaker import FAILURES_ALLOWED, FIRST_PAUSE, LONGEST_PAUSE, Breaker
from actors.serving.policy.appointments import Appointments
from tests.support.examples import examples


def test_what_is_due_comes_in_its_order_and_once():
    calendar = Appointments()
    for at, what in ((3.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "d")):
        calendar.make(at, what)
    assert calendar.next_at() == 1.0
    assert calendar.due(3.0) == ["a", "b", "c"]
    assert calendar.due(3.0) == []
    assert calendar.next_at() == 9.0


def test_what_was_called_off_is_let_go_of_at_once():
    calendar = Appointments()
    appointment = calendar.make(1.0, "a")
    calendar.call_off(appointment)
    calendar.call_off(appointment)
    assert appointment.matter is None
    assert (len(calendar), calendar.next_at(), calendar.due(5.0)) == (0, inf, [])


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=200), st.floats(0, 10))
def test_exactly_what_was_kept_and_is_due_comes_out(plans, now):
    calendar = Appointments()
    made = [(at, keep, calendar.make(at, number)) for number, (at, keep) in enumerate(plans)]
    for _, keep, appointment in made:
        if not keep:
            calendar.call_off(appointment)
    expected = {number for number, (at, keep) in enumerate(plans) if keep and at <= now}
    left = sum(keep for _, keep in plans) - len(expected)
    assert set(calendar.due(now)) == expected
    assert len(calendar) == left


def test_nothing_goes_through_before_the_first_sign_of_life():
    breaker = Breaker()
    assert not breaker.closed
    assert breaker.succeeded()
    assert breaker.closed
    assert not breaker.succeeded()


def test_failures_in_a_row_shut_it_off_and_others_do_not():
    breaker = Breaker()
    breaker.succeeded()
    for _ in range(FAILURES_ALLOWED):
        assert not breaker.failed()
    breaker.succeeded()
    for _ in range(FAILURES_ALLOWED):
        assert not breaker.failed()
    assert breaker.failed()
    assert not breaker.closed


def test_trials_become_rarer_up_to_a_bound():
    breaker = Breaker()
    breaker.failed()
    pauses = [breaker.pause]
    for _ in range(8):
        breaker.failed()
        pauses.append(breaker.pause)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE
