"""Accounts of bytes: large messages one after the other, and future answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.grpc.policy import AnswerRoom, Grants


def test_what_fits_is_granted_at_once():
    grants = Grants(100)
    assert grants.ask("a", 60)
    assert grants.ask("b", 40)
    assert grants.outstanding == 100
    assert grants.holds("a")


def test_what_does_not_fit_waits_in_line_and_nobody_overtakes():
    grants = Grants(100)
    grants.ask("a", 60)
    assert not grants.ask("b", 50)
    assert not grants.ask("c", 10)
    assert grants.waiting == 2
    assert not grants.holds("b")
    assert grants.release("a") == ["b", "c"]
    assert grants.outstanding == 60


def test_one_alone_is_granted_whatever_its_size():
    grants = Grants(100)
    assert grants.ask("a", 10**9)
    assert not grants.ask("b", 1)
    assert grants.release("a") == ["b"]


def test_who_gives_up_waiting_lets_others_by():
    grants = Grants(100)
    grants.ask("a", 60)
    grants.ask("b", 50)
    grants.ask("c", 10)
    assert grants.release("b") == ["c"]
    assert grants.release("a") == []
    assert grants.release("c") == []
    assert grants.outstanding == 0


def test_a_grant_that_shrinks_makes_room():
    grants = Grants(100)
    grants.ask("a", 500)
    grants.ask("b", 50)
    assert grants.resize("a", 40) == ["b"]
    assert grants.outstanding == 90


def test_one_holder_asks_once():
    grants = Grants(100)
    grants.ask("a", 10)
    with pytest.raises(ValueError, match="has asked already"):
        grants.ask("a", 10)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=60))
def test_the_limit_holds_and_nobody_starves(steps):
    grants = Grants(100)
    sizes, held, waiting = {}, {}, []
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
