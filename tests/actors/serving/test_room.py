"""Who comes in next where callers wait for room in a full line."""

import pytest

from actors.serving.policy.room import FirstCome, Turns
from tests.support.ports import waiting_request


def make_request(tenant=""):
    return waiting_request(tenant=tenant)


def always(request):
    return True


def test_the_first_of_all_callers_is_next_even_where_there_is_no_room_for_it():
    order = FirstCome()
    first, second = make_request("a"), make_request("b")
    assert order.may_pass(first)
    assert list(order.next(always)) == []
    order.enter(first)
    order.enter(second)
    assert order.ahead() == 2
    assert not order.may_pass(make_request("c"))
    assert list(order.next(lambda request: False)) == [first]
    order.leave(first)
    assert list(order.next(always)) == [second]
    order.leave(second)
    assert (order.ahead(), order.may_pass(first)) == (0, True)


def test_a_flood_of_one_tenant_does_not_make_callers_of_the_others_wait_for_room():
    turns = Turns()
    flood = [make_request("a") for _ in range(3)]
    other = make_request("b")
    for request in (*flood, other):
        turns.enter(request)
    assert not turns.may_pass(make_request("a"))
    assert turns.may_pass(make_request("c"))
    assert turns.next(lambda request: request.tenant != "a") == (other,)
    assert turns.next(always) == (flood[0],)
    turns.leave(flood[0])
    assert turns.next(always) == (other,)
    turns.leave(other)
    assert turns.may_pass(make_request("b"))
    assert not turns.next(lambda request: False)


@pytest.mark.parametrize("waiting", [0, 3])
def test_no_caller_is_certainly_before_a_newcomer_where_tenants_take_turns(waiting):
    turns = Turns()
    for _ in range(waiting):
        turns.enter(make_request("a"))
    assert turns.ahead() == 0


def test_each_tenant_with_callers_is_looked_at_in_turn():
    turns = Turns()
    for n in range(50):
        turns.enter(make_request(f"t{n}"))
    wanted = 0
    while not turns.next(lambda request: request.tenant == "t49"):
        wanted += 1
        assert wanted < 10
