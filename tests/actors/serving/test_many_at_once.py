"""n clients at once cost n times what one costs, in turns that leave the loop to others.

Cost is counted in calls, of Python functions and of built-in ones: it is the same in every run and on every
machine.
"""

import gc
import math
import sys
from typing import Any

import pytest
import trio
import trio.testing

from actors.serving.policy.queueing import ENDED_AT_ONCE
from actors.serving.waiting import REFUSED_AT_ONCE
from actors.values.errors import DeadlineExceeded, TritiumError, Unavailable
from actors.values.specs import (
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    Fairness,
    OldestStrategy,
    QueueBounds,
    SequenceBatching,
)
from tests.support.model_doubles import FakeSlot, Stage, make_request

ROOMY = QueueBounds(requests=10**6)
NARROW = QueueBounds(requests=16)
SEQUENCES = SequenceBatching(strategy=OldestStrategy(max_candidate_sequences=4), max_idle=10_000.0)
BATCHES = DynamicBatching(max_queue_delay=0.1, preferred_batch_sizes=(8,))
TENANTS = Fairness(tenant_header="x-tenant")

CASES: dict[str, dict[str, Any]] = {
    "sequences that wait for room": {"scheduling": SEQUENCES, "queue_bounds": NARROW},
    "sequences in the backlog": {"scheduling": SEQUENCES, "queue_bounds": ROOMY},
    "one long sequence": {"scheduling": SEQUENCES, "queue_bounds": ROOMY, "one": True},
    "one long sequence that waits for room": {"scheduling": SEQUENCES, "queue_bounds": NARROW, "one": True},
    "requests that wait for room": {"queue_bounds": NARROW},
    "queued requests": {"queue_bounds": ROOMY},
    "requests for batches": {"queue_bounds": ROOMY, "scheduling": BATCHES},
    "tenants that wait for room": {"queue_bounds": NARROW, "fairness": TENANTS},
    "queued requests of tenants": {"queue_bounds": ROOMY, "fairness": TENANTS},
}


def cancel_in_order(state, requests):
    for request in requests:
        state.cancel(request)


def cancel_the_last_first(state, requests):
    for request in reversed(requests):
        state.cancel(request)


def end_the_version(state, requests):
    state.close()


ENDS = [cancel_in_order, cancel_the_last_first, end_the_version]


class Counter:
    """Counts calls while it is entered."""

    def __enter__(self):
        self.calls = 0
        gc.disable()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        gc.enable()

    def _count(self, frame, event, argument):
        self.calls += event in ("call", "c_call")


async def crowd(nursery, count, *, one=False, deadline=math.inf, **options):
    """A model, and `count` requests to it that run, are queued, or wait for room."""
    stage = Stage(nursery, **options)
    await stage.settled()
    requests = []
    for number in range(count):
        sequence = {}
        if stage.state.sequences is not None:
            sequence = {"correlation_id": 1 if one else number + 1, "flags": int(not one or not number)}
        request = make_request(deadline=deadline, **sequence)
        request.tenant = str(number % 50)
        requests.append(request)
        try:
            stage.state.submit_nowait(request)
        except trio.WouldBlock:
            nursery.start_soon(waits, stage.state, request)
    await stage.settled()
    return stage, requests


async def waits(state, request):
    try:
        await state.submit(request)
    except TritiumError as error:
        request.reply.put(error, final=True)


async def cost(count, end, **options):
    """How many calls it takes until everything that waited has ended."""
    async with trio.open_nursery() as nursery:
        stage, requests = await crowd(nursery, count, **options)
        with Counter() as counted:
            end(stage.state, requests)
            await stage.settled()
        running = {request for batch in stage.worker.outstanding.values() for request in batch.requests}
        assert all(request.reply.error for request in requests if request not in running)
        nursery.cancel_scope.cancel()
    return counted.calls


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("case", CASES)
async def test_ending_many_costs_no_more_for_each_than_ending_few(case, end, autojump_clock):
    few, many = [await cost(count, end, **CASES[case]) for count in (120, 480)]
    assert many < 5 * few


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_many_deadlines_at_one_time_cost_no_more_for_each_than_few(case, autojump_clock):
    async def pass_deadlines(count):
        async with trio.open_nursery() as nursery:
            stage, requests = await crowd(nursery, count, deadline=trio.current_time() + 100, **CASES[case])
            with Counter() as counted:
                await trio.sleep(101)
                await stage.settled()
            assert sum(request.reply.error is not None for request in requests) >= count - 8
            nursery.cancel_scope.cancel()
        return counted.calls

    few, many = [await pass_deadlines(count) for count in (120, 480)]
    assert many < 5 * few


