"""A model's queue, scheduler and answers on a clock that jumps, with workers that finish on cue."""

import threading
from typing import Any

import numpy as np
import pytest
import trio

from actors.serving import intake
from actors.serving.batcher import run as run_scheduler
from actors.serving.deaths import settle
from actors.serving.intake import STOPPING
from actors.serving.policy import blame
from actors.serving.policy.blame import hashing
from actors.serving.policy.gpus.easing import FIRST
from actors.serving.policy.retries import Aftermath
from actors.serving.standing import Status
from actors.serving.statistics import FailureReason
from actors.values.errors import Cancelled, ErrorCode, InvalidArgument, Poisoned, TritiumError, Unavailable
from actors.values.specs import DynamicBatching, InstanceSpec, QueueBounds, QueuePolicy, Slo
from actors.values.tensors import Tensor
from actors.wire.batch_frames import Answer, Result
from tests.support.cores import python_only
from tests.support.model_doubles import Context, Stage
from tests.support.shared_regions import ClientRegion, input_in

DELAY = DynamicBatching(preferred_batch_sizes=(4,), max_queue_delay=0.5)


def with_policy(**policy):
    return DynamicBatching(default_queue_policy=QueuePolicy(**policy))


def two_instances():
    return tuple(InstanceSpec(name=f"model_0_{n}") for n in range(2))


ORDERED_PAIR: Any = {
    "scheduling": DynamicBatching(preserve_ordering=True),
    "instances": two_instances(),
    "max_batch_size": 1,
}


@pytest.fixture
async def stage(nursery):
    def make(**changes):
        return Stage(nursery, **changes)

    return make


@pytest.fixture
async def model(stage):
    return stage()


async def three_in_a_batch(stage):
    """A model that has begun with a batch of three requests, and those."""
    model, _ = await busy(stage, scheduling=DynamicBatching())
    requests = [await model.send() for _ in range(3)]
    await model.finished()
    return model, requests


async def busy(stage, **changes):
    """A model whose workers are all occupied, and what they run."""
    model = stage(**changes)
    held = [await model.sent() for _ in model.workers]
    assert not any(worker.has_room for worker in model.workers)
    return model, held


async def test_a_direct_model_runs_each_request_by_itself(stage, autojump_clock):
    model = stage(capacity=9)
    for _ in range(3):
        await model.send()
    await model.settled()
    assert model.worker.sizes == [1, 1, 1]


async def test_a_part_batch_waits_for_its_oldest_request_and_goes_on_time(stage, autojump_clock):
    model = stage(scheduling=DELAY)
    await model.send()
    await trio.sleep(0.3)
    await model.send()
    await trio.sleep(1)
    assert model.worker.sizes == [2]
    assert model.worker.times[0] - model.start == pytest.approx(0.5)


async def test_a_batch_of_preferred_size_goes_at_once(stage, autojump_clock):
    model = stage(scheduling=DELAY)
    for _ in range(4):
        await model.send()
    await model.settled()
    assert model.worker.sizes == [4]
    assert model.now == 0


async def test_what_queued_while_the_instance_was_busy_goes_as_one_batch(stage, autojump_clock):
    model, _ = await busy(stage, scheduling=DynamicBatching())
    for _ in range(10):
        await model.send()
    await model.finished()
    assert model.worker.sizes == [1, 8]
    await model.finished()
    assert model.worker.sizes == [1, 8, 2]


async def test_batches_are_smaller_for_a_while_after_memory_was_short(stage, autojump_clock):
    model, _ = await busy(stage, scheduling=DynamicBatching())
    model.state.easing.short(8, trio.current_time())
    for _ in range(10):
        await model.send()
    for _ in range(4):
        await model.finished()
    assert model.worker.sizes == [1, 4, 4, 2]
    await trio.sleep(FIRST)
    await model.sent()
    for _ in range(8):
        await model.send()
    await model.finished()
    assert model.worker.sizes == [1, 4, 4, 2, 1, 8]


async def test_a_tuned_model_is_eased_as_well(stage, autojump_clock):
    model, _ = await busy(stage, scheduling=DynamicBatching(), slo=Slo(p99=10.0))
    model.state.easing.short(4, trio.current_time())
    for _ in range(4):
        await model.send()
    for _ in range(3):
        await model.finished()
    assert model.worker.sizes == [1, 2, 2]


async def test_a_request_of_more_rows_than_that_goes_alone(stage, autojump_clock):
    model, _ = await busy(stage, scheduling=DynamicBatching())
    model.state.easing.short(2, trio.current_time())
    for rows in (3, 1, 1):
        await model.send(rows=rows)
    for _ in range(4):
        await model.finished()
    assert model.worker.sizes == [1, 1, 1, 1]


