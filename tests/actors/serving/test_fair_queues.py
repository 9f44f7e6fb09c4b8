"""Fair queues: `actors.serving.policy.fairness`, and `RequestQueue` with tenants and with ageing."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.serving.policy.fairness import REMEMBERED, FairLane, Ledger
from actors.serving.policy.queueing import RequestQueue
from actors.serving.policy.tallies import CANDIDATES, OTHERS, SHOWN, TenantTallies
from actors.values.errors import Cancelled, Unavailable
from actors.values.specs import Direct, DynamicBatching, Fairness, QueueBounds, QueuePolicy, TimeoutAction
from tests.support.examples import examples
from tests.support.ports import waiting_request

ROOMY = QueueBounds()


def make_request(tenant="", **options):
    return waiting_request(tenant=tenant, **options)


def fair(bounds=ROOMY, *, dynamic=None, **fairness):
    scheduling = Direct() if dynamic is None else DynamicBatching(**dynamic)
    return RequestQueue(scheduling, bounds, Fairness(tenant_header="x-tenant", **fairness))


@pytest.fixture
def queue():
    return fair()


def push_all(queue, *requests, now=0.0):
    for request in requests:
        queue.push(request, now)


def tenants(requests):
    return "".join(request.tenant for request in requests)


# Whose turn it is


def test_tenants_take_turns_whoever_came_first(queue):
    push_all(queue, *[make_request("a") for _ in range(4)], make_request("b"), make_request("c"))
    assert tenants(queue.take(6)) == "abcaaa"


def test_a_tenant_saves_up_nothing_while_it_is_away(queue):
    push_all(queue, *[make_request("a") for _ in range(50)])
    queue.take(40)
    push_all(queue, *[make_request("b") for _ in range(50)])
    assert Counter(tenants(queue.take(10))) == {"a": 5, "b": 5}


def test_a_tenant_does_not_get_rid_of_what_it_owes_by_leaving_for_a_moment(queue):
    push_all(queue, *[make_request("a") for _ in range(20)], make_request("b", rows=10))
    assert tenants(queue.take(2)) == "ab"
    queue.push(make_request("b"), 0.0)  # it had left, and owes ten rows
    assert tenants(queue.take(9)) == "a" * 9
    assert "b" in tenants(queue.take(2))


def test_a_request_that_is_cancelled_costs_its_tenant_nothing(queue):
    big = make_request("a", rows=100)
    push_all(queue, make_request("b"), big, make_request("a"), make_request("b"), make_request("b"))
    assert queue.abandon(big, 0.0)
    assert tenants(queue.take(2)) == "ba"


def test_what_comes_back_goes_first_and_is_not_charged_again(queue):
    push_all(queue, *[make_request(tenant) for tenant in "abab"])
    back = queue.take(2)
    queue.push_front(back)
    assert queue.head(99)[:2] == back
    assert queue.take(2) == back
    assert tenants(queue.take(2)) == "ab"
    shares = queue.shares()
    assert (shares["a"].requests, shares["b"].requests) == (2, 2)


def test_delayed_requests_are_shared_out_as_well():
    policy = QueuePolicy(default_timeout=1.0, timeout_action=TimeoutAction.DELAY)
    queue = fair(dynamic={"default_queue_policy": policy})
    push_all(queue, *[make_request("a") for _ in range(3)], make_request("b"))
    assert queue.expire(2.0) == []
    queue.push(make_request("c"), 2.0)
    assert tenants(queue.take(5)) == "cabaa"


def test_what_is_known_of_tenants_is_bounded():
    lane: Any = FairLane(Ledger(Fairness(tenant_header="x", default_weight=0.001)))
    stays = make_request("stays")
    lane[stays] = None
    for n in range(3 * REMEMBERED):
        lane[make_request(f"t{n}", rows=1 + n)] = None
    for _ in range(3 * REMEMBERED):
        lane.popitem(last=False)
    assert lane.remembered <= REMEMBERED + 1


def test_nothing_is_remembered_of_anybody_once_the_queue_is_empty():
    lane: Any = FairLane(Ledger(Fairness(tenant_header="x")))
    for n in range(10):
        lane[make_request(f"t{n}")] = None
    for _ in range(10):
        lane.popitem(last=False)
    assert (len(lane), lane.remembered) == (0, 0)
    with pytest.raises(KeyError):
        lane.popitem(last=False)


def in_lane(*tenants):
    """Return a lane with a request of one row for each of these."""
    lane: Any = FairLane(Ledger(Fairness(tenant_header="x")))
    for tenant in tenants:
        lane[make_request(tenant)] = None
    return lane


def taken(lane, count):
    return "".join(lane.popitem(last=False)[0].tenant for _ in range(count))


def test_a_debt_that_grows_is_remembered_as_long_as_it_lasts():
    lane = in_lane("a", *"b" * 12)
    assert taken(lane, 2) == "ab"
    for _ in range(4):
        lane.charge("a", 1.0, lane.era)
    lane[make_request("a")] = None
    assert taken(lane, 6) == "bbbbab"


def test_a_debt_that_was_given_back_is_forgiven():
    lane = in_lane("a", *"b" * 12)
    assert taken(lane, 1) == "a"
    lane.charge("a", 5.0, lane.era)
    lane.charge("a", -5.0, lane.era)
    assert taken(lane, 8) == "b" * 8
    assert lane.remembered == 1
    lane.charge("a", -1.0, lane.era)
    assert lane.remembered == 1


def test_debts_that_grow_are_bounded():
    lane = in_lane("stays", "stays")
    for n in range(2 * REMEMBERED):
        for _ in range(3):
            lane.charge(f"t{n}", 1.0, lane.era)
    assert lane.remembered <= REMEMBERED + 1
    for n in range(2 * REMEMBERED):
        lane.charge(f"t{n}", 9.0, lane.era)
    assert lane.remembered <= REMEMBERED + 1


def test_charging_a_line_that_waits_leaves_nothing_behind():
    lane = in_lane("a", "b", "b")
    for _ in range(500):
        lane.charge("b", 1.0, lane.era)
        lane.charge("b", -1.0, lane.era)
    lane.charge("b", 2.0, lane.era)
    lane[make_request("a")] = None
    assert taken(lane, 3) == "aab"


def test_virtual_time_begins_anew_before_small_costs_get_lost():
    queue = fair(weights={"heavy": 0.001})
    push_all(queue, *[make_request("heavy", rows=2**33) for _ in range(3)], *[make_request(t) for t in "abc"])
    push_all(queue, make_request("gone", rows=2**40))
    order = [queue.take(1)[0].tenant for _ in range(6)]
    assert order == ["heavy", "a", "b", "c", "gone", "heavy"]
    push_all(queue, make_request("a"), make_request("a"), make_request("b"))
    assert tenants(queue.take(3)) == "abaheavy"[:3]


def test_lines_that_emptied_out_of_turn_leave_nothing_behind(queue):
    push_all(queue, make_request("z", rows=5), make_request("z"))
    for n in range(500):
        request = make_request(f"t{n}")
        queue.push(request, 0.0)
        queue.abandon(request, 0.0)
    push_all(queue, make_request("a"), make_request("b"))
    assert tenants(queue.head(99)) == tenants(queue.take(9)) == "zabz"


@pytest.mark.parametrize(("held", "ahead"), [(0, 3.0), (2, 11.0), (9, 12.0)])
def test_how_many_go_first_is_estimated_by_shares(held, ahead):
    queue = fair(weights={"a": 1.0, "b": 3.0})
    others = 10 if held < 9 else 3
    push_all(queue, *[make_request("b") for _ in range(others)], *[make_request("a") for _ in range(held)])
    assert queue.ahead_of(make_request("a")) == min(ahead, held + others)


# Being full


def test_no_tenant_may_have_more_waiting_than_there_is_room_left():
    queue = fair(QueueBounds(requests=10))
    push_all(queue, *[make_request("a") for _ in range(5)])
    assert not queue.admits(make_request("a"))
    push_all(queue, *[make_request("b") for _ in range(2)])
    assert queue.admits(make_request("b"))
    push_all(queue, make_request("b"))
    assert not queue.admits(make_request("b"))
    assert queue.admits(make_request("c"))
    push_all(queue, make_request("c"), make_request("d"))
    assert not queue.admits(make_request("e"))


def test_no_tenant_may_have_more_bytes_waiting_than_there_is_room_left():
    queue = fair(QueueBounds(requests=100, nbytes=100))
    push_all(queue, make_request("a", nbytes=40))
    assert queue.admits(make_request("a", nbytes=20))
    assert not queue.admits(make_request("a", nbytes=21))
    assert queue.admits(make_request("b", nbytes=60))
    assert not queue.admits(make_request("b", nbytes=61))


def test_an_empty_queue_admits_anybody_of_any_size():
    assert fair(QueueBounds(nbytes=10)).admits(make_request("a", nbytes=1000))


def test_a_tenant_at_its_bound_waits_and_others_do_not():
    queue = fair(max_queued=2)
    push_all(queue, make_request("a"), make_request("a"))
    assert not queue.admits(make_request("a"))
    assert queue.admits(make_request("b"))


def test_a_tenant_at_its_bound_is_refused_where_it_asked_for_that():
    queue = fair(max_queued=2, refuses=True)
    push_all(queue, make_request("a"), make_request("a"))
    refused = make_request("a", name="r1")
    assert queue.admits(refused)
    with pytest.raises(Unavailable) as caught:
        queue.push(refused, 0.0)
    assert caught.value.message == (
        "[request id: r1] Exceeds maximum queue size: 2 requests of tenant 'a' wait already, the limit is 2"
    )
    assert caught.value.retry_after == 1.0
    assert refused not in queue
    queue.push(make_request("b"), 0.0)
    assert queue.shares()["a"].refused == 1


def test_clients_without_a_tenant_are_told_so():
    queue = fair(max_queued=1, refuses=True)
    queue.push(make_request(), 0.0)
    with pytest.raises(Unavailable, match="1 requests of clients without a tenant of their own wait already"):
        queue.push(make_request(), 0.0)


def test_a_level_that_refuses_leaves_room_for_other_tenants():
    queue = fair(dynamic={"default_queue_policy": QueuePolicy(max_queue_size=4)})
    push_all(queue, make_request("a"), make_request("a"))
    with pytest.raises(Unavailable) as caught:
        queue.push(make_request("a", name="r1"), 0.0)
    assert caught.value.message == (
        "[request id: r1] Exceeds maximum queue size: 2 requests of tenant 'a' wait already, "
        "and the room that is left, 2, is for others"
    )
    push_all(queue, make_request("b"), make_request("c"))
    with pytest.raises(Unavailable) as caught:
        queue.push(make_request("d", name="r2"), 0.0)
    assert caught.value.message == "[request id: r2] Exceeds maximum queue size"


def test_an_instance_gives_back_requests_of_several_tenants_and_they_go_first(queue):
    given = [make_request("a"), make_request("b")]
    push_all(queue, *given, now=1.0)
    push_all(queue, make_request("c"), now=2.0)
    assert queue.take(2) == given
    assert queue.oldest_enqueued == 2.0
    queue.push_front(given)
    assert queue.oldest_enqueued == 1.0
    assert queue.take(2) == given


def test_a_tenant_need_not_wait_for_room_in_a_level_that_refuses_instead():
    refusing = {"priority_queue_policies": {1: QueuePolicy(max_queue_size=5)}}
    levels = {"priority_levels": 2, "default_priority_level": 2}
    queue = fair(QueueBounds(requests=4), dynamic={**levels, **refusing})
    push_all(queue, *[make_request("a", priority=2) for _ in range(2)])
    assert not queue.admits(make_request("a", priority=2))
    assert queue.admits(make_request("a", priority=1))


# Ageing


def test_ageing_works_within_fair_levels():
    queue = RequestQueue(
        DynamicBatching(priority_levels=2, default_priority_level=2),
        ROOMY,
        Fairness(tenant_header="x", ageing=1.0),
    )
    flood = [make_request("a", priority=1) for _ in range(5)]
    low = make_request("b", priority=2)
    push_all(queue, *flood, low)
    queue.expire(1.0)
    assert queue.take(2) == [flood[0], low]


# Counting


@pytest.fixture
def tallies():
    return TenantTallies([])


def test_only_some_tenants_are_told_by_name_and_no_request_is_lost():
    tallies = TenantTallies(["gold"])
    for n in range(2000):
        tallies.served(make_request(f"t{n}", rows=2))
    tallies.served(make_request("gold"))
    tallies.refused("nobody")
    named = tallies.named()
    assert len(named) <= SHOWN + 1
    assert named["gold"].requests == 1
    assert sum(tally.requests for tally in named.values()) + tallies.others.requests == 2001
    assert sum(tally.rows for tally in named.values()) + tallies.others.rows == 4001
    assert tallies.others.refused == 1


def test_who_gets_much_is_told_by_name_in_the_end(tallies):
    for n in range(SHOWN):
        tallies.served(make_request(f"early{n}"))
    for n in range(50):
        tallies.served(make_request("big"))
        tallies.served(make_request(f"one-off{n}"))
    assert "big" not in TenantTallies([]).named()
    assert "big" in tallies.named()
    tallies.served(make_request("big"))
    assert tallies.named()["big"].requests == 1  # counted by name from when it was first told by name
    assert tallies.others.requests == 101  # with those of the one whose place it took


def test_two_who_get_alike_do_not_take_turns_in_being_told(tallies):
    for _ in range(10):
        for n in range(SHOWN + 1):
            tallies.served(make_request(f"t{n}"))
        assert f"t{SHOWN}" not in tallies.named()


def test_candidates_are_forgotten_in_the_order_in_which_they_were_served(tallies):
    for n in range(SHOWN):
        tallies.served(make_request(f"early{n}"))
    for _ in range(9):
        tallies.served(make_request("big"))
    for n in range(CANDIDATES):
        tallies.served(make_request(f"t{n}"))
    assert "big" not in tallies.named()


def test_a_client_can_not_take_the_name_of_the_rest(tallies):
    tallies.served(make_request(OTHERS))
    assert tallies.named() == {}
    assert tallies.others.requests == 1


def test_the_servers_own_requests_are_nobodys(tallies):
    probe = make_request("a")
    probe.synthetic = True
    tallies.served(probe)
    assert tallies.named() == {}


def test_shares_tell_what_waits_and_what_was_got():
    queue = fair(weights={"gold": 2.0})
    push_all(queue, *[make_request("gold", rows=3) for _ in range(2)], make_request("free"))
    queue.take(2)
    shares = queue.shares()
    assert (shares["gold"].rows, shares["gold"].queued, shares["gold"].share) == (3, 1, 0.75)
    assert (shares["free"].rows, shares["free"].queued, shares["free"].share) == (1, 0, 0.25)
    assert shares[OTHERS].requests == 0


# Whatever happens


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}
MOST_ROWS = 4


class FairQueue(RuleBasedStateMachine):
    """Two levels, three tenants, deadlines, cancelled and returning requests."""

    @initialize(age=st.sampled_from([0.0, 5.0]), bound=st.sampled_from([0, 6]))
    def begin(self, age, bound):
        self.queue = RequestQueue(
            DynamicBatching(priority_levels=2, default_priority_level=2),
            QueueBounds(requests=40, nbytes=10**6),
            Fairness(tenant_header="x", weights=WEIGHTS, ageing=age, max_queued=bound, refuses=True),
        )
        self.age, self.bound = age, bound
        self.now = 0.0
        self.waiting = {}  # request → when it came
        self.taken = []
        self.numbers = itertools.count()

    @rule(
        tenant=st.sampled_from("abc"),
        rows=st.integers(0, MOST_ROWS),
        level=st.sampled_from([1, 2]),
        patience=st.sampled_from([3.0, math.inf]),
    )
    def push(self, tenant, rows, level, patience):
        request = make_request(
            tenant, rows=rows, priority=level, deadline=self.now + patience, name=f"{next(self.numbers)}"
        )
        if not self.queue.admits(request):
            assert len(self.waiting) > 0
            return
        mine = [each for each in self.waiting if each.tenant == tenant]
        held, wanted = len(mine), sum(not each.cancelled for each in mine)
        try:
            self.queue.push(request, self.now)
        except Unavailable:
            assert self.bound
            assert held >= self.bound
        else:
            # A cancelled request holds no place once the queue has seen it.
            assert not self.bound or wanted < self.bound
            self.waiting[request] = self.now

    @precondition(lambda self: self.waiting)
    @rule(n=st.integers(1, 6))
    def take(self, n):
        head = self.queue.head(1000)
        taken = self.queue.take(n)
        assert taken == head[: len(taken)]
        for request in taken:
            del self.waiting[request]
        self.taken = taken

    @rule()
    def come_back(self):
        self.queue.push_front(self.taken)
        for request in self.taken:
            self.waiting[request] = self.now
        self.taken = []

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), flag=st.booleans())
    def leave(self, data, flag):
        request = data.draw(st.sampled_from(list(self.waiting)))
        if flag:
            request.cancelled = True
        elif request.cancelled:
            self.expire()
        else:
            assert self.queue.abandon(request, 0.0)
            del self.waiting[request]

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def wait(self, seconds):
        self.now += seconds
        self.expire()

    def expire(self):
        for request, error in self.queue.expire(self.now):
            assert isinstance(error, Cancelled) == request.cancelled
            assert request.cancelled or request.deadline <= self.now
            del self.waiting[request]
        # No request that has waited long enough is left on the lower level.
        if self.age:
            waiting = [each for each in self.waiting if not each.cancelled]
            low = [self.waiting[each] for each in waiting if each.queue_entry.level.number == 2]
            assert all(since + self.age > self.now for since in low)

    @invariant()
    def nobody_is_lost_and_nobody_is_there_twice(self):
        if not hasattr(self, "queue"):
            return
        alive = {request for request in self.waiting if not request.cancelled}
        head = self.queue.head(1000)
        assert len(head) == len(set(head))
        assert set(head) == alive
        shares: Any = self.queue.shares()
        assert sum(share.queued for share in shares.values()) == len(self.queue)

    def teardown(self):
        if hasattr(self, "queue"):
            assert set(self.queue.drain()) == set(self.waiting)
            assert len(self.queue) == 0


FairQueue.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestFairQueue = FairQueue.TestCase


class Shares(RuleBasedStateMachine):
    """One lane against the theorem about two tenants that both wait.

    What they got, by weight, differs by no more than one request each.
    """

    @initialize()
    def begin(self):
        self.lane: Any = FairLane(Ledger(Fairness(tenant_header="x", weights=WEIGHTS)))
        self.lines: Any = {tenant: deque() for tenant in WEIGHTS}
        self.got = {}  # pairs that both wait → what each has got since, by weight

    @rule(tenant=st.sampled_from("abc"), rows=st.lists(st.integers(1, MOST_ROWS), min_size=1, max_size=5))
    def enter(self, tenant, rows):
        for each in rows:
            request = make_request(tenant, rows=each)
            self.lane[request] = None
            self.lines[tenant].append(request)
        for other in WEIGHTS:
            if other != tenant and self.lines[other]:
                self.got.setdefault(frozenset((tenant, other)), Counter())

    @rule(n=st.integers(1, 8))
    def serve(self, n):
        for _ in range(min(n, len(self.lane))):
            request, _ = self.lane.popitem(last=False)
            assert self.lines[request.tenant].popleft() is request
            for pair, got in self.got.items():
                if request.tenant in pair:
                    got[request.tenant] += request.rows / WEIGHTS[request.tenant]
            self._forget_absent(request.tenant)

    @precondition(lambda self: any(self.lines.values()))
    @rule(data=st.data())
    def leave(self, data):
        tenant = data.draw(st.sampled_from([t for t, line in self.lines.items() if line]))
        request = data.draw(st.sampled_from(list(self.lines[tenant])))
        del self.lane[request]
        self.lines[tenant].remove(request)
        self._forget_absent(tenant)

    def _forget_absent(self, tenant):
        if not self.lines[tenant]:
            self.got = {pair: got for pair, got in self.got.items() if tenant not in pair}

    @invariant()
    def shares_are_within_a_request_of_the_weights(self):
        for pair, got in getattr(self, "got", {}).items():
            one, other = sorted(pair)
            bound = MOST_ROWS / WEIGHTS[one] + MOST_ROWS / WEIGHTS[other]
            assert abs(got[one] - got[other]) <= bound + 1e-9


Shares.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestShares = Shares.TestCase