@pytest.mark.slow
async def test_steps_that_stand_in_line_for_a_full_model_leave_it_for_the_same_each(autojump_clock):
    from tests.actors.ensembles.test_ensemble_in_virtual_time import World, ask

    async def leave(count):
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            first = world.model("a", capacity=count, queue_bounds=ROOMY)
            world.model("b", queue_bounds=NARROW)
            steps = [
                EnsembleStep(model_name=model, input_map={"INPUT": one}, output_map={"OUTPUT": other})
                for model, one, other in (("a", "X", "t"), ("b", "t", "Y"))
            ]
            whole = await world.ensemble(Ensemble(steps=tuple(steps)), queue_bounds=ROOMY)
            requests = [ask() for _ in range(count)]
            for request in requests:
                whole.submit_nowait(request)
            await world.settled()
            while first.running:
                first.finish()
            await world.settled()
            with Counter() as counted:
                for request in reversed(requests):
                    whole.cancel(request)
                await world.settled()
            assert sum(request.reply.error is not None for request in requests) >= count - 8
            nursery.cancel_scope.cancel()
        return counted.calls

    few, many = [await leave(count) for count in (120, 480)]
    assert many < 5 * few


async def told_in_turns(requests, most):
    """Wait until every one of `requests` has its answer; each turn of the loop gives at most `most`."""
    told = sum(bool(request.reply.parts) for request in requests)
    while told < len(requests):
        await trio.lowlevel.checkpoint()
        now = sum(bool(request.reply.parts) for request in requests)
        assert now - told <= most
        told = now


async def test_those_who_wait_for_room_are_refused_some_at_a_time(nursery, autojump_clock):
    stage, requests = await crowd(nursery, 1000, queue_bounds=NARROW)
    stage.state.intake.fail_queued(Unavailable("enough"))
    waiting = [request for request in requests if request not in stage.state.in_flight]
    await told_in_turns([request for request in waiting if not request.reply.parts], 2 * REFUSED_AT_ONCE)
    assert all(isinstance(request.reply.error, Unavailable) for request in waiting)


async def test_one_who_leaves_before_being_told_of_a_refusal_keeps_nobody_waiting(nursery, autojump_clock):
    stage, requests = await crowd(nursery, 1000, queue_bounds=NARROW)
    for request in requests:
        request.deadline = math.inf
    stage.state.intake.fail_queued(Unavailable("enough"))
    for request in requests[-400:-100]:
        stage.state.cancel(request)
    await stage.settled()
    running = stage.worker.outstanding[0].requests
    assert all(request.reply.error is not None for request in requests if request not in running)


@pytest.mark.parametrize(
    "case", ["queued requests", "sequences in the backlog", "queued requests of tenants"]
)
async def test_requests_whose_time_is_up_are_told_some_at_a_time_and_none_of_them_runs(
    case, nursery, autojump_clock
):
    stage, requests = await crowd(nursery, 2000, deadline=trio.current_time() + 10, **CASES[case])
    running = stage.worker.outstanding[0].requests
    waiting = [request for request in requests if request not in running]
    await trio.sleep(9.5)
    stage.worker.finish()  # a place is free, while their time is up
    await stage.settled()
    sent = len(stage.worker.sent)
    await trio.sleep(0.5)
    left = [request for request in waiting if not request.reply.parts and request not in requests_of(stage)]
    await told_in_turns(left, 2 * ENDED_AT_ONCE)
    assert all(isinstance(request.reply.error, DeadlineExceeded) for request in left)
    assert len(stage.worker.sent) == sent


def requests_of(stage):
    return [request for batch in stage.worker.outstanding.values() for request in batch.requests]


async def test_a_batch_that_all_its_clients_leave_is_looked_through_once(nursery, autojump_clock):
    from actors.serving.instances.batches import InFlight

    requests = [make_request() for _ in range(64)]
    batch = InFlight(1, requests, FakeSlot(), alone=False, began_at=0.0)
    assert [batch.place_of(request) for request in requests] == list(range(64))
    assert batch.place_of(make_request()) is None