async def test_the_least_recently_served_idle_instance_is_next(stage, autojump_clock):
    model = stage(instances=two_instances(), capacity=2)
    for _ in range(4):
        await model.sent()
    assert [len(worker.sent) for worker in model.workers] == [2, 2]
    model.workers[0].finish()
    model.workers[0].finish()
    await model.sent()
    assert len(model.workers[0].sent) == 3  # an idle one before one that would only prefetch


async def test_a_queue_full_in_requests_makes_callers_wait_in_line(stage, autojump_clock):
    model, _ = await busy(stage, queue_bounds=QueueBounds(requests=2))
    await model.send()
    await model.send()
    waiting = []
    for _ in range(3):
        waiting.append(model.sending())
        await model.settled()
    assert [request.reply.admitted for request in waiting] == [False] * 3
    for admitted in range(1, 4):
        await model.finished()
        assert [request.reply.admitted for request in waiting] == [n < admitted for n in range(3)]
    assert len(model.state.queue) == 2


async def test_who_can_not_wait_is_told_that_it_would_have_to_and_may_come_again(stage, autojump_clock):
    model, _ = await busy(stage, queue_bounds=QueueBounds(requests=1))
    first, second = model.request(), model.request()
    model.state.submit_nowait(first)
    with pytest.raises(trio.WouldBlock):
        model.state.submit_nowait(second)
    assert len(model.state.queue) == 1
    assert second not in model.state.in_flight
    await model.finished()
    model.state.submit_nowait(second)
    assert second in model.state.queue


async def test_who_can_not_wait_does_not_overtake_those_who_do(stage, autojump_clock):
    model, _ = await busy(stage, queue_bounds=QueueBounds(nbytes=40))
    await model.send(rows=4)
    waiting = model.sending(rows=2)
    await model.settled()
    with pytest.raises(trio.WouldBlock):
        model.state.submit_nowait(model.request())
    assert not waiting.reply.admitted


async def test_a_small_latecomer_does_not_overtake_those_who_wait(stage, autojump_clock):
    model, _ = await busy(stage, queue_bounds=QueueBounds(nbytes=40))
    await model.send(rows=4)
    large = model.sending(rows=2)
    await model.settled()
    small = model.sending(rows=1)
    await model.settled()
    assert (large.reply.admitted, small.reply.admitted) == (False, False)
    await model.finished()
    assert (large.reply.admitted, small.reply.admitted) == (True, True)


async def fill(model):
    """Send until the queue is full. Raises Unavailable."""
    while True:
        await model.send()


async def test_a_full_queue_tells_when_what_waits_will_be_answered(stage, autojump_clock):
    """The estimate uses the rate of answers since the queue was first full."""
    model, _ = await busy(stage, scheduling=with_policy(max_queue_size=3))
    before = model.state.statistics.success_count
    told, expected = [], []
    for turn in range(4):
        with pytest.raises(Unavailable) as caught:
            await fill(model)
        told.append(caught.value.retry_after)
        answered = model.state.statistics.success_count - before
        expected.append(3 * 4.0 * turn / answered if answered else 0.0)
        await trio.sleep(4)
        await model.finished()
    assert told == pytest.approx(expected)
    # Nothing was answered yet, so the time is unknown; clients are told one second.
    assert told[0] == 0.0
    assert min(told[1:]) > 0.0


async def test_a_waiting_caller_who_leaves_lets_the_next_one_in(stage, autojump_clock):
    model, _ = await busy(stage, queue_bounds=QueueBounds(requests=1))
    queued = await model.send()
    first = model.sending()
    await model.settled()
    second = model.sending()
    await model.settled()
    model.state.cancel(queued)  # so that there is room, and the first in line is told ...
    model.state.cancel(first)  # ... but leaves before it hears
    await model.settled()
    assert first.reply.refused.code is ErrorCode.CANCELLED
    assert second.reply.admitted


async def test_a_waiting_task_that_is_cancelled_lets_the_next_one_in(stage, autojump_clock):
    model, _ = await busy(stage, queue_bounds=QueueBounds(requests=1))
    queued = await model.send()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.state.submit, model.request())
            await model.settled()
            second = model.sending()
            await model.settled()
            scope.cancel()
            model.state.cancel(queued)
    await model.settled()
    assert second.reply.admitted


async def test_requests_that_expire_make_room_for_those_who_wait(stage, autojump_clock):
    model, _ = await busy(
        stage, scheduling=with_policy(default_timeout=1.0), queue_bounds=QueueBounds(requests=1)
    )
    expired = await model.send()
    waiting = model.sending()
    await trio.sleep(1.5)
    assert "Request timeout expired" in expired.reply.error.message
    assert waiting.reply.admitted
    assert waiting in model.state.queue


