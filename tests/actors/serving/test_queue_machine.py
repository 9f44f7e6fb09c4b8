"""The request queue against a list for each of its lanes: policies, bounds, ageing, and every order.

`test_fair_queues.py` has a machine for tenants. No two clocks ever stop at the same moment, because the queue does not
promise which of two equal ones is first.
"""

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.serving.policy.queueing import RequestQueue
from actors.values.errors import Cancelled, DeadlineExceeded, TritiumError, Unavailable
from actors.values.requests import InferRequest
from actors.values.specs import DynamicBatching, Fairness, QueueBounds, QueuePolicy, TimeoutAction
from tests.support.examples import examples
from tests.support.ports import waiting_request

MOMENT = 1 / 1024

policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(TimeoutAction),
    default_timeout=st.sampled_from([0.0, 2.0, 4.0]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 4]),
)


class Waiting:
    """What the model knows of a request: where it is, and its three clocks."""

    def __init__(self, request, *, home, since, expires=math.inf, rises=math.inf):
        self.request = request
        self.home = home  # whose policy holds
        self.level = home
        self.delayed = False
        self.since = since
        self.expires = expires
        self.rises = rises

    @property
    def due(self):
        return min(self.expires, self.rises, self.request.deadline)


class QueueAgainstLists(RuleBasedStateMachine):
    """No request is lost, doubled or overtaken, and everything that ends does so in its clock's order."""

    @initialize(
        # Of 100 levels, only those with waiting requests exist.
        levels=st.sampled_from([3, 2, 1, 100, 0]),
        default_level=st.integers(1, 3),
        age=st.sampled_from([1.5, 1.5, 0.0]),
        default=policies,
        others=st.dictionaries(st.integers(1, 3), policies, max_size=3),
        bounds=st.builds(
            QueueBounds, requests=st.sampled_from([100, 5, 2]), nbytes=st.sampled_from([10**6, 50])
        ),
    )
    def start(self, levels, default_level, age, default, others, bounds):
        self.levels = range(1, levels + 1) if levels else [0]
        self.default = min(default_level, levels)
        self.age = age
        self.bounds = bounds
        self.policies = {n: others.get(n, default) for n in self.levels}
        self.queue = RequestQueue(
            DynamicBatching(
                priority_levels=levels,
                default_priority_level=self.default,
                default_queue_policy=default,
                priority_queue_policies=others,
            ),
            bounds,
            Fairness(ageing=age),
        )
        self.lanes: Any = {(level, delayed): [] for level in self.levels for delayed in (False, True)}
        self.now = 0.0
        self.flagged = []  # met while they were looked at, and not yet told of
        self.out = []  # taken: they may come back

    # The model

    def scan(self):
        return [waiting for lane in sorted(self.lanes) for waiting in self.lanes[lane]]

    def leave(self, waiting):
        self.lanes[waiting.level, waiting.delayed].remove(waiting)

    def enter(self, waiting, level, *, delayed):
        waiting.level, waiting.delayed = level, delayed
        self.lanes[level, delayed].append(waiting)

    def level_of(self, request):
        return request.priority if request.priority in self.levels else self.default

    def nbytes(self):
        return sum(waiting.request.nbytes for waiting in self.scan())

    def ended(self, now):
        """What is over at `now`, in order."""
        found: list[tuple[InferRequest, type[TritiumError]]] = [(each, Cancelled) for each in self.flagged]
        self.flagged = []
        while (waiting := min(self.scan(), key=lambda w: w.due, default=None)) and waiting.due <= now:
            self.leave(waiting)
            end = min(waiting.expires, waiting.request.deadline)
            if waiting.request.cancelled:
                found.append((waiting.request, Cancelled))
            elif waiting.rises < end:
                above = waiting.level - 1
                waiting.rises = waiting.rises + self.age if above > 1 else math.inf
                self.enter(waiting, above, delayed=waiting.delayed)
            elif waiting.request.deadline < waiting.expires:
                found.append((waiting.request, DeadlineExceeded))
            elif self.policies[waiting.home].timeout_action is TimeoutAction.DELAY:
                waiting.expires = math.inf
                self.enter(waiting, waiting.level, delayed=True)
            else:
                found.append((waiting.request, Unavailable))
        return found

    # Requests come

    def request(self, priority, nbytes, timeout, patience, rows=1):
        return waiting_request(
            priority=priority,
            timeout=timeout,
            deadline=self.now + patience,
            accepted_at=self.now,
            nbytes=nbytes,
            rows=rows,
        )

    @rule(
        priority=st.sampled_from([3, 3, 3, 2, 2, 1, 0, 4]),
        nbytes=st.sampled_from([0, 1, 20, 60]),
        timeout=st.sampled_from([0.0, 1.0, 3.0]),
        patience=st.sampled_from([math.inf, math.inf, 1.25, 4.25]),
        rows=st.sampled_from([1, 1, 0, 3]),
    )
    def push(self, priority, nbytes, timeout, patience, rows):
        self.now += MOMENT
        request = self.request(priority, nbytes, timeout, patience, rows)
        level = self.level_of(request)
        policy = self.policies[level]
        waits, held = self.scan(), sum(w.level == level for w in self.scan())
        too_heavy = bool(waits) and self.nbytes() + nbytes > self.bounds.nbytes
        room = not waits or (len(waits) < self.bounds.requests and not too_heavy)
        assert self.queue.admits(request) == (room or policy.max_queue_size > 0)
        ahead = sum(w.level < level or (w.level == level and not w.delayed) for w in waits)
        assert self.queue.ahead_of(request) == ahead
        allowed = policy.default_timeout or math.inf
        if policy.allow_timeout_override and policy.default_timeout and timeout:
            allowed = min(allowed, timeout)
        assert self.queue.patience(request) == (
            math.inf if policy.timeout_action is TimeoutAction.DELAY else allowed
        )
        if policy.max_queue_size and (held >= policy.max_queue_size or too_heavy):
            with pytest.raises(Unavailable, match="Exceeds maximum queue size"):
                self.queue.push(request, self.now)
            assert request not in self.queue
        elif room or policy.max_queue_size:
            self.queue.push(request, self.now)
            rises = self.now + self.age if self.age and level > 1 else math.inf
            self.enter(
                Waiting(request, home=level, since=self.now, expires=self.now + allowed, rises=rises),
                level,
                delayed=False,
            )

    # Requests go, and return

    @rule(n=st.integers(1, 4))
    def take(self, n):
        self.tell_ends()
        expected: list[Any] = []
        for waiting in self.scan():
            if len(expected) == n:
                break
            self.leave(waiting)
            if waiting.request.cancelled:
                self.flagged.append(waiting.request)
            else:
                expected.append(waiting)
        assert self.queue.take(n) == [waiting.request for waiting in expected]
        assert not any(waiting.request in self.queue for waiting in expected)
        self.out += expected

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def come_back(self, data):
        """Return some of the taken requests, in any order, whether or not they were taken together."""
        back = data.draw(st.lists(st.sampled_from(self.out), unique=True, min_size=1))
        self.queue.push_front([waiting.request for waiting in back])
        for waiting in reversed(back):
            self.out.remove(waiting)
            waiting.expires, waiting.delayed = math.inf, False
            self.lanes[waiting.level, False].insert(0, waiting)

    @rule(priority=st.integers(0, 4), patience=st.sampled_from([math.inf, 1.25]))
    def come_from_elsewhere(self, priority, patience):
        self.now += MOMENT
        request = self.request(priority, 1, 0.0, patience)
        self.queue.push_front([request])
        waiting = Waiting(request, home=self.level_of(request), since=self.now)
        self.lanes[waiting.level, False].insert(0, waiting)

    @precondition(lambda self: self.scan())
    @rule(data=st.data())
    def remove(self, data):
        waiting = data.draw(st.sampled_from(self.scan()))
        assert self.queue.abandon(waiting.request, 0.0)
        assert not self.queue.abandon(waiting.request, 0.0)
        self.leave(waiting)

    @precondition(lambda self: self.scan())
    @rule(data=st.data())
    def flag(self, data):
        data.draw(st.sampled_from(self.scan())).request.cancelled = True

    @rule(most=st.integers(0, 4))
    def look(self, most):
        expected = []
        for waiting in self.scan():
            if waiting.request.cancelled:
                self.leave(waiting)
                self.flagged.append(waiting.request)
                continue
            expected.append(waiting.request)
            if sum(max(1, request.rows) for request in expected) > most:
                break
        assert self.queue.head(most) == expected

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 5.0]))
    def wait(self, seconds):
        self.now += seconds
        self.tell_ends()

    @precondition(lambda self: self.scan())
    @rule()
    def wait_for_the_next(self):
        if (due := self.queue.next_expiry()) < math.inf:
            self.now = max(self.now, due)
        self.tell_ends()

    def tell_ends(self):
        self.now += MOMENT
        ended = [(request, type(error)) for request, error in self.queue.expire(self.now)]
        assert ended == self.ended(self.now)

    @precondition(lambda self: len(self.scan()) > 6)
    @rule()
    def drain(self):
        expected = [*self.flagged, *(waiting.request for waiting in self.scan())]
        assert self.queue.drain() == expected
        self.flagged = []
        for lane in self.lanes.values():
            lane.clear()

    # What must be

    @invariant()
    def the_figures_agree(self):
        waits = self.scan()
        assert len(self.queue) == len(waits)
        assert self.queue.nbytes == self.nbytes()
        assert [w.request.queue_entry.level.number for w in waits] == [w.level for w in waits]
        assert self.queue.oldest_enqueued == min((w.since for w in waits), default=math.inf)
        assert all(w.request in self.queue for w in waits)
        assert not any(w.request in self.queue for w in self.out)
        due = -math.inf if self.flagged else min((w.due for w in waits), default=math.inf)
        assert self.queue.next_expiry() == due

    def teardown(self):
        if hasattr(self, "queue"):
            self.now += 1000.0
            self.tell_ends()
            self.look(1000)
            assert self.queue.take(1000) == [waiting.request for waiting in self.scan()]
            assert (len(self.queue), self.queue.nbytes) == (0, 0)


TestQueueAgainstLists = QueueAgainstLists.TestCase
TestQueueAgainstLists.settings = settings(
    max_examples=examples(150, few=25), stateful_step_count=40, deadline=None
)
