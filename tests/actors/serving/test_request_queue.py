"""`actors.serving.policy.queueing` against contract scheduling.md sections 1 and 3.3."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

from actors.serving.policy.levels import OCCUPIED
from actors.serving.policy.queueing import RequestQueue
from actors.values.datatypes import DataType
from actors.values.errors import DeadlineExceeded, ErrorCode, Unavailable
from actors.values.specs import Direct, DynamicBatching, QueueBounds, QueuePolicy, TimeoutAction
from actors.values.tensors import Tensor
from tests.support.ports import waiting_request as make_request

DELAY = TimeoutAction.DELAY
ROOMY = QueueBounds()


def make_queue(bounds=ROOMY, **dynamic):
    return RequestQueue(DynamicBatching(**dynamic), bounds)


def with_policy(**policy):
    return make_queue(default_queue_policy=QueuePolicy(**policy))


@pytest.fixture
def queue():
    return make_queue()


def push_all(queue, *requests, now=0.0):
    for request in requests:
        queue.push(request, now)


def outcomes(ended):
    return [(request, type(error)) for request, error in ended]


# Order


@pytest.mark.parametrize("scheduling", [Direct(), DynamicBatching()])
def test_without_levels_every_priority_is_the_same(scheduling):
    queue = RequestQueue(scheduling, ROOMY)
    push_all(queue, make_request(priority=7), make_request(priority=1))


# Being full


MOST = 2**64 - 1


def test_all_others_go_before_a_request_of_a_last_level_that_does_not_exist_yet():
    queue = make_queue(priority_levels=MOST, default_priority_level=1)
    push_all(queue, make_request(), make_request(priority=3))
    assert queue.ahead_of(make_request(priority=40)) == 2


@pytest.mark.parametrize("count", [MOST, 65])
def test_levels_without_number_are_served_in_order_and_only_those_in_use_exist(count):
    queue = make_queue(
        priority_levels=count,
        default_priority_level=count,
        priority_queue_policies={3: QueuePolicy(max_queue_size=1)},
    )
    requests = {level: make_request(priority=level) for level in (0, 40, 3, count - 1, 7)}
    push_all(queue, *requests.values())
    with pytest.raises(Unavailable):
        queue.push(make_request(priority=3), 0.0)
    assert queue.ahead_of(make_request(priority=8)) == 2
    assert queue.take(2) == [requests[3], requests[7]]
    assert queue.head(9) == [requests[40], requests[count - 1], requests[0]]
    queue.push_front([requests[3]])
    assert queue.drain() == [requests[3], requests[40], requests[count - 1], requests[0]]


def test_no_more_than_so_many_levels_may_be_in_use_at_once():
    queue = make_queue(
        QueueBounds(requests=10**6),
        priority_levels=MOST,
        default_priority_level=1,
        priority_queue_policies={MOST: QueuePolicy(max_queue_size=10)},
    )
    requests = [make_request(priority=level) for level in range(1, OCCUPIED + 1)]
    push_all(queue, *requests)
    assert queue.admits(make_request(priority=2))
    assert not queue.admits(make_request(priority=OCCUPIED + 1))
    assert queue.ahead_of(make_request(priority=OCCUPIED + 1)) == OCCUPIED
    refused = make_request("r", priority=MOST)
    with pytest.raises(Unavailable) as caught:
        queue.push(refused, 0.0)
    assert caught.value.message == (
        f"[request id: r] Exceeds maximum queue size: requests of {OCCUPIED} priority levels wait already, the most that may"
    )
    assert queue.abandon(requests[OCCUPIED // 2], 0.0)
    queue.push(refused, 0.0)
    assert len(queue) == OCCUPIED


def test_a_level_with_a_size_refuses_instead_of_waiting():
    queue = make_queue(
        QueueBounds(requests=1),
        priority_levels=2,
        default_priority_level=1,
        priority_queue_policies={1: QueuePolicy(max_queue_size=2)},
    )
    push_all(queue, make_request(), make_request())
    refused = make_request("r1")
    assert queue.admits(refused)
    with pytest.raises(Unavailable) as caught:
        queue.push(refused, 0.0)
    assert caught.value.message == "[request id: r1] Exceeds maximum queue size"
    assert refused not in queue
    assert len(queue) == 2
    assert not queue.admits(make_request(priority=2))  # that level has no size, so its callers wait


def test_a_level_with_a_size_refuses_what_would_pass_the_bound_on_bytes():
    queue = make_queue(QueueBounds(nbytes=100), default_queue_policy=QueuePolicy(max_queue_size=1000))
    queue.push(make_request(nbytes=500), 0.0)
    with pytest.raises(Unavailable) as caught:
        queue.push(make_request("r1", nbytes=1), 0.0)
    assert caught.value.message == (
        "[request id: r1] Exceeds maximum queue size: 500 bytes of inputs wait already, the limit is 100"
    )


# Time


def test_the_default_scheduler_ignores_a_requests_timeout():
    queue = RequestQueue(Direct(), ROOMY)
    queue.push(make_request(timeout=1.0), 0.0)
    assert queue.next_expiry() == math.inf


def test_a_timeout_rejects_when_it_passes_and_not_before():
    queue = with_policy(default_timeout=1.0)
    request = make_request()
    queue.push(request, 5.0)
    assert queue.expire(5.9) == []
    ((ended, error),) = queue.expire(6.0)
    assert ended is request
    assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "Request timeout expired")
    assert (len(queue), queue.take(1)) == (0, [])


def test_the_policy_speaks_where_both_clocks_run_out_together():
    queue = with_policy(default_timeout=2.0)
    request = make_request(deadline=2.0)
    queue.push(request, 0.0)
    assert outcomes(queue.expire(2.0)) == [(request, Unavailable)]


def test_a_passed_deadline_is_told_with_how_long_it_waited(queue):
    queue.push(make_request("r1", deadline=3.0), 1.0)
    ((_, error),) = queue.expire(3.0)
    assert error.message == (
        "[request id: r1] the request's own deadline passed after it had waited 2.000 s in the queue of model 'add'; "
        "allow it more time, or give the model more instances"
    )


def test_what_has_left_is_not_kept_alive_by_its_clock(queue):
    request = make_request(deadline=1e6)
    request.inputs = [Tensor("A", DataType.INT8, (4,), memoryview(bytearray(4)))]
    queue.push(request, 0.0)
    gone = weakref.ref(request.inputs[0].data)
    assert len(queue.take(1)) == 1
    del request
    gc.collect()
    assert gone() is None


# Leaving otherwise


def test_a_cancelled_request_is_never_taken_and_comes_out_as_expired(queue):
    gone, here = make_request(), make_request()
    push_all(queue, gone, here)
    gone.cancelled = True
    assert queue.take(2) == [here]
    assert queue.next_expiry() == -math.inf
    ((ended, error),) = queue.expire(0.0)
    assert ended is gone
    assert (error.code, error.message) == (ErrorCode.CANCELLED, "")
    assert queue.next_expiry() == math.inf


# Coming back


# Age


def test_thousands_of_short_lived_clocks_leave_nothing_behind():
    queue = with_policy(default_timeout=1000.0)
    lasting = [make_request(), make_request(deadline=5.0), make_request()]
    push_all(queue, *lasting)
    for n in range(5000):
        request = make_request()
        queue.push(request, float(n) / 10)
        queue.abandon(request, 0.0)
    assert outcomes(queue.expire(1000.0)) == [
        (lasting[1], DeadlineExceeded),
        (lasting[0], Unavailable),
        (lasting[2], Unavailable),
    ]
    assert queue.next_expiry() == math.inf


def test_clocks_still_run_out_in_order_when_most_of_the_others_have_been_stopped(queue):
    requests = [make_request(deadline=float(n * 7919 % 1009)) for n in range(1000)]
    push_all(queue, *requests)
    kept = sorted(requests, key=lambda request: request.deadline % 10)[:100]
    for request in set(requests) - set(kept):
        queue.abandon(request, 0.0)
    queue.push(make_request(deadline=2000.0), 0.0)
    ended = [request for request, _ in queue.expire(1500.0)]
    assert ended == sorted(kept, key=lambda request: request.deadline)