async def test_nobody_waits_for_ever_where_the_queue_empties_without_an_instance(stage, autojump_clock):
    model = stage(queue_bounds=QueueBounds(requests=1))
    model.state.instances[0].worker = None  # it died, and is being restarted
    queued = await model.send(deadline=trio.current_time() + 1.0)
    waiting = model.sending()
    await trio.sleep(2)
    assert queued.reply.error.code is ErrorCode.DEADLINE_EXCEEDED
    assert waiting.reply.admitted
    await come_back(model)
    assert model.worker.sizes == [1]


async def test_a_deadline_holds_while_waiting_for_room(stage, autojump_clock):
    model, _ = await busy(stage, queue_bounds=QueueBounds(requests=1))
    await model.send()
    waiting = model.sending(deadline=trio.current_time() + 1.0)
    await trio.sleep(1.5)
    assert waiting.reply.refused.code is ErrorCode.DEADLINE_EXCEEDED
    assert "waited for room" in waiting.reply.refused.message


async def test_a_timeout_is_on_time_while_every_instance_is_busy(stage, autojump_clock):
    model, _ = await busy(stage, scheduling=with_policy(default_timeout=2.0), instances=two_instances())
    await trio.sleep(0.25)
    request = await model.send()
    await trio.sleep(10)
    assert request.reply.at - model.start == pytest.approx(2.25)
    assert request.reply.error.code is ErrorCode.UNAVAILABLE
    assert model.state.statistics.failures[FailureReason.REJECTED] == 1


async def test_a_queued_request_that_is_cancelled_leaves_at_once(stage, autojump_clock):
    model, _ = await busy(stage)
    request = await model.send()
    model.state.cancel(request)
    assert request.reply.error.code is ErrorCode.CANCELLED
    assert not len(model.state.queue)
    assert model.state.statistics.failures[FailureReason.CANCELED] == 1
    model.state.cancel(request)
    assert len(request.reply.parts) == 1


async def test_a_running_request_that_is_cancelled_is_flagged_and_still_answered_once(stage, autojump_clock):
    model, (running,) = await busy(stage)
    model.state.cancel(running)
    assert model.worker.cancelled == [running]
    assert not running.reply.parts
    model.worker.finish()
    assert len(running.reply.parts) == 1


async def test_a_request_flagged_cancelled_before_it_is_queued_never_runs(stage, autojump_clock):
    model, _ = await busy(stage)
    request = model.request()
    model.state.cancel(request)
    await model.state.submit(request)
    await model.finished()
    assert request.reply.error.code is ErrorCode.CANCELLED
    assert model.worker.sizes == [1]


async def come_back(model):
    """Have the first instance serve, again or at last."""
    model.state.instance_ready(model.worker.instance, model.worker)
    await model.settled()


def suspected(model, instance, *requests):
    """Have an instance hunt for what kills its workers among some requests."""
    model.state.in_flight.update(dict.fromkeys(requests))
    instance.suspects.push_split([requests])


async def test_a_suspect_that_is_cancelled_leaves_and_its_companions_stay(stage, autojump_clock):
    model = stage(ready=False)
    pair = (model.request(), model.request())
    suspected(model, model.worker.instance, *pair)
    model.state.cancel(pair[0])
    assert pair[0].reply.error.code is ErrorCode.CANCELLED
    await come_back(model)
    assert model.worker.sent[0][1:] == ([pair[1]], True)


async def test_ordered_answers_leave_in_the_order_of_dispatch(stage, autojump_clock):
    model, (first, second) = await busy(stage, **ORDERED_PAIR)
    third = await model.send()
    model.workers[1].finish()
    assert not model.arrivals
    await model.settled()
    model.workers[1].finish()
    assert not model.arrivals
    model.workers[0].finish()
    assert model.arrivals == [first.reply, second.reply, third.reply]


async def test_an_error_keeps_its_place_among_ordered_answers(stage, autojump_clock):
    model, (first, second) = await busy(stage, **ORDERED_PAIR)
    model.workers[1].finish(answers=[Answer(code=ErrorCode.INTERNAL, message="no")])
    model.workers[0].finish()
    assert model.arrivals == [first.reply, second.reply]
    assert second.reply.error.message == "no"


async def test_ordering_does_not_hold_up_the_error_of_a_request_that_never_ran(stage, autojump_clock):
    model, (running,) = await busy(
        stage,
        scheduling=DynamicBatching(
            preserve_ordering=True, default_queue_policy=QueuePolicy(default_timeout=1.0)
        ),
    )
    expired = await model.send()
    cancelled = await model.send()
    model.state.cancel(cancelled)
    assert cancelled.reply.parts
    await trio.sleep(2)
    assert expired.reply.at - model.start == pytest.approx(1.0)
    fresh = await model.send()
    await model.finished()
    model.worker.finish()
    assert model.arrivals == [cancelled.reply, expired.reply, running.reply, fresh.reply]


