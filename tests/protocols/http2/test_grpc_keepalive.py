"""Pings, strikes and age: the decisions, given the time."""

from __future__ import annotations

import math

import pytest

from protocols.grpc.policy import IDLE_PING_INTERVAL, Action, GrpcOptions, Keepalive


def alive(now=0.0, jitter=0.0, **options):
    return Keepalive(GrpcOptions(**options), now=now, jitter=jitter)


def test_a_silent_peer_with_a_call_is_pinged_once_and_dropped_if_it_stays_silent():
    keepalive = alive(keepalive_time=10, keepalive_timeout=5)
    assert keepalive.check(9.9, calls=1) is Action.NONE
    assert keepalive.check(10, calls=1) is Action.PING
    assert keepalive.check(14.9, calls=1) is Action.NONE
    assert keepalive.check(15, calls=1) is Action.DROP


def test_whatever_a_peer_sends_shows_that_it_lives():
    keepalive = alive(keepalive_time=10, keepalive_timeout=5)
    keepalive.check(10, calls=1)
    keepalive.heard(12)
    assert keepalive.check(21.9, calls=1) is Action.NONE
    assert keepalive.check(22, calls=1) is Action.PING


def test_a_peer_without_calls_is_left_alone_unless_that_is_permitted():
    assert alive(keepalive_time=10).check(100, calls=0) is Action.NONE
    permitting = alive(keepalive_time=10, keepalive_permit_without_calls=True)
    assert permitting.check(100, calls=0) is Action.PING


@pytest.mark.parametrize(("most", "pings"), [(2, 2), (1, 1), (0, 6)])
def test_pings_stop_until_data_is_sent(most, pings):
    keepalive = alive(keepalive_time=10, max_pings_without_data=most)
    now = 0.0

    def ping_for_a_minute():
        nonlocal now
        count = 0
        for _ in range(6):
            now += 10
            count += keepalive.check(now, calls=1) is Action.PING
            keepalive.heard(now)
        return count

    assert ping_for_a_minute() == pings
    keepalive.sent_data()
    assert ping_for_a_minute() == pings


def test_pings_that_come_too_often_are_strikes():
    keepalive = alive(min_ping_interval_without_data=300, max_ping_strikes=2)
    struck = [keepalive.struck_out(now, calls=1) for now in (0, 300, 600, 700, 800, 900)]
    assert struck == [False, False, False, False, False, True]


def test_a_peer_without_calls_may_ping_every_two_hours():
    keepalive = alive(max_ping_strikes=1)
    times = (0, IDLE_PING_INTERVAL, 2 * IDLE_PING_INTERVAL, 2 * IDLE_PING_INTERVAL + 300)
    assert not any(keepalive.struck_out(now, calls=0) for now in times)
    assert keepalive.struck_out(2 * IDLE_PING_INTERVAL + 600, calls=0)
    permitting = alive(keepalive_permit_without_calls=True, max_ping_strikes=1)
    assert not any(permitting.struck_out(now, calls=0) for now in range(0, 3000, 300))


def test_data_that_is_sent_forgives_all_pings():
    keepalive = alive(max_ping_strikes=1)
    for now in range(100):
        assert not keepalive.struck_out(now, calls=1)
        keepalive.sent_data()


def test_no_strikes_at_all_are_counted_where_none_is_too_many():
    keepalive = alive(max_ping_strikes=0)
    assert not any(keepalive.struck_out(now, calls=0) for now in range(100))


@pytest.mark.parametrize(("jitter", "age"), [(0.0, 100), (1.0, 110), (-1.0, 90)])
def test_an_old_connection_retires_once_and_ends_after_its_grace(jitter, age):
    keepalive = alive(now=1000, jitter=jitter, max_connection_age=100, max_connection_age_grace=7)
    assert keepalive.check(1000 + age - 0.1, calls=1) is Action.NONE
    assert keepalive.check(1000 + age + 0.1, calls=1) is Action.RETIRE
    assert keepalive.check(1000 + age + 7, calls=1) is Action.NONE
    assert keepalive.check(1000 + age + 7.2, calls=1) is Action.EXPIRE


def test_without_a_grace_calls_have_all_the_time_they_want():
    keepalive = alive(max_connection_age=100)
    assert keepalive.check(100, calls=1) is Action.RETIRE
    keepalive.heard(10**6)
    assert keepalive.check(10**6, calls=1) is Action.NONE


def test_connections_do_not_age_by_default():
    keepalive = alive(keepalive_time=math.inf)
    assert keepalive.check(10**9, calls=1) is Action.NONE


def test_a_connection_without_calls_is_told_to_rest_once():
    keepalive = alive(idle_timeout=60)
    assert keepalive.check(59, calls=1) is Action.NONE
    assert keepalive.idle_since(calls=1) == math.inf
    keepalive.heard(100)  # pings are no calls
    assert keepalive.check(118, calls=0) is Action.NONE
    assert keepalive.idle_since(calls=0) == 59
    assert keepalive.check(119, calls=0) is Action.REST
    assert keepalive.check(500, calls=0) is Action.NONE


def test_a_call_between_two_checks_is_noticed():
    keepalive = alive(idle_timeout=60)
    keepalive.sent_data()
    assert keepalive.idle_since(calls=0) == math.inf
    assert keepalive.check(59, calls=0) is Action.NONE
    assert keepalive.check(118, calls=0) is Action.NONE
    assert keepalive.check(119, calls=0) is Action.REST


def test_a_stream_that_is_open_and_silent_is_not_idle():
    keepalive = alive(idle_timeout=60)
    assert {keepalive.check(now, calls=1) for now in range(0, 7000, 50)} == {Action.NONE}
