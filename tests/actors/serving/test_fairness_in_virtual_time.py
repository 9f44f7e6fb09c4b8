"""Tenants that share a model, from their callers to its batches, in virtual time."""

import math
from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio

from actors.values.errors import Cancelled, DeadlineExceeded, TritiumError, Unavailable
from actors.values.specs import Direct, DynamicBatching, Fairness, QueueBounds, QueuePolicy
from tests.support.model_doubles import Stage


async def serve(worker, seconds):
    """Finish each batch `seconds` after it was sent, for ever."""
    while True:
        if worker.outstanding:
            await trio.sleep(seconds)
            worker.finish()
        await trio.testing.wait_all_tasks_blocked()
        if not worker.outstanding:
            await trio.sleep(seconds)


async def keep_sending(stage, tenant, every, got, waits, **options):
    """Send a request each `every` seconds, each from its own task, like independent clients."""

    async def send():
        request = stage.request(**options)
        request.tenant = tenant
        try:
            await stage.state.submit(request)
        except TritiumError:
            got[tenant, "refused"] += 1
            return
        if await request.reply.wait():
            got[tenant] += 1
            waits.setdefault(tenant, []).append(trio.current_time() - request.accepted_at)

    async with trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(send)
            await trio.sleep(every)


SHARED = Fairness(tenant_header="x-tenant", weights={"a": 1.0, "b": 1.0, "flood": 1.0})


async def contend(seconds, *, fairness, batch=4, service=0.1, rates=(10.0, 10.0, 100.0), **changes):
    """Have three tenants contend for 40 requests a second; return each tenant's count and latencies."""
    got: Counter[str] = Counter()
    waits: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery, fairness=fairness, max_batch_size=batch, **changes)
        nursery.start_soon(serve, stage.worker, service)
        for tenant, rate in zip(("a", "b", "flood"), rates, strict=True):
            nursery.start_soon(partial(keep_sending, stage, tenant, 1 / rate, got, waits))
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return got, waits


@pytest.mark.slow  # tens of thousands of turns of the scheduler
@pytest.mark.parametrize("bounds", [QueueBounds(), QueueBounds(requests=24)])
async def test_a_tenant_that_floods_takes_nothing_of_the_others_shares(autojump_clock, bounds):
    fairness = SHARED
    got, waits = await contend(10.0, fairness=fairness, scheduling=DynamicBatching(), queue_bounds=bounds)
    for tenant in "ab":
        assert got[tenant] == pytest.approx(100, rel=0.1)  # all that it asked for
        assert max(waits[tenant]) < 1.0
    assert got["flood"] == pytest.approx(200, rel=0.1)  # and the rest is the flood's


@pytest.mark.slow
async def test_tenants_that_all_want_too_much_get_what_their_weights_say(autojump_clock):
    fairness = Fairness(tenant_header="x-tenant", weights={"a": 1.0, "b": 2.0, "flood": 1.0})
    got, _ = await contend(10.0, fairness=fairness, scheduling=DynamicBatching(), rates=(30.0, 30.0, 300.0))
    total = got["a"] + got["b"] + got["flood"]
    assert got["a"] == pytest.approx(total / 4, rel=0.1)
    assert got["b"] == pytest.approx(total / 2, rel=0.1)
    assert got["flood"] == pytest.approx(total / 4, rel=0.1)


@pytest.mark.slow
async def test_the_same_flood_without_fair_queues_starves_the_others(autojump_clock):
    got, waits = await contend(20.0, fairness=None, scheduling=DynamicBatching())
    assert got["a"] < 160
    assert max(waits["a"]) > 5.0


async def test_a_caller_that_waits_for_room_waits_behind_its_own_tenant_only(autojump_clock, nursery):
    stage = Stage(nursery, fairness=SHARED, scheduling=Direct(), queue_bounds=QueueBounds(requests=4))
    running = await stage.sent(1)
    flood = []
    for _ in range(6):
        request = stage.sending()
        request.tenant = "flood"
        flood.append(request)
        await stage.settled()
    assert [request.reply.admitted for request in flood] == [True, True, False, False, False, False]
    other = stage.sending()
    other.tenant = "a"
    await stage.settled()
    assert other.reply.admitted
    for _ in range(8):
        await stage.finished()
    arrived = [port for port in stage.arrivals if port is not running.reply]
    assert arrived.index(other.reply) <= 1
    assert [port for port in arrived if port is not other.reply] == [request.reply for request in flood]


async def test_a_tenant_at_its_bound_is_let_in_as_its_own_requests_leave(autojump_clock, nursery):
    fairness = Fairness(tenant_header="x-tenant", max_queued=1)
    stage = Stage(nursery, fairness=fairness, scheduling=Direct())
    requests = []
    for _ in range(3):
        request = stage.sending()
        request.tenant = "a"
        requests.append(request)
        await stage.settled()
    assert [request.reply.admitted for request in requests] == [True, True, False]
    await stage.finished()
    assert requests[2].reply.admitted


async def test_a_caller_that_leaves_or_runs_out_of_time_makes_way(autojump_clock, nursery):
    fairness = Fairness(tenant_header="x-tenant", max_queued=1)
    stage = Stage(nursery, fairness=fairness, scheduling=Direct())
    requests = []
    for n in range(5):
        requests.append(stage.sending(deadline=stage.start + (5.0 if n == 3 else math.inf)))
        await stage.settled()
    stage.state.cancel(requests[2])
    await stage.settled()
    assert isinstance(requests[2].reply.refused, Cancelled)
    await trio.sleep(6.0)
    assert isinstance(requests[3].reply.refused, DeadlineExceeded)
    await stage.finished()
    assert requests[4].reply.admitted


async def test_a_tenant_beyond_its_bound_is_refused_and_told_when_to_come_back(autojump_clock, nursery):
    fairness = Fairness(tenant_header="x-tenant", max_queued=1, refuses=True)
    stage = Stage(nursery, fairness=fairness, scheduling=Direct())
    await stage.sent()
    await stage.send()
    with pytest.raises(Unavailable) as caught:
        await stage.send()
    assert caught.value.retry_after == 1.0


@pytest.mark.parametrize("age", [0.0, 1.0])
async def test_ageing_keeps_a_level_from_starving(autojump_clock, nursery, age):
    scheduling = DynamicBatching(
        priority_levels=2, default_priority_level=1, default_queue_policy=QueuePolicy()
    )
    fairness = Fairness(ageing=age) if age else None
    stage = Stage(nursery, scheduling=scheduling, fairness=fairness, max_batch_size=1)
    nursery.start_soon(serve, stage.worker, 0.1)
    got: Counter[str] = Counter()
    waits: dict[str, Any] = {}
    nursery.start_soon(partial(keep_sending, stage, "high", 0.08, got, waits))
    await trio.sleep(1.0)
    low = await stage.send(priority=2)
    await trio.sleep(15.0)
    assert low.reply.answered == bool(age)


async def test_what_tenants_got_is_told_with_the_statistics(autojump_clock, nursery):
    stage = Stage(nursery, fairness=SHARED, scheduling=Direct())
    request = stage.request()
    request.tenant = "a"
    await stage.state.submit(request)
    await stage.settled()
    described: Any = stage.state.describe_statistics()
    tenants = described["tritium"]["tenants"]
    assert tenants["a"] == {"requests": 1, "rows": 1, "share": 1.0, "refused": 0, "queued": 0}
    assert set(tenants) == {"a", "b", "flood", "other"}


async def test_models_without_tenants_tell_what_triton_tells(autojump_clock, nursery):
    assert "tritium" not in Stage(nursery).state.describe_statistics()