async def test_an_ordered_request_that_came_back_and_expires_leaves_no_gap(stage, autojump_clock):
    model = stage(**ORDERED_PAIR)
    first = await model.send(deadline=trio.current_time() + 1.0)
    second = await model.sent()
    model.workers[0].instance.worker = None
    model.workers[0].outstanding.clear()
    first.attempts -= 1  # the model never saw it
    settle(model.state, model.workers[0].instance, Aftermath(requeue=(first,)))
    model.workers[1].capacity = 1
    await trio.sleep(2)
    assert first.reply.error.code is ErrorCode.DEADLINE_EXCEEDED
    model.workers[1].finish()
    assert model.arrivals == [first.reply, second.reply]


async def test_ordered_outputs_do_not_hold_slots(stage, autojump_clock):
    model, (request,) = await busy(stage, scheduling=DynamicBatching(preserve_ordering=True))
    batch = model.worker.finish(borrowed=True)
    assert batch.slot.leases == 0
    assert not request.reply.parts[0].leased
    assert isinstance(request.reply.parts[0].outputs[0].data, bytes)


async def test_borrowed_outputs_hold_the_slot_until_each_response_is_released(stage, autojump_clock):
    model, requests = await three_in_a_batch(stage)
    batch = model.worker.finish(borrowed=True)
    assert batch.slot.leases == 3
    for request in requests:
        request.reply.parts[0].release()
    assert batch.slot.leases == 0


async def test_one_requests_error_does_not_reach_its_batchmates(stage, autojump_clock):
    model, requests = await three_in_a_batch(stage)
    model.worker.finish(answers=[None, Answer(code=ErrorCode.INVALID_ARG, message="odd"), Answer()])
    assert [request.reply.answered for request in requests] == [True, False, True]
    statistics = model.state.statistics
    assert (statistics.success_count, statistics.failures[FailureReason.BACKEND]) == (3, 1)
    assert (statistics.execution_count, statistics.inference_count) == (2, 3)


async def test_a_workers_clock_is_believed_as_far_as_it_can_be_true(stage, autojump_clock):
    model, _ = await busy(stage)
    await trio.sleep(1)
    batch = next(iter(model.worker.outstanding.values()))
    cuts: Any = [(request, [], None) for request in batch.requests]
    lies = (2**64 - 1,) * 3
    model.state.outcome.completed(batch, Result(batch.id, 0, 1, lies), cuts, borrowed=False)
    assert model.state.statistics.compute_infer_ns <= 1_000_000_001


async def test_a_second_answer_goes_nowhere_and_is_counted(stage, autojump_clock):
    model, (request,) = await busy(stage)
    batch = next(iter(model.worker.outstanding.values()))
    model.worker.finish()
    cuts: Any = [(request, [], None)]
    model.state.outcome.completed(batch, Result(batch.id, 0, 1, (0, 0, 0)), cuts, borrowed=True)
    assert len(request.reply.parts) == 1
    assert model.state.statistics.reply_violations == 1
    assert batch.slot.leases == 0


async def test_a_batch_that_finds_no_memory_is_refused_and_the_next_one_runs(model, autojump_clock):
    model.worker.fail_next = OSError(12, "Cannot allocate memory")
    request = await model.sent()
    assert request.reply.error.code is ErrorCode.UNAVAILABLE
    assert "Cannot allocate memory" in request.reply.error.message
    fresh = await model.sent()
    model.worker.finish()
    assert fresh.reply.answered


async def test_a_suspect_that_finds_no_memory_ends_the_hunt(stage, autojump_clock):
    model = stage(ready=False)
    suspect = model.request()
    suspected(model, model.worker.instance, suspect)
    model.worker.fail_next = OSError(12, "Cannot allocate memory")
    await come_back(model)
    assert suspect.reply.error is not None
    fresh = await model.sent()
    assert [requests for _, requests, _ in model.worker.sent] == [[fresh]]


async def test_a_lone_request_is_dispatched_without_waking_the_scheduler_and_a_second_one_is_not(
    stage, autojump_clock
):
    model = stage(capacity=9)
    await model.settled()
    lone, second = model.request(), model.request()
    model.state.submit_nowait(lone)
    assert [requests for _, requests, _ in model.worker.sent] == [[lone]]
    model.state.submit_nowait(second)
    assert len(model.worker.sent) == 1
    await model.settled()
    assert [requests for _, requests, _ in model.worker.sent] == [[lone], [second]]


async def test_a_lone_request_that_may_wait_for_others_waits_its_time(stage, autojump_clock):
    model = stage(max_batch_size=8, scheduling=DynamicBatching(max_queue_delay=2.0))
    await model.settled()
    model.state.submit_nowait(model.request())
    assert model.worker.sent == []
    await trio.sleep(3)
    assert model.worker.times == [model.start + 2.0]


