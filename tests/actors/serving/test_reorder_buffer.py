"""`actors.serving.policy.ordering`: answers leave in the order of dispatch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.ordering import ReorderBuffer
from tests.support.ports import waiting_request as make_request


@pytest.fixture
def buffer():
    return ReorderBuffer()


def test_a_retried_request_keeps_its_ticket(buffer):
    first, second = make_request(), make_request()
    assert first not in buffer
    ticket = buffer.ticket(first)
    buffer.ticket(second)
    assert buffer.ticket(first) == ticket
    assert first in buffer
    assert len(buffer) == 2


def test_a_request_that_comes_back_after_its_answer_takes_a_new_ticket(buffer):
    request = make_request()
    first = buffer.ticket(request)
    buffer.release(first, "a")
    assert request not in buffer
    assert buffer.ticket(request) > first


@pytest.mark.parametrize("wrong", [-1, 0, 2])
def test_a_ticket_that_is_not_out_is_refused(buffer, wrong):
    buffer.release(buffer.ticket(make_request()), "done")
    buffer.ticket(make_request())
    with pytest.raises(ValueError, match=f"ticket {wrong} is not out"):
        buffer.release(wrong, "a")


def test_a_second_answer_for_a_ticket_is_refused(buffer):
    buffer.ticket(make_request())
    second = buffer.ticket(make_request())
    buffer.release(second, "b")
    with pytest.raises(ValueError, match="is not out"):
        buffer.release(second, "b again")


@given(st.integers(1, 20).flatmap(lambda n: st.permutations(range(n))))
def test_whatever_the_order_of_answers_delivery_is_in_order_and_complete(finish_order):
    buffer: Any = ReorderBuffer()
    requests = [make_request() for _ in finish_order]
    tickets = [buffer.ticket(request) for request in requests]
    delivered = []
    finished = set()
    for at in finish_order:
        finished.add(at)
        delivered += buffer.release(tickets[at], at)
        first_missing = next((n for n in range(len(requests)) if n not in finished), len(requests))
        assert len(delivered) == first_missing
        assert (len(buffer), buffer.held) == (len(requests) - first_missing, len(finished) - first_missing)
    assert delivered == [(request, at) for at, request in enumerate(requests)]
