"""Token buckets and counts of what is under way, told the time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import TooManyRequests
from engine.identity.limits import Bucket, Limits, Usage, strictest


def admitted(usage, now, size=0):
    try:
        usage.take(size, lambda: now, "alice")
    except TooManyRequests as error:
        return error.retry_after
    return None


def test_a_burst_is_let_in_and_then_the_rate():
    usage = Usage(Limits(requests=2, burst=1.5))
    assert [admitted(usage, 0.0) for _ in range(3)] == [None] * 3
    assert admitted(usage, 0.25) == pytest.approx(0.25)
    assert admitted(usage, 0.5) is None
    assert usage.admitted == 4


def test_a_refusal_says_who_how_much_and_when():
    usage = Usage(Limits(requests=0.5))
    assert admitted(usage, 0.0) is None
    with pytest.raises(
        TooManyRequests, match=r"'alice' may make 0\.5 requests a second, and has used them up"
    ):
        usage.take(0, lambda: 0.0, "alice")


def test_a_large_request_is_let_in_and_those_after_it_wait_for_it():
    usage = Usage(Limits(bytes=100))
    assert admitted(usage, 0.0, 1000) is None
    assert admitted(usage, 0.0, 1) == pytest.approx(9.01)
    assert admitted(usage, 8.9, 1) == pytest.approx(0.11)
    assert admitted(usage, 9.1, 1) is None


def test_bytes_that_came_unannounced_are_owed():
    usage = Usage(Limits(bytes=100))
    usage.owe(300)
    assert admitted(usage, 0.0) == pytest.approx(2.01)
    unlimited = Usage(Limits())
    unlimited.owe(300)
    assert admitted(unlimited, 0.0) is None


def test_requests_that_were_refused_are_owed():
    usage = Usage(Limits(requests=2))
    usage.owe_request()
    assert admitted(usage, 0.0) is None
    assert admitted(usage, 0.0) == pytest.approx(0.5)
    unlimited = Usage(Limits(bytes=100))
    unlimited.owe_request()
    assert admitted(unlimited, 0.0) is None


def test_a_refusal_by_bytes_takes_no_request():
    usage = Usage(Limits(requests=1, bytes=10))
    assert admitted(usage, 0.0, 20) is None
    assert admitted(usage, 1.0, 1) == pytest.approx(0.1)
    assert admitted(usage, 1.1, 1) is None


def test_as_many_run_as_may():
    usage = Usage(Limits(concurrent=2))
    usage.begin("alice")
    usage.begin("alice")
    with pytest.raises(TooManyRequests, match="'alice' may make 2 inferences at a time") as refused:
        usage.begin("alice")
    assert refused.value.retry_after == 0
    assert usage.running
    usage.end()
    usage.begin("alice")
    usage.end()
    usage.end()
    assert not usage.running


def test_other_limits_begin_anew_and_the_same_ones_go_on():
    usage = Usage(Limits(requests=1))
    assert admitted(usage, 0.0) is None
    usage.bound_by(Limits(requests=1))
    assert admitted(usage, 0.0) is not None
    usage.bound_by(Limits(requests=2))
    assert admitted(usage, 0.0) is None
    usage.bound_by(Limits())
    assert [admitted(usage, 0.0) for _ in range(5)] == [None] * 5


def test_the_strictest_of_several_limits_hold():
    assert strictest([]) == Limits()
    assert Limits().none
    found = strictest([Limits(requests=5, concurrent=3), Limits(requests=7, bytes=10, burst=0.5)])
    assert found == Limits(requests=5, bytes=10, concurrent=3, burst=0.5)
    assert not found.none


@given(
    rate=st.floats(0.1, 1000),
    burst=st.floats(0.1, 10),
    gaps=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_more_comes_through_than_the_rate_and_one_burst_give(rate, burst, gaps):
    bucket = Bucket(rate, max(1.0, rate * burst))
    now = passed = 0.0
    for gap in gaps:
        now += gap
        if not bucket.wait(now):
            bucket.take(1)
            passed += 1
    # The last one may leave the bucket in debt.
    assert passed <= bucket.most + rate * now + 1


@given(rate=st.floats(0.1, 1000), debt=st.floats(0, 1000))
def test_after_the_told_wait_something_is_there(rate, debt):
    bucket = Bucket(rate, 1.0)
    assert bucket.wait(0.0) == 0
    bucket.take(1 + debt)
    wait = bucket.wait(0.0)
    assert 0 < wait < math.inf
    assert bucket.wait(wait + 0.001) == 0


def test_a_clock_that_goes_back_gives_nothing():
    bucket = Bucket(1.0, 1.0)
    assert bucket.wait(5.0) == 0
    bucket.take(1)
    assert bucket.wait(3.0) > 0