async def test_a_bug_in_a_turn_taken_for_the_scheduler_is_the_schedulers():
    async def submit_to_a_scheduler_that_fails():
        async with trio.open_nursery() as nursery:
            model = Stage(nursery)
            await model.settled()
            model.worker.fail_next = KeyError("a bug")
            request = model.request()
            model.state.submit_nowait(request)  # raises nothing
            assert len(request.reply.parts) == 1

    with pytest.raises(BaseExceptionGroup) as raised:
        await submit_to_a_scheduler_that_fails()
    assert raised.group_contains(KeyError, match="a bug")


async def test_a_bug_while_dispatching_answers_the_batch_before_the_scheduler_crashes(stage, autojump_clock):
    model = stage(ready=False)
    model.state.instance_ready(model.worker.instance, model.worker)
    model.worker.fail_next = KeyError("a bug")
    request = model.request()
    model.state.in_flight[request] = None
    with pytest.raises(KeyError):
        model.state.dispatcher.dispatch(model.worker.instance, [request])
    assert len(request.reply.parts) == 1


async def test_hunted_suspects_run_alone_while_siblings_take_fresh_traffic(stage, autojump_clock):
    model = stage(instances=two_instances(), capacity=2)
    hunter, sibling = model.workers
    suspects = [model.request(), model.request()]
    model.state.in_flight.update(dict.fromkeys(suspects))
    settle(model.state, hunter.instance, Aftermath(suspects=tuple((each,) for each in suspects)))
    for _ in range(2):
        await model.send()
    await model.settled()
    assert [(requests, alone) for _, requests, alone in hunter.sent] == [([suspects[0]], True)]
    assert sibling.sizes == [1, 1]
    await model.finished(hunter)
    assert hunter.sent[1][1:] == ([suspects[1]], True)
    hunter.finish()
    await model.sent()
    assert len(hunter.sent) == 3
    assert model.state.statistics.bisected == 1


async def test_an_exhausted_instance_gives_up_its_suspects_with_a_reason(stage, autojump_clock):
    model = stage(ready=False, instances=two_instances())
    model.state.instance_ready(model.workers[0].instance, model.workers[0])
    suspect = model.request()
    instance = model.state.instances[1]
    suspected(model, instance, suspect)
    instance.last_reason = "signal 11"
    model.state.instance_exhausted(instance)
    assert "instance 'model_0_1' keeps dying: signal 11" in suspect.reply.error.message
    assert not instance.hunting


def die(model, worker):
    worker.instance.worker = None
    worker.outstanding.clear()
    settle(model.state, worker.instance, Aftermath())


async def test_a_model_whose_instances_are_all_exhausted_is_unavailable_until_one_is_back(
    stage, autojump_clock
):
    model = stage(instances=two_instances(), queue_bounds=QueueBounds(requests=1))
    for worker in model.workers:
        die(model, worker)
        worker.instance.last_reason = "signal 11"
    queued = await model.send()
    waiting = model.sending()
    await model.settled()
    model.state.instance_exhausted(model.state.instances[0])
    assert model.state.standing.degraded
    assert model.state.status is Status.READY
    model.state.instance_exhausted(model.state.instances[1])
    await model.settled()
    assert model.state.status is Status.UNAVAILABLE
    assert model.state.reason == "Unavailable: all instances keep dying: signal 11"
    assert queued.reply.error.code is waiting.reply.refused.code is ErrorCode.UNAVAILABLE
    with pytest.raises(Unavailable, match="is not at ready state"):
        await model.send()
    model.state.instance_ready(model.state.instances[0], model.workers[0])
    assert model.state.status is Status.READY
    request = await model.sent()
    model.workers[0].finish()
    assert request.reply.answered


async def test_an_instance_whose_trial_fails_is_exhausted_again(model, autojump_clock):
    die(model, model.worker)
    model.state.instance_exhausted(model.state.instances[0])
    model.state.instance_ready(model.worker.instance, model.worker)
    assert model.state.status is Status.READY
    die(model, model.worker)
    assert model.state.status is Status.UNAVAILABLE


async def test_a_sibling_on_trial_keeps_the_model_ready(stage, autojump_clock):
    model = stage(instances=two_instances())
    for worker in model.workers:
        die(model, worker)
        model.state.instance_exhausted(worker.instance)
    model.state.instance_ready(model.workers[0].instance, model.workers[0])
    die(model, model.workers[1])
    assert model.state.status is Status.READY


async def test_a_version_is_ready_when_all_its_instances_are(stage, autojump_clock):
    model = stage(ready=False, instances=two_instances())
    model.state.instance_ready(model.workers[0].instance, model.workers[0])
    assert model.state.status is Status.LOADING
    with pytest.raises(Unavailable, match="is not at ready state"):
        await model.send()
    await trio.sleep(2)
    model.state.instance_ready(model.workers[1].instance, model.workers[1])
    assert model.state.status is Status.READY
    assert model.state.standing.load_seconds == pytest.approx(2)
    assert model.changes == [(Status.READY, "")]


