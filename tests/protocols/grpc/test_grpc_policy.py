"""What a gRPC connection may take: grants, room for answers, deadlines, pings and age."""

import gc
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.grpc.policy import (
    IDLE_PING_INTERVAL,
    TICK,
    AnswerRoom,
    DeadlineWheel,
    Grants,
    GrpcOptions,
    Keepalive,
    KeepaliveAction,
)


@pytest.fixture
def grants():
    return Grants(100)


@pytest.fixture
def wheel():
    return DeadlineWheel()


def test_what_fits_is_granted_at_once(grants):
    assert grants.ask("a", 60)
    assert grants.ask("b", 40)
    assert grants.outstanding == 100
    assert grants.holds("a")


def test_what_does_not_fit_waits_in_line_and_nobody_overtakes(grants):
    grants.ask("a", 60)
    assert not grants.ask("b", 50)
    assert not grants.ask("c", 10)
    assert grants.waiting == 2
    assert not grants.holds("b")
    assert grants.release("a") == ["b", "c"]
    assert grants.outstanding == 60


def test_one_alone_is_granted_whatever_its_size(grants):
    assert grants.ask("a", 10**9)
    assert not grants.ask("b", 1)
    assert grants.release("a") == ["b"]


def test_who_gives_up_waiting_lets_others_by(grants):
    grants.ask("a", 60)
    grants.ask("b", 50)
    grants.ask("c", 10)
    assert grants.release("b") == ["c"]
    assert grants.release("a") == []
    assert grants.release("c") == []
    assert grants.outstanding == 0


def test_a_grant_that_shrinks_makes_room(grants):
    grants.ask("a", 500)
    grants.ask("b", 50)
    assert grants.resize("a", 40) == ["b"]
    assert grants.outstanding == 90


def test_one_holder_asks_once(grants):
    grants.ask("a", 10)
    with pytest.raises(ValueError, match="has asked already"):
        grants.ask("a", 10)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=60))
def test_the_limit_holds_and_nobody_starves(steps):
    grants: Grants[object] = Grants(100)
    sizes: dict[object, int] = {}
    held: dict[object, int] = {}
    waiting: list[object] = []
    for holder, size in steps:
        if holder in held or holder in waiting:
            admitted = grants.release(holder)
            held.pop(holder, None)
            waiting = [other for other in waiting if other != holder]
            assert admitted == waiting[: len(admitted)]
            for other in admitted:
                held[other] = sizes[other]
            waiting = waiting[len(admitted) :]
        else:
            sizes[holder] = size
            if grants.ask(holder, size):
                held[holder] = size
            else:
                waiting.append(holder)
        assert grants.outstanding == sum(held.values())
        assert grants.outstanding <= 100 or len(held) == 1
        assert held or not waiting


def test_requests_begin_freely_until_an_answer_has_been_seen():
    room = AnswerRoom(100)
    for _ in range(1000):
        assert room.open
        room.in_flight += 1


def test_each_request_in_flight_is_expected_to_be_answered_as_largely_as_any_before():
    room = AnswerRoom(100)
    room.in_flight += 1
    room.answered(30)
    for _ in range(3):
        assert room.open
        room.in_flight += 1
    assert not room.open
    room.answered(1)
    assert room.open
    room.pending = 20
    assert not room.open


def test_a_request_that_is_alone_may_begin_unless_too_much_waits_already():
    room = AnswerRoom(100)
    room.in_flight += 1
    room.answered(10**9)
    room.pending = 100
    assert room.open
    room.pending = 101
    assert not room.open


def test_a_large_answer_is_forgotten_after_many_smaller_ones():
    room = AnswerRoom(100)
    for size in [80] + [1] * 255:
        room.in_flight += 1
        room.answered(size)
    room.in_flight += 1
    assert not room.open
    room.answered(1)
    for _ in range(255):
        room.in_flight += 1
        room.answered(1)
    assert room.expected == 1


def test_deadlines_are_told_once_they_have_passed(wheel):
    wheel.add("b", 2.0)
    wheel.add("a", 1.0)
    assert wheel.next_expiry() == pytest.approx(1.0)
    assert wheel.expire(0.9) == []
    assert wheel.expire(1.5) == ["a"]
    assert wheel.next_expiry() == pytest.approx(2.0)
    assert wheel.expire(2.5) == ["b"]
    assert wheel.expire(9.0) == []
    assert wheel.next_expiry() == math.inf


def test_discarded_deadlines_are_not_told(wheel):
    wheel.add("a", 1.0)
    wheel.add("b", 1.0)
    wheel.discard("a")
    wheel.discard("never added")
    assert wheel.expire(2.0) == ["b"]
    assert len(wheel) == 0


def test_a_deadline_can_be_changed(wheel):
    wheel.add("a", 1.0)
    wheel.add("a", 5.0)
    assert wheel.expire(2.0) == []
    wheel.add("a", math.inf)
    assert wheel.next_expiry() == math.inf


def test_a_call_without_a_deadline_is_never_told(wheel):
    wheel.add("a", math.inf)
    assert len(wheel) == 0
    assert wheel.expire(1e300) == []


def test_a_deadline_that_has_passed_already_is_told_at_once(wheel):
    wheel.add("a", 1.0)
    assert wheel.expire(100.0) == ["a"]


