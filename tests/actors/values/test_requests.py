"""A request and its caller."""

import pytest

from actors.values.errors import TooManyRequests
from actors.values.requests import InferRequest
from tests.support.callers import KnownCaller
from tests.support.ports import NoPort


def request(**fields):
    return InferRequest(model_name="add", reply=NoPort(), accepted_at=0.0, **fields)


def test_sequences_of_identities_that_are_told_apart_are_apart():
    one, two = request(correlation_id=7), request(correlation_id=7)
    assert one.sequence_key == two.sequence_key == 7
    one.made_by(KnownCaller("alice"))
    assert one.sequence_key == ("alice", 7)


def test_a_caller_without_a_limit_is_not_counted():
    alice = KnownCaller("alice")
    alice.counted = False
    free = request()
    free.made_by(alice)
    assert (free.caller, alice.running) == (alice, 0)


def test_a_request_that_is_one_too_many_has_no_caller():
    alice = KnownCaller("alice", most=0)
    refused = request()
    with pytest.raises(TooManyRequests):
        refused.made_by(alice)
    assert (refused.caller, alice.running) == (None, 0)


def test_what_is_asked_on_behalf_of_a_request_is_its_callers():
    parent, child = request(), request()
    parent.made_by(KnownCaller("alice"))
    child.inherit([parent])
    assert child.caller is parent.caller