async def test_a_failed_load_is_final_even_where_a_siblings_comes_to_an_end_after_it(stage, autojump_clock):
    model = stage(ready=False, instances=two_instances())
    model.state.standing.load_failed("Internal: no")
    model.state.instance_ready(model.workers[1].instance, model.workers[1])
    assert model.state.status is Status.UNAVAILABLE
    assert model.state.reason == "Internal: no"


async def test_standing_changes_only_as_its_table_says(model, autojump_clock):
    model.state.standing.become(Status.READY)
    assert model.changes == [(Status.READY, "")]
    with pytest.raises(ValueError, match="can't go from READY to LOADING"):
        model.state.standing.become(Status.LOADING)


async def test_draining_answers_everything_and_takes_nothing_new(stage, autojump_clock):
    model, (running,) = await busy(stage, queue_bounds=QueueBounds(requests=1))
    queued = await model.send()
    waiting = model.sending()
    await model.settled()
    model.state.standing.become(Status.UNLOADING)
    with pytest.raises(Unavailable, match=STOPPING):
        await model.send()

    async def work():
        for _ in range(3):
            await trio.sleep(1)
            model.worker.finish()

    model.nursery.start_soon(work)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(model.state.wait_drained)
        nursery.start_soon(model.state.wait_drained)
    assert model.now == pytest.approx(3)
    assert all(request.reply.answered for request in (running, queued, waiting))


async def test_closing_answers_whatever_is_left(stage, autojump_clock):
    model, (running,) = await busy(stage, queue_bounds=QueueBounds(requests=1))
    queued = await model.send()
    waiting = model.sending()
    await model.settled()
    model.state.close()
    model.state.close()
    await model.settled()
    assert len(running.reply.parts) == len(queued.reply.parts) == 1
    assert waiting.reply.refused.message == STOPPING
    assert not model.state.in_flight


async def test_a_request_that_contradicts_the_model_is_refused_before_the_queue(model, autojump_clock):
    request = model.request()
    request.inputs = [Tensor.from_numpy("INPUT", np.zeros((1, 3), np.float32))]
    with pytest.raises(InvalidArgument):
        await model.state.submit(request)
    assert not model.state.in_flight


async def test_a_quarantined_request_is_refused_for_a_while(model, autojump_clock):
    poison = model.request()
    poison.inputs = [Tensor.from_numpy("INPUT", np.full((1, 2), 666, np.float32))]
    model.state.in_flight[poison] = None
    convicted = settle(
        model.state,
        model.worker.instance,
        Aftermath(refuse=((poison, Poisoned("it kills")),), quarantine=(poison,)),
    )
    assert convicted == [poison]
    again = model.request()
    again.inputs = poison.inputs
    with pytest.raises(Poisoned, match="quarantined"):
        await model.state.submit(again)
    assert model.state.statistics.quarantined == 2
    await trio.sleep(601)
    await model.state.submit(again)


def quarantined(model, request):
    """Have `request` be quarantined, as after a worker's death."""
    model.state.in_flight[request] = None
    refuse = ((request, Poisoned("it kills")),)
    settle(model.state, model.worker.instance, Aftermath(refuse=refuse, quarantine=(request,)))


@python_only
async def test_a_long_request_in_a_region_is_not_hashed_on_the_loop(model, monkeypatch):
    """Callers that can't wait are told that they have to. Meanwhile the region is held."""
    region = ClientRegion(8)
    poison, again = model.request(), model.request()
    for request in (poison, again):
        request.inputs = [input_in(region.put(np.full((1, 2), 666, np.float32)), (1, 2))]
    quarantined(model, poison)
    monkeypatch.setattr(blame, "HASHED_AT_ONCE", 7)
    monkeypatch.setattr(intake, "hashing", watched := WatchedHashing(region.region))
    with pytest.raises(trio.WouldBlock):
        model.state.submit_nowait(again)
    with pytest.raises(Poisoned, match="quarantined"):
        await model.state.submit(again)
    assert watched.users == [1]
    assert region.region.users == 0
    assert watched.threads.isdisjoint({threading.get_ident()})
    region.put(np.float32(1), at=4)  # another request, whose quick key differs
    other = model.request()
    other.inputs = again.inputs
    model.state.submit_nowait(other)
    region.close()


class WatchedHashing:
    """Notes on which threads requests are hashed, and how many users the region has meanwhile."""

    def __init__(self, region):
        self.region = region
        self.users = []
        self.threads = set()

    def __call__(self, request):
        self.threads.add(threading.get_ident())
        self.users.append(self.region.users)
        return (yield from hashing(request))


@python_only
async def test_a_long_request_that_leaves_while_it_is_hashed_is_not_queued(model, monkeypatch):
    poison, again = model.request(), model.request()
    quarantined(model, poison)

    def hash_and_leave(request):
        request.cancelled = True
        return (yield from hashing(request))

    monkeypatch.setattr(blame, "HASHED_AT_ONCE", 7)
    monkeypatch.setattr(intake, "hashing", hash_and_leave)
    with pytest.raises(Cancelled):
        await model.state.submit(again)
    assert again not in model.state.in_flight


