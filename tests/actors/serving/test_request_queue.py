"""`actors.serving.policy.queueing` against contract scheduling.md sections 1 and 3.3."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

from actors.serving.policy.levels import OCCUPIED
from actors.serving.policy.queueing import RequestQueue
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, DeadlineExceeded, ErrorCode, Unavailable
from actors.values.requests import InferRequest
from actors.values.specs import Direct, DynamicBatching, Fairness, QueueBounds, QueuePolicy, TimeoutAction
from actors.values.tensors import Tensor
from tests.support.ports import NoPort

DELAY = TimeoutAction.DELAY
ROOMY = QueueBounds()


def make_request(name="", *, rows=1, nbytes=0, priority=0, timeout=0.0, deadline=math.inf, accepted_at=0.0):
    request = InferRequest(
        model_name="add",
        id=name,
        priority=priority,
        timeout=timeout,
        deadline=deadline,
        reply=NoPort(),
        accepted_at=accepted_at,
    )
    request.rows = rows
    request.nbytes = nbytes
    return request


def make_queue(bounds=ROOMY, **dynamic):
    return RequestQueue(DynamicBatching(**dynamic), bounds)


def with_policy(**policy):
    return make_queue(default_queue_policy=QueuePolicy(**policy))


def push_all(queue, *requests, now=0.0):
    for request in requests:
        queue.push(request, now)


def outcomes(ended):
    return [(request, type(error)) for request, error in ended]


# Order


def test_requests_leave_in_the_order_of_arrival():
    queue = RequestQueue(Direct(), ROOMY)
    first, second, third = make_request(), make_request(), make_request()
    push_all(queue, first, second, third)
    assert queue.take(2) == [first, second]
    assert queue.take(2) == [third]
    assert queue.take(1) == []


def test_a_lower_level_number_always_goes_first():
    queue = make_queue(priority_levels=3, default_priority_level=2)
    low, middle, high = (make_request(priority=n) for n in (3, 2, 1))
    push_all(queue, low, middle, high)
    assert queue.head(100) == [high, middle, low]
    assert queue.take(3) == [high, middle, low]


@pytest.mark.parametrize("priority", [0, 4, -1, 2**40])
def test_a_priority_out_of_range_means_the_default_level(priority):
    queue = make_queue(priority_levels=3, default_priority_level=2)
    queue.push(make_request(priority=priority), 0.0)
    assert queue.depth_by_level == {1: 0, 2: 1, 3: 0}


@pytest.mark.parametrize("scheduling", [Direct(), DynamicBatching()])
def test_without_levels_every_priority_is_the_same(scheduling):
    queue = RequestQueue(scheduling, ROOMY)
    push_all(queue, make_request(priority=7), make_request(priority=1))
    assert queue.depth_by_level == {0: 2}


def test_the_head_holds_one_request_more_than_fits():
    queue = make_queue()
    requests = [make_request(rows=rows) for rows in (2, 0, 1, 4, 1)]
    push_all(queue, *requests)
    assert queue.head(2) == requests[:2]  # a request without rows counts as one
    assert queue.head(4) == requests[:4]
    assert queue.head(8) == requests
    assert len(queue) == 5


# Being full


def test_a_queue_admits_until_its_bound_on_requests():
    queue = make_queue(QueueBounds(requests=2, nbytes=100))
    queue.push(make_request(), 0.0)
    assert queue.admits(make_request())
    queue.push(make_request(), 0.0)
    assert not queue.admits(make_request())
    queue.take(1)
    assert queue.admits(make_request())


def test_a_queue_admits_until_its_bound_on_bytes():
    queue = make_queue(QueueBounds(requests=10, nbytes=100))
    queue.push(make_request(nbytes=60), 0.0)
    assert queue.admits(make_request(nbytes=40))
    assert not queue.admits(make_request(nbytes=41))
    assert queue.nbytes == 60


def test_an_empty_queue_admits_a_request_that_is_larger_than_the_bound():
    queue = make_queue(QueueBounds(requests=10, nbytes=100))
    assert queue.admits(make_request(nbytes=1000))


MOST = 2**64 - 1


@pytest.mark.parametrize("count", [MOST, 65])
def test_levels_without_number_are_served_in_order_and_only_those_in_use_exist(count):
    queue = make_queue(
        priority_levels=count,
        default_priority_level=count,
        priority_queue_policies={3: QueuePolicy(max_queue_size=1)},
    )
    requests = {level: make_request(priority=level) for level in (0, 40, 3, count - 1, 7)}
    push_all(queue, *requests.values())
    assert queue.depth_by_level == {3: 1, 7: 1, 40: 1, count - 1: 1, count: 1}
    with pytest.raises(Unavailable):
        queue.push(make_request(priority=3), 0.0)
    assert queue.ahead_of(make_request(priority=8)) == 2
    assert queue.take(2) == [requests[3], requests[7]]
    assert queue.head(9) == [requests[40], requests[count - 1], requests[0]]
    assert queue.depth_by_level == {40: 1, count - 1: 1, count: 1}
    queue.push_front([requests[3]])
    assert queue.drain() == [requests[3], requests[40], requests[count - 1], requests[0]]


def test_a_request_rises_through_levels_that_nobody_waits_in():
    scheduling = DynamicBatching(priority_levels=MOST, default_priority_level=MOST)
    queue = RequestQueue(scheduling, ROOMY, Fairness(ageing=1.0))
    low = make_request(priority=0)
    queue.push(low, 0.0)
    for second in range(1, 6):
        assert queue.expire(float(second)) == []
    before, behind = make_request(priority=MOST - 6), make_request(priority=MOST - 5)
    push_all(queue, behind, before, now=5.0)
    assert queue.take(3) == [before, low, behind]
    assert queue.oldest_enqueued == math.inf


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


def test_delayed_requests_count_for_the_size_of_their_level():
    queue = with_policy(max_queue_size=1, default_timeout=1.0, timeout_action=DELAY)
    queue.push(make_request(), 0.0)
    assert queue.expire(2.0) == []
    with pytest.raises(Unavailable):
        queue.push(make_request(), 2.0)


def test_a_level_with_a_size_refuses_what_would_pass_the_bound_on_bytes():
    queue = make_queue(QueueBounds(nbytes=100), default_queue_policy=QueuePolicy(max_queue_size=1000))
    queue.push(make_request(nbytes=500), 0.0)
    with pytest.raises(Unavailable) as caught:
        queue.push(make_request("r1", nbytes=1), 0.0)
    assert caught.value.message == (
        "[request id: r1] Exceeds maximum queue size: 500 bytes of inputs wait already, the limit is 100"
    )


# Time


def test_without_clocks_nothing_ever_expires():
    queue = make_queue()
    queue.push(make_request(timeout=1.0), 0.0)
    assert queue.next_expiry() == math.inf
    assert queue.expire(1e9) == []


def test_the_default_scheduler_ignores_a_requests_timeout():
    queue = RequestQueue(Direct(), ROOMY)
    queue.push(make_request(timeout=1.0), 0.0)
    assert queue.next_expiry() == math.inf


@pytest.mark.parametrize(
    ("default", "override", "asked", "due"),
    [
        (10.0, True, 4.0, 4.0),
        (10.0, True, 10.0, 10.0),
        (10.0, True, 40.0, 10.0),
        (10.0, True, 0.0, 10.0),
        (10.0, False, 4.0, 10.0),
        (0.0, True, 4.0, math.inf),
        (0.0, False, 4.0, math.inf),
    ],
)
def test_a_request_may_only_shorten_a_timeout_that_there_is(default, override, asked, due):
    queue = with_policy(default_timeout=default, allow_timeout_override=override)
    queue.push(make_request(timeout=asked), 100.0)
    assert queue.next_expiry() == 100.0 + due


def test_a_timeout_rejects_when_it_passes_and_not_before():
    queue = with_policy(default_timeout=1.0)
    request = make_request()
    queue.push(request, 5.0)
    assert queue.expire(5.9) == []
    ((ended, error),) = queue.expire(6.0)
    assert ended is request
    assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "Request timeout expired")
    assert (len(queue), queue.take(1)) == (0, [])


def test_a_delayed_request_goes_after_all_unexpired_ones_of_its_level():
    queue = make_queue(
        priority_levels=2,
        default_priority_level=1,
        priority_queue_policies={1: QueuePolicy(default_timeout=1.0, timeout_action=DELAY)},
    )
    late, fresh, lower = make_request(), make_request(), make_request(priority=2)
    queue.push(late, 0.0)
    queue.push(lower, 0.0)
    assert queue.expire(1.0) == []
    queue.push(fresh, 1.5)
    assert queue.depth_by_level == {1: 2, 2: 1}
    assert queue.take(3) == [fresh, late, lower]


def test_a_delayed_request_has_no_further_timeout_but_keeps_its_own_deadline():
    queue = with_policy(default_timeout=1.0, timeout_action=DELAY)
    request = make_request(deadline=5.0)
    queue.push(request, 0.0)
    assert queue.expire(2.0) == []
    assert queue.next_expiry() == 5.0
    assert outcomes(queue.expire(5.0)) == [(request, DeadlineExceeded)]


def test_both_clocks_may_have_passed_before_anybody_looks():
    queue = with_policy(default_timeout=1.0, timeout_action=DELAY)
    request = make_request(deadline=5.0)
    queue.push(request, 0.0)
    assert outcomes(queue.expire(9.0)) == [(request, DeadlineExceeded)]


def test_the_clock_that_ran_out_first_gives_the_reason():
    queue = with_policy(default_timeout=2.0)
    by_timeout, by_deadline = make_request(deadline=3.0), make_request(deadline=1.0)
    push_all(queue, by_timeout, by_deadline)
    assert outcomes(queue.expire(9.0)) == [(by_deadline, DeadlineExceeded), (by_timeout, Unavailable)]


def test_the_policy_speaks_where_both_clocks_run_out_together():
    queue = with_policy(default_timeout=2.0)
    request = make_request(deadline=2.0)
    queue.push(request, 0.0)
    assert outcomes(queue.expire(2.0)) == [(request, Unavailable)]


def test_a_passed_deadline_is_told_with_how_long_it_waited():
    queue = make_queue()
    queue.push(make_request("r1", deadline=3.0), 1.0)
    ((_, error),) = queue.expire(3.0)
    assert error.message == (
        "[request id: r1] the request's own deadline passed after it had waited 2.000 s in the queue of model 'add'; "
        "allow it more time, or give the model more instances"
    )


def test_a_request_that_was_taken_has_no_expiry_any_more():
    queue = with_policy(default_timeout=1.0)
    push_all(queue, make_request(), make_request(), now=0.0)
    queue.push(make_request(), 0.5)
    queue.take(2)
    assert queue.next_expiry() == 1.5
    queue.take(1)
    assert queue.next_expiry() == math.inf


def test_what_has_left_is_not_kept_alive_by_its_clock():
    queue = make_queue()
    request = make_request(deadline=1e6)
    request.inputs = [Tensor("A", DataType.INT8, (4,), memoryview(bytearray(4)))]
    queue.push(request, 0.0)
    gone = weakref.ref(request.inputs[0].data)
    assert len(queue.take(1)) == 1
    del request
    gc.collect()
    assert gone() is None


# Leaving otherwise


def test_a_removed_request_is_gone():
    queue = make_queue()
    first, second = make_request(nbytes=5), make_request(nbytes=7)
    push_all(queue, first, second)
    assert first in queue
    assert queue.abandon(first, 0.0)
    assert first not in queue
    assert not queue.abandon(first, 0.0)
    assert (len(queue), queue.nbytes, queue.take(2)) == (1, 7, [second])


def test_a_request_that_was_never_queued_can_not_be_removed():
    queue = make_queue()
    assert make_request() not in queue
    assert not queue.abandon(make_request(), 0.0)


def test_a_cancelled_request_is_never_taken_and_comes_out_as_expired():
    queue = make_queue()
    gone, here = make_request(), make_request()
    push_all(queue, gone, here)
    gone.cancelled = True
    assert queue.take(2) == [here]
    assert queue.next_expiry() == -math.inf
    ((ended, error),) = queue.expire(0.0)
    assert ended is gone
    assert (error.code, error.message) == (ErrorCode.CANCELLED, "")
    assert queue.next_expiry() == math.inf


def test_a_cancelled_request_is_not_among_the_candidates():
    queue = make_queue()
    gone, here = make_request(deadline=9.0), make_request()
    push_all(queue, gone, here)
    gone.cancelled = True
    assert queue.head(8) == [here]
    assert len(queue) == 1
    assert outcomes(queue.expire(0.0)) == [(gone, Cancelled)]
    assert queue.expire(99.0) == []


def test_a_cancelled_request_that_expires_is_told_that_it_was_cancelled():
    queue = with_policy(default_timeout=1.0)
    request = make_request()
    queue.push(request, 0.0)
    request.cancelled = True
    assert outcomes(queue.expire(1.0)) == [(request, Cancelled)]


def test_draining_gives_everything_back_once():
    queue = make_queue(
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(default_timeout=1.0, timeout_action=DELAY),
    )
    delayed, flagged, urgent, normal = (
        make_request(),
        make_request(),
        make_request(priority=1),
        make_request(),
    )
    push_all(queue, delayed, flagged)
    flagged.cancelled = True
    assert queue.head(1) == [delayed]
    queue.head(9)
    queue.expire(1.0)
    push_all(queue, urgent, normal, now=2.0)
    normal.cancelled = True
    queue.head(9)
    assert queue.drain() == [normal, urgent, delayed]
    assert (len(queue), queue.nbytes, queue.next_expiry(), queue.drain()) == (0, 0, math.inf, [])


# Coming back


def test_requeued_requests_go_before_all_others_of_their_level_in_the_given_order():
    queue = make_queue(priority_levels=2, default_priority_level=2)
    first, second, third = make_request(), make_request(), make_request()
    urgent = make_request(priority=1)
    push_all(queue, first, second, third)
    back = queue.take(2)
    queue.push(urgent, 1.0)
    queue.push_front(back)
    assert queue.take(4) == [urgent, first, second, third]


def test_requeued_requests_are_not_subject_to_bounds():
    queue = make_queue(QueueBounds(requests=1), default_queue_policy=QueuePolicy(max_queue_size=1))
    queue.push(make_request(nbytes=3), 0.0)
    back = queue.take(1)
    queue.push(make_request(nbytes=4), 0.0)
    queue.push_front(back)
    assert (len(queue), queue.nbytes) == (2, 7)


def test_a_requeued_request_has_no_timeout_any_more_but_keeps_its_deadline():
    queue = with_policy(default_timeout=1.0)
    without, having = make_request(), make_request(deadline=7.0)
    push_all(queue, without, having)
    queue.push_front(queue.take(2))
    assert queue.next_expiry() == 7.0
    assert outcomes(queue.expire(8.0)) == [(having, DeadlineExceeded)]
    assert queue.take(2) == [without]


def test_a_request_from_elsewhere_may_be_put_at_the_head():
    queue = make_queue()
    queue.push(make_request(), 5.0)
    stray = make_request(accepted_at=2.0)
    queue.push_front([stray])
    assert queue.oldest_enqueued == 2.0
    assert queue.take(1) == [stray]


# Age


def test_the_oldest_is_the_first_to_have_come():
    queue = make_queue(priority_levels=2, default_priority_level=1)
    assert queue.oldest_enqueued == math.inf
    queue.push(make_request(priority=2), 1.0)
    queue.push(make_request(priority=1), 2.0)
    assert queue.oldest_enqueued == 1.0
    queue.take(1)
    assert queue.oldest_enqueued == 1.0
    queue.take(1)
    assert queue.oldest_enqueued == math.inf


def test_requests_that_came_back_out_of_order_keep_their_age():
    queue = make_queue()
    for now in (1.0, 2.0, 3.0):
        queue.push(make_request(), now)
    first, second = queue.take(1), queue.take(1)
    queue.push_front(first)
    queue.push_front(second)
    assert queue.oldest_enqueued == 1.0


def test_delayed_requests_keep_their_age():
    queue = with_policy(default_timeout=9.0, timeout_action=DELAY)
    queue.push(make_request(), 1.0)
    queue.push(make_request(), 2.0)
    queue.expire(20.0)
    assert queue.oldest_enqueued == 1.0


def test_delayed_requests_keep_their_age_whatever_order_they_expired_in():
    queue = with_policy(default_timeout=9.0, allow_timeout_override=True, timeout_action=DELAY)
    queue.push(make_request(), 1.0)
    queue.push(make_request(timeout=1.0), 2.0)
    queue.expire(20.0)
    assert queue.oldest_enqueued == 1.0


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


def test_clocks_still_run_out_in_order_when_most_of_the_others_have_been_stopped():
    queue = make_queue()
    requests = [make_request(deadline=float(n * 7919 % 1009)) for n in range(1000)]
    push_all(queue, *requests)
    kept = sorted(requests, key=lambda request: request.deadline % 10)[:100]
    for request in set(requests) - set(kept):
        queue.abandon(request, 0.0)
    queue.push(make_request(deadline=2000.0), 0.0)
    ended = [request for request, _ in queue.expire(1500.0)]
    assert ended == sorted(kept, key=lambda request: request.deadline)
