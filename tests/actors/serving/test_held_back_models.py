"""First batches that wait for enough requests (contract, scheduling.md section 12), on a clock that jumps."""

import pytest

from actors.serving.policy.holding import HoldBack, StartAfter
from actors.values.requests import FLAG_SEQUENCE_START
from actors.values.specs import DirectStrategy, DynamicBatching, OldestStrategy, QueuePolicy, SequenceBatching
from tests.support.model_doubles import Stage

START = FLAG_SEQUENCE_START


@pytest.fixture
async def held(nursery):
    def make(queued, backlogged=0, **changes):
        return Stage(nursery, hold=HoldBack(StartAfter(queued, backlogged)), **changes)

    return make


async def test_a_dynamic_batch_waits_for_so_many_requests_and_has_them_all(held, autojump_clock):
    model = held(3, scheduling=DynamicBatching())
    await model.send()
    await model.sent()
    assert model.worker.sent == []
    await model.sent()
    assert [len(requests) for _, requests, _ in model.worker.sent] == [3]


async def test_only_the_first_batch_waits(held, autojump_clock):
    model = held(2, scheduling=DynamicBatching())
    await model.send()
    await model.sent()
    model.worker.finish()
    await model.sent()
    assert [len(requests) for _, requests, _ in model.worker.sent] == [2, 1]


async def test_requests_that_are_held_back_still_time_out(held, autojump_clock):
    policy = QueuePolicy(default_timeout=1.0)
    model = held(2, scheduling=DynamicBatching(default_queue_policy=policy))
    request = await model.send()
    await request.reply.wait()
    assert request.reply.error.message == "Request timeout expired"
    assert model.now == 1.0


@pytest.mark.parametrize("scheduling", [DynamicBatching(), SequenceBatching(strategy=OldestStrategy())])
async def test_a_probe_is_not_held_back(held, autojump_clock, scheduling):
    model = held(9, scheduling=scheduling)
    probe = model.request()
    probe.synthetic = True
    await model.state.submit(probe)
    await model.settled()
    assert [requests for _, requests, _ in model.worker.sent] == [[probe]]


async def test_a_model_without_batching_is_not_held_back(held, autojump_clock):
    model = held(9)
    await model.sent()
    assert len(model.worker.sent) == 1


@pytest.mark.parametrize("strategy", [DirectStrategy(), OldestStrategy()])
async def test_sequences_wait_for_requests_with_slots_and_in_the_backlog(held, autojump_clock, strategy):
    model = held(2, 2, scheduling=SequenceBatching(strategy=strategy), max_batch_size=2)
    for sequence in (1, 2, 3):
        await model.send(correlation_id=sequence, flags=START)
    await model.settled()
    assert model.worker.sent == []
    await model.sent(correlation_id=3)
    assert [len(requests) for _, requests, _ in model.worker.sent] == [2]