def test_finished_calls_leave_nothing_behind():
    def size(rounds):
        wheel: DeadlineWheel[object] = DeadlineWheel()
        wheel.add("stays", 1e9)
        for number in range(rounds):
            wheel.add("call", 1e6 + number * 7)
            wheel.discard("call")
        return sum(map(sys.getsizeof, gc.get_referents(wheel)))

    assert size(20_000) < 2 * size(200)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 10)), max_size=40), st.lists(st.floats(0, 11)))
def test_each_deadline_is_told_once_neither_early_nor_late(added, times):
    wheel: DeadlineWheel[object] = DeadlineWheel()
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


def alive(now=0.0, jitter=0.0, **options):
    return Keepalive(GrpcOptions(**options), now=now, jitter=jitter)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"connection_bytes": 0}, "connection_bytes is 0; it must be at least 1"),
        ({"max_connections": 0}, "max_connections is 0; it must be at least 1"),
        ({"max_receive_message": -1}, "max_receive_message is -1; it must be at least 1"),
        ({"max_send_message": 0}, "max_send_message is 0; it must be at least 1"),
        ({"keepalive_time": 0.0}, "keepalive_time is 0.0; it must be more than 0 seconds"),
        ({"stall_timeout": math.nan}, "stall_timeout is nan; it must be more than 0 seconds"),
        ({"idle_timeout": -1.0}, "idle_timeout is -1.0; it must be more than 0 seconds"),
        ({"max_connection_age": 0.0}, "max_connection_age must be more than 0 seconds, and its grace at least 0"),
        ({"max_connection_age_grace": -1.0}, "max_connection_age must be more than 0 seconds, and its grace at least 0"),
    ],
)  # fmt: skip
def test_limits_that_no_connection_could_keep_are_refused(wrong, told):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole text is compared
        GrpcOptions(**wrong)
    assert str(caught.value) == told


def test_a_silent_peer_with_a_call_is_pinged_once_and_dropped_if_it_stays_silent():
    keepalive = alive(keepalive_time=10, keepalive_timeout=5)
    assert keepalive.check(9.9, calls=1) is KeepaliveAction.NONE
    assert keepalive.check(10, calls=1) is KeepaliveAction.PING
    assert keepalive.check(14.9, calls=1) is KeepaliveAction.NONE
    assert keepalive.check(15, calls=1) is KeepaliveAction.DROP


def test_whatever_a_peer_sends_shows_that_it_lives():
    keepalive = alive(keepalive_time=10, keepalive_timeout=5)
    keepalive.check(10, calls=1)
    keepalive.heard(12)
    assert keepalive.check(21.9, calls=1) is KeepaliveAction.NONE
    assert keepalive.check(22, calls=1) is KeepaliveAction.PING


def test_a_peer_without_calls_is_left_alone_unless_that_is_permitted():
    assert alive(keepalive_time=10).check(100, calls=0) is KeepaliveAction.NONE
    permitting = alive(keepalive_time=10, keepalive_permit_without_calls=True)
    assert permitting.check(100, calls=0) is KeepaliveAction.PING


@pytest.mark.parametrize(("most", "pings"), [(2, 2), (1, 1), (0, 6)])
def test_pings_stop_until_data_is_sent(most, pings):
    keepalive = alive(keepalive_time=10, max_pings_without_data=most)
    now = 0.0

    def ping_for_a_minute():
        nonlocal now
        count = 0
        for _ in range(6):
            now += 10
            count += keepalive.check(now, calls=1) is KeepaliveAction.PING
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
    assert keepalive.check(1000 + age - 0.1, calls=1) is KeepaliveAction.NONE
    assert keepalive.check(1000 + age + 0.1, calls=1) is KeepaliveAction.RETIRE
    assert keepalive.check(1000 + age + 7, calls=1) is KeepaliveAction.NONE
    assert keepalive.check(1000 + age + 7.2, calls=1) is KeepaliveAction.EXPIRE


def test_without_a_grace_calls_have_all_the_time_they_want():
    keepalive = alive(max_connection_age=100)
    assert keepalive.check(100, calls=1) is KeepaliveAction.RETIRE
    keepalive.heard(10**6)
    assert keepalive.check(10**6, calls=1) is KeepaliveAction.NONE


def test_connections_do_not_age_by_default():
    keepalive = alive(keepalive_time=math.inf)
    assert keepalive.check(10**9, calls=1) is KeepaliveAction.NONE


def test_a_connection_without_calls_is_told_to_rest_once():
    keepalive = alive(idle_timeout=60)
    assert keepalive.check(59, calls=1) is KeepaliveAction.NONE
    assert keepalive.idle_since(calls=1) == math.inf
    keepalive.heard(100)  # pings are no calls
    assert keepalive.check(118, calls=0) is KeepaliveAction.NONE
    assert keepalive.idle_since(calls=0) == 59
    assert keepalive.check(119, calls=0) is KeepaliveAction.REST
    assert keepalive.check(500, calls=0) is KeepaliveAction.NONE


def test_a_call_between_two_checks_is_noticed():
    keepalive = alive(idle_timeout=60)
    keepalive.heard(40)
    keepalive.sent_data()
    assert keepalive.idle_since(calls=0) == 40
    assert keepalive.check(59, calls=0) is KeepaliveAction.NONE
    assert keepalive.check(118, calls=0) is KeepaliveAction.NONE
    assert keepalive.check(119, calls=0) is KeepaliveAction.REST


def test_a_stream_that_is_open_and_silent_is_not_idle():
    keepalive = alive(idle_timeout=60)
    assert {keepalive.check(now, calls=1) for now in range(0, 7000, 50)} == {KeepaliveAction.NONE}
