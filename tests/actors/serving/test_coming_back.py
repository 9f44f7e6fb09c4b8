"""When clients are told to ask again."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.coming_back import LONGEST, LONGEST_LOAD, AnswerPace, after_load


@pytest.fixture
def pace():
    return AnswerPace()


def test_a_queue_of_which_nothing_is_known_tells_nothing():
    assert AnswerPace().after(100, answered=0, usual=lambda: 0.0, now=5.0) == 0.0


def test_a_queue_that_refuses_for_the_first_time_counts_on_what_the_model_usually_does():
    assert AnswerPace().after(30, answered=1000, usual=lambda: 10.0, now=5.0) == pytest.approx(3.0)


def test_a_queue_tells_by_what_it_answered_while_it_refused(pace):
    pace.after(30, answered=1000, usual=lambda: 1000.0, now=5.0)
    assert pace.after(30, answered=1010, usual=lambda: 1000.0, now=7.0) == pytest.approx(6.0)


def test_a_rate_is_of_the_last_seconds(pace):
    answered = 0
    for second in range(40):
        answered += 100 if second < 20 else 1
        told = pace.after(10, answered=answered, usual=lambda: 0.0, now=float(second))
    assert told == pytest.approx(10.0)


def test_a_queue_that_has_not_refused_for_a_while_begins_anew(pace):
    for second in range(5):
        pace.after(10, answered=second, usual=lambda: 0.0, now=float(second))
    assert pace.after(10, answered=5000, usual=lambda: 5.0, now=500.0) == pytest.approx(2.0)


def test_what_does_not_move_is_not_expected_to_soon(pace):
    for second in range(9):
        told = pace.after(10, answered=7, usual=lambda: 100.0, now=float(second))
    assert told >= 4.0


@given(
    st.lists(
        st.tuples(st.floats(0.0, 100.0), st.integers(0, 1000), st.integers(0, 10**6), st.floats(0.0, 1e6)),
        max_size=30,
    )
)
def test_nobody_is_told_to_stay_away_for_long(steps):
    pace, now, answered = AnswerPace(), 0.0, 0
    for seconds, more, waiting, usual in steps:
        now, answered = now + seconds, answered + more
        assert 0.0 <= pace.after(waiting, answered=answered, usual=partial(float, usual), now=now) <= LONGEST


@pytest.mark.parametrize(
    ("seconds", "before", "expected"),
    [
        (0.0, 0.0, 1.0),
        (0.4, 0.0, 1.0),
        (6.0, 0.0, 6.0),
        (600.0, 0.0, LONGEST_LOAD),
        (2.0, 12.0, 10.0),
        (11.9, 12.0, 1.0),
        (15.0, 12.0, 15.0),
        (0.0, 1000.0, LONGEST_LOAD),
    ],
)
def test_a_load_is_expected_to_take_what_it_took_or_as_long_again(seconds, before, expected):
    assert after_load(seconds, before=before) == pytest.approx(expected)
