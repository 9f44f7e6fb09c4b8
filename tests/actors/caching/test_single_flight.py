"""Equal requests share one execution: each is answered once, and none waits for a leader that has gone."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.caching.policy.flights import FAILURES, Flights
from actors.values.specs import QueueBounds
from tests.support.examples import examples
from tests.support.ports import waiting_request


def request(name="", nbytes=1):
    return waiting_request(name, nbytes=nbytes)


@pytest.fixture
def flights():
    return Flights(QueueBounds(requests=3, nbytes=100))


@pytest.fixture
def flight(flights):
    """A leader and two followers."""
    leader, first, second = request("leader"), request("first"), request("second")
    flights.lead(b"k", leader)
    assert flights.follow(b"k", first)
    assert flights.follow(b"k", second)
    return leader, first, second


def test_nobody_follows_where_nobody_leads(flights):
    assert not flights.follow(b"k", request())


def test_one_leads_at_a_time(flights, flight):
    with pytest.raises(ValueError, match="can't lead"):
        flights.lead(b"k", request())
    with pytest.raises(ValueError, match="can't lead"):
        flights.lead(b"other", flight[1])


def test_all_get_the_leaders_answer_in_the_order_they_came(flights, flight):
    leader, first, second = flight
    assert flights.land(leader) == [first, second]
    assert (len(flights), flights.followers) == (0, 0)


def test_the_next_leads_where_the_leader_has_gone(flights, flight):
    leader, first, second = flight
    assert flights.lose(leader, failed=False) == [first]
    assert flights.led_by(first) is not None
    assert flights.land(first) == [second]


def test_who_has_left_is_not_called(flights, flight):
    leader, first, second = flight
    assert flights.leave(first)
    assert not flights.leave(first)
    assert not flights.leave(leader)
    assert flights.land(leader) == [second]


def test_what_fails_again_does_not_fail_one_after_the_other(flights, flight):
    leader, first, second = flight
    third = request("third")
    assert flights.follow(b"k", third)
    assert FAILURES == 2
    assert flights.lose(leader, failed=True) == [first]
    assert flights.lose(first, failed=True) == [second, third]
    assert len(flights) == 0


def test_an_answer_that_is_looked_for_is_for_whoever_leads_by_then(flights, flight):
    leader, first, second = flight
    found = flights.at(b"k")
    found.looking = True
    assert flights.lose(leader, failed=False) == []
    assert found.leader is first
    assert flights.land(first) == [second]
    assert not found.looking


def test_scattering_finds_everybody_who_is_not_running(flights, flight):
    leader, first, second = flight
    looks = request("looks")
    flights.lead(b"other", looks).looking = True
    assert flights.scatter() == [first, second, looks]
    assert len(flights) == 0
    assert flights.led_by(leader) is None


def test_followers_are_bounded_in_number_and_bytes(flights, flight):
    assert not flights.follow(b"k", request(nbytes=99))
    assert flights.follow(b"k", request(nbytes=98))
    assert not flights.follow(b"k", request(nbytes=0))


class FlightMachine(RuleBasedStateMachine):
    """Requests with one of few keys: each is answered exactly once, by its own end or a leader's answer."""

    def __init__(self):
        super().__init__()
        self.flights = Flights(QueueBounds(requests=4, nbytes=1000))
        self.running = {}  # request → key
        self.waiting = {}
        self.answers = {}
        self.began = 0

    @rule(key=st.sampled_from([b"a", b"b"]))
    def arrive(self, key):
        made = request(str(self.began))
        self.began += 1
        if self.flights.follow(key, made):
            self.waiting[made] = key
            return
        if self.flights.at(key) is None:
            self.flights.lead(key, made)
        self.running[made] = key

    def answer(self, made):
        assert made not in self.answers
        self.answers[made] = True

    def run(self, requests):
        for made in requests:
            self.running[made] = self.waiting.pop(made)

    @rule(data=st.data())
    def succeed(self, data):
        if not self.running:
            return
        made = data.draw(st.sampled_from(list(self.running)))
        del self.running[made]
        self.answer(made)
        if self.flights.led_by(made) is not None:
            for follower in self.flights.land(made):
                del self.waiting[follower]
                self.answer(follower)

    @rule(data=st.data(), failed=st.booleans())
    def fail(self, data, failed):
        if not self.running:
            return
        made = data.draw(st.sampled_from(list(self.running)))
        del self.running[made]
        self.answer(made)
        if self.flights.led_by(made) is not None:
            self.run(self.flights.lose(made, failed=failed))

    @rule(data=st.data())
    def leave(self, data):
        if not self.waiting:
            return
        made = data.draw(st.sampled_from(list(self.waiting)))
        assert self.flights.leave(made)
        del self.waiting[made]
        self.answer(made)

    @rule(data=st.data())
    def can_not_be_shared(self, data):
        led = [made for made in self.running if self.flights.led_by(made) is not None]
        if led:
            made = data.draw(st.sampled_from(led))
            self.run(self.flights.disperse(made))

    @invariant()
    def everybody_is_somewhere(self):
        assert len(self.answers) + len(self.running) + len(self.waiting) == self.began
        assert self.flights.followers == len(self.waiting) <= 4

    @invariant()
    def who_waits_waits_for_somebody_who_runs(self):
        for key in self.waiting.values():
            flight: Any = self.flights.at(key)
            assert flight.leader in self.running

    def teardown(self):
        for made in list(self.running):
            if self.flights.led_by(made) is not None:
                self.run(self.flights.disperse(made))
        assert not self.waiting
        assert len(self.flights) == 0


TestFlights = FlightMachine.TestCase
TestFlights.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