@pytest.mark.parametrize("alike", [1, 2, 3])
async def test_long_requests_that_may_have_been_quarantined_meanwhile_run_alone(
    stage, monkeypatch, autojump_clock, alike
):
    """There is no time to hash them, and others must not suffer where they kill a worker."""
    model, _ = await busy(stage, scheduling=DynamicBatching())
    waiting = [model.request() for _ in range(3)]
    for place, request in enumerate(waiting):
        value = 666 if place < alike else 1
        request.inputs = [Tensor.from_numpy("INPUT", np.full((1, 2), value, np.float32))]
        model.state.submit_nowait(request)
    poison = model.request()
    poison.inputs = waiting[0].inputs
    quarantined(model, poison)
    monkeypatch.setattr(blame, "HASHED_AT_ONCE", 7)
    while model.worker.outstanding:
        await model.finished()
    innocent = [3 - alike] if alike < 3 else []
    assert sorted(model.worker.sizes) == sorted([1, *[1] * alike, *innocent])


async def test_a_request_that_hangs_is_quarantined_the_second_time(model):
    hung = model.request()
    hung.inputs = [Tensor.from_numpy("INPUT", np.full((1, 2), 666, np.float32))]
    aftermath = Aftermath(hung=(hung,))
    assert settle(model.state, model.worker.instance, aftermath) == []
    assert settle(model.state, model.worker.instance, aftermath) == [hung]
    assert model.state.statistics.quarantined == 1


async def test_a_retried_answer_says_how_often_it_was_tried(stage, autojump_clock):
    model, (request,) = await busy(stage)
    model.worker.outstanding.clear()
    settle(model.state, model.worker.instance, Aftermath(requeue=(request,)))
    await model.settled()
    model.worker.finish(answers=[Answer((), {"k": 1})])
    assert request.reply.parts[0].parameters == {"k": 1, "attempts": 2}
    assert model.state.statistics.retried == 1


@python_only
async def test_a_batch_larger_than_one_turn_can_copy_is_cut(stage, autojump_clock, monkeypatch):
    monkeypatch.setattr("actors.serving.policy.batching.BATCH_BYTES", 100)
    model, _ = await busy(stage, scheduling=DynamicBatching(), max_batch_size=64)
    for _ in range(5):
        await model.send(rows=5)  # 40 bytes each
    for _ in range(4):
        await model.finished()
    assert model.worker.sizes == [1, 2, 2, 1]


async def test_a_crashed_scheduler_leaves_everything_for_the_next(stage, autojump_clock):
    model = stage(ready=False)
    with trio.CancelScope() as first:
        model.state.instance_ready(model.worker.instance, model.worker)
        first.cancel()
        await run_scheduler(Context(), model.state)
    request = await model.sent()
    model.worker.finish()
    assert request.reply.answered
    assert not isinstance(request.reply.parts[0], TritiumError)


async def two_with_room_behind(stage, **changes):
    """Two instances that each execute something, with a request sent ahead to each."""
    model = stage(instances=two_instances(), capacity=2, **changes)
    requests = [await model.sent() for _ in range(4)]
    assert [len(worker.outstanding) for worker in model.workers] == [2, 2]
    return model, requests


@pytest.fixture
async def behind(stage):
    model, _ = await two_with_room_behind(stage)
    return model


async def test_an_idle_instance_takes_what_another_was_only_sent_ahead(stage, autojump_clock):
    model, (_, ours, theirs, _) = await two_with_room_behind(stage)
    healthy, stuck = model.workers
    ahead = stuck.not_begun()[0].requests[0]
    await trio.sleep(0.2)
    healthy.finish()
    await model.finished(healthy)
    assert [batch.requests for batch in stuck.taken_back] == [[ahead]]
    assert [batch.requests for batch in healthy.outstanding.values()] == [[ahead]]
    assert ahead.attempts == 1
    del ours, theirs


async def test_an_idle_instance_waits_as_long_as_a_short_execution_takes(behind, autojump_clock):
    healthy, busy = behind.workers
    healthy.finish()
    await behind.finished(healthy)
    assert not busy.taken_back
    await trio.sleep(0.05)  # no bell rings
    assert len(busy.taken_back) == 1
    assert len(healthy.outstanding) == 1


async def test_ten_short_requests_do_not_wait_for_a_long_one(stage, autojump_clock):
    model = stage(instances=two_instances(), capacity=2)
    long = await model.sent()
    short = [await model.send() for _ in range(10)]
    healthy = model.workers[1]

    async def work():
        while not all(request.answered for request in short):
            await trio.sleep(0.2 if healthy.outstanding else 0.01)
            if healthy.outstanding:
                healthy.finish()

    model.nursery.start_soon(work)
    for request in short:
        await request.reply.wait()
    assert model.now < 2.3  # one after the other on the one that is free
    assert long.reply.at is None


