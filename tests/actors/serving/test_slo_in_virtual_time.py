"""A model that promises a latency under steps of load, in virtual time."""

from collections import Counter
from typing import Any

import pytest
import trio

from actors.serving.policy.slo import PROBE_AFTER
from actors.values.errors import TritiumError, Unavailable
from actors.values.specs import DynamicBatching, Slo
from tests.support.model_doubles import Stage

# Times are fractions of two. Sums of other values may fall short of a deadline by less than the virtual clock
# can move.
BATCHED = DynamicBatching(max_queue_delay=1 / 64)


def promise_of(stage) -> Any:
    """Return what keeps the model's promise."""
    return stage.state.slo


class Load:
    """Clients that send `rate` requests a second, regardless of the outcomes."""

    def __init__(self, stage, rate):
        self.stage = stage
        self.rate = rate
        self.counts: Any = Counter()
        self.latencies = []

    async def run(self):
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._send)
                await trio.sleep(1 / self.rate)

    async def _send(self):
        request = self.stage.request()
        try:
            await self.stage.state.submit(request)
        except Unavailable as error:
            self.counts["refused" if error.retry_after >= 1.0 else "lost"] += 1
            return
        await request.reply.wait()
        self.counts["answered"] += 1
        self.latencies.append(trio.current_time() - request.accepted_at)

    async def for_seconds(self, seconds):
        """Let `seconds` pass; return the outcomes of the requests within them, and their p99."""
        self.counts, self.latencies = Counter(), []
        await trio.sleep(seconds)
        ordered = sorted(self.latencies)
        return self.counts, ordered[int(len(ordered) * 0.99)] if ordered else None


async def serve(worker, seconds):
    """Finish each batch `seconds(rows)` after it was sent, for ever."""
    sent = trio.Event()
    dispatch = worker.dispatch

    def dispatch_and_tell(*args, **options):
        sent.set()
        return dispatch(*args, **options)

    worker.dispatch = dispatch_and_tell
    while True:
        while worker.outstanding:
            batch = next(iter(worker.outstanding.values()))
            await trio.sleep(seconds(len(batch.requests)))
            worker.finish()
        await sent.wait()
        sent = trio.Event()


def some_and_more_for_each(rows):
    """Batches of 8 in 28 ms: at most 284 requests a second."""
    return 5 / 256 + rows / 1024


@pytest.mark.slow  # tens of thousands of turns of the scheduler
async def test_a_step_of_load_is_refused_as_far_as_it_is_too_much_and_that_ends_with_it(
    autojump_clock, nursery
):
    stage = Stage(nursery, slo=Slo(p99=0.1), scheduling=BATCHED)
    nursery.start_soon(serve, stage.worker, some_and_more_for_each)
    load = Load(stage, 128.0)
    nursery.start_soon(load.run)
    counts, p99 = await load.for_seconds(5.0)
    assert counts["refused"] == 0
    assert p99 < 0.1

    load.rate = 512.0
    await load.for_seconds(2.0)
    counts, p99 = await load.for_seconds(5.0)
    assert p99 < 0.11
    assert counts["answered"] > 0.85 * 5 * 284  # it goes on doing nearly all that it can
    assert counts["refused"] > 800

    load.rate = 128.0
    await load.for_seconds(2.0)
    counts, p99 = await load.for_seconds(5.0)
    assert counts["refused"] == 0
    assert p99 < 0.1
    assert promise_of(stage).sample(0).delay == pytest.approx(1 / 64, rel=0.5)


@pytest.mark.slow
async def test_without_the_promise_the_same_load_makes_everybody_wait(autojump_clock, nursery):
    stage = Stage(nursery, scheduling=BATCHED)
    nursery.start_soon(serve, stage.worker, some_and_more_for_each)
    load = Load(stage, 512.0)
    nursery.start_soon(load.run)
    await load.for_seconds(3.0)
    _, p99 = await load.for_seconds(2.0)
    assert p99 > 1.0


@pytest.mark.slow
async def test_batches_shrink_to_what_the_promise_allows_and_grow_back(autojump_clock, nursery):
    """A row takes 16 ms at first: a request that comes while a batch of 8 runs is late."""
    stage = Stage(nursery, slo=Slo(p99=0.1, refuse=False), scheduling=DynamicBatching())
    row = [1 / 64]
    nursery.start_soon(serve, stage.worker, lambda rows: rows * row[0])

    async def send_clumps(count):
        for _ in range(count):
            for _ in range(9):
                await stage.send()
            await trio.sleep(0.25)

    await send_clumps(40)
    smallest = promise_of(stage).sample(0).size
    row[0] = 1 / 2048
    await send_clumps(100)
    assert smallest < promise_of(stage).sample(0).size == 8


async def test_a_model_that_was_slow_once_is_asked_again(autojump_clock, nursery):
    """Its first batch takes ten seconds; without a probe, no request with one second would get in again."""
    stage = Stage(nursery, slo=Slo(), scheduling=DynamicBatching())
    await stage.send()
    await trio.sleep(10.0)
    await stage.finished()
    nursery.start_soon(serve, stage.worker, lambda rows: 0.01)
    outcomes = []
    for _ in range(40):
        request = stage.request(deadline=trio.current_time() + 1.0)
        try:
            await stage.state.submit(request)
            outcomes.append(True)
        except TritiumError:
            outcomes.append(False)
        await trio.sleep(PROBE_AFTER)
    assert not outcomes[0]
    assert all(outcomes[-5:])


async def test_what_is_measured_is_told_with_the_statistics(autojump_clock, nursery):
    stage = Stage(nursery, slo=Slo(p99=0.1), scheduling=BATCHED)
    nursery.start_soon(serve, stage.worker, lambda rows: 1 / 64)
    await (await stage.send()).reply.wait()
    described: Any = stage.state.describe_statistics()
    slo = described["tritium"]["slo"]
    assert slo["p99"] == 0.1
    assert slo["service"] == pytest.approx(1 / 64)
    assert (slo["rate"], slo["delay"], slo["size"]) == (None, 1 / 64, 8)


async def test_a_warmup_says_nothing_of_how_long_clients_wait(autojump_clock, nursery):
    stage = Stage(nursery, slo=Slo(p99=0.1), scheduling=DynamicBatching(), ready=False)
    stage.worker.dispatch([stage.request()], now=trio.current_time())
    await trio.sleep(0.25)
    stage.worker.finish()
    stage.state.instance_ready(stage.worker.instance, stage.worker)
    assert promise_of(stage).sample(10).wait == 0.0


@pytest.mark.slow  # tens of thousands of turns of the scheduler
async def test_after_slow_times_a_model_is_asked_for_all_that_it_can_do(autojump_clock, nursery):
    """The requests refused meanwhile kept the queue too short to be measured."""
    stage = Stage(nursery, slo=Slo(p99=0.125), scheduling=DynamicBatching())
    batch = [1 / 64]
    nursery.start_soon(serve, stage.worker, lambda rows: batch[0])
    load = Load(stage, 256.0)
    nursery.start_soon(load.run)
    await load.for_seconds(2.0)
    batch[0] = 0.5
    await load.for_seconds(30.0)
    batch[0] = 1 / 64
    await load.for_seconds(10.0)
    counts, _ = await load.for_seconds(4.0)
    assert counts["refused"] == 0
    assert counts["answered"] >= 1000