async def test_what_waits_behind_a_hang_goes_first_where_no_instance_is_ever_idle(behind, autojump_clock):
    healthy, stuck = behind.workers
    ahead = stuck.not_begun()[0].requests[0]
    for _ in range(20):
        await behind.send()
    for _ in range(6):
        await trio.sleep(0.2)
        await behind.finished(healthy)
    assert ahead.reply.at is not None, "it still waits"
    assert len(stuck.outstanding) == 1  # and nothing else is sent there


async def test_nothing_is_sent_ahead_behind_an_execution_that_lasts(stage, autojump_clock):
    model = stage(instances=two_instances(), capacity=2)
    for _ in range(2):
        await model.sent()
    await trio.sleep(1)
    waits = await model.sent()
    assert waits in model.state.queue
    await model.finished(model.workers[1])
    assert [worker.sizes for worker in model.workers] == [[1], [1, 1]]


async def test_an_only_instance_has_its_next_batch_at_hand_however_long_it_executes(stage, autojump_clock):
    model = stage(capacity=2)
    await model.sent()
    await trio.sleep(1)
    await model.sent()
    assert model.worker.sizes == [1, 1]


async def test_instances_that_are_all_slow_have_their_next_batches_at_hand(behind, autojump_clock):
    await trio.sleep(0.05)
    for worker in behind.workers:
        worker.finish()
    await trio.sleep(0.02)
    for _ in range(2):
        await behind.sent()
    assert [len(worker.outstanding) for worker in behind.workers] == [2, 2]


async def test_a_busy_pair_of_instances_hands_nothing_to_and_fro(behind, autojump_clock):
    for _ in range(200):
        await behind.send()
    for turn in range(40):
        await trio.sleep(0.01)
        await behind.finished(behind.workers[turn % 2])
    assert not any(worker.taken_back for worker in behind.workers)


async def test_what_is_ahead_and_has_not_begun_is_answered_at_once_where_its_client_leaves(
    stage, autojump_clock
):
    model = stage(capacity=2, scheduling=DynamicBatching(preferred_batch_sizes=(2,)))
    await model.send()
    await model.sent()
    left, stays = await model.send(), await model.sent()
    assert model.worker.sizes == [2, 2]
    model.state.cancel(left)
    assert left.reply.error.code is ErrorCode.CANCELLED
    assert not model.worker.cancelled
    await model.finished()
    assert model.worker.sent[-1][1] == [stays]
    assert (left.attempts, stays.attempts) == (0, 1)


async def test_an_instance_that_leaves_gives_back_what_it_has_not_begun(behind, autojump_clock):
    leaving, staying = behind.workers
    ahead = leaving.not_begun()[0].requests[0]
    behind.state.remove_instance(leaving.instance)
    assert len(leaving.outstanding) == 1
    staying.finish()
    await behind.finished(staying)
    assert staying.sent[-1][1] == [ahead]


async def test_an_instance_that_leaves_is_told_whose_client_has_gone(behind, autojump_clock):
    leaving, _ = behind.workers
    running = next(iter(leaving.outstanding.values())).requests[0]
    behind.state.remove_instance(leaving.instance)
    leaving.cancelled.clear()
    behind.state.cancel(running)
    assert leaving.cancelled == [running]


async def test_what_the_last_instance_died_of_is_answered_where_it_was_dismissed(model, autojump_clock):
    model.state.remove_instance(model.worker.instance)
    suspects, waiting = [model.request(), model.request()], model.request()
    model.state.in_flight.update(dict.fromkeys([*suspects, waiting]))
    model.worker.instance.last_reason = "signal 11"
    settle(model.state, model.worker.instance, Aftermath(suspects=(tuple(suspects),), requeue=(waiting,)))
    why = "instance 'model_0_0' died of signal 11, and no other is left to try it again"
    assert [each.reply.error.message for each in suspects] == [f"[request id: <id_unknown>] {why}"] * 2
    assert {each.reply.error.code for each in suspects} == {ErrorCode.UNAVAILABLE}
    assert list(model.state.queue.drain()) == [waiting]


async def test_at_the_end_a_hanging_instance_that_leaves_is_given_up_as_well(stage, autojump_clock):
    model = stage(instances=two_instances())
    leaving, staying = model.workers
    stuck = await model.send()
    await trio.sleep(60)
    model.state.remove_instance(leaving.instance)
    healthy = await model.send()
    await model.settled()
    model.state.give_up_stuck(60, "it is over")
    assert stuck.reply.error.message.endswith("it is over")
    assert model.state.rotation == [staying.instance]
    staying.finish()
    assert healthy.reply.error is None
