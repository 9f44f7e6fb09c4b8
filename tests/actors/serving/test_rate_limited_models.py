"""Models that share a resource, in virtual time.

The tests run schedulers, states and the limiter, with workers that finish on cue.
"""

from typing import Any

import pytest
import trio

from actors.serving.deaths import settle
from actors.serving.policy.rate_limits import PoolName, RateLimiter
from actors.serving.policy.retries import Aftermath
from actors.values.specs import DynamicBatching, InstanceSpec, QueueBounds, RateLimit, Resource
from tests.support.model_doubles import Stage

GPU = (Resource(name="gpu memory", count=1, shared=True),)


def instances(name, *, count=1, priority=0, resources=GPU, **options):
    limit = RateLimit(resources=resources, priority=priority)
    return tuple(InstanceSpec(name=f"{name}_0_{n}", rate_limit=limit, **options) for n in range(count))


@pytest.fixture
async def house(nursery):
    """Open models under one limiter; `house.limiter` is theirs."""

    class House:
        def __init__(self):
            self.limiter: Any = RateLimiter({})

        def model(self, name, *, count=1, priority=0, resources=GPU, options=None, **changes):
            specs = instances(name, count=count, priority=priority, resources=resources, **(options or {}))
            stage = Stage(nursery, name=name, instances=specs, **changes)
            stage.state.dispatcher.limiter = self.limiter
            entering = [(each, each.spec) for each in stage.state.rotation]
            self.limiter.enter(name, entering, stage.state.doorbell.ring)
            return stage

        @property
        def used(self):
            return self.limiter.statistics().pools[PoolName("gpu memory", "")].used

    return House()


@pytest.fixture
async def one(house):
    return house.model("one")


@pytest.fixture
async def other(house):
    return house.model("other")


async def work(*models, rounds):
    """Finish every execution, round after round; return the models in the order of execution."""
    order = []
    for _ in range(rounds):
        await trio.testing.wait_all_tasks_blocked()
        busy = [(model, worker) for model in models for worker in model.workers if worker.outstanding]
        assert len(busy) <= 1
        for model, worker in busy:
            order.append(model.state.spec.name)
            worker.finish()
    return order


async def test_two_models_that_share_a_resource_never_execute_at_once(one, other, house, autojump_clock):
    for _ in range(3):
        await one.sent()
        await other.send()
    assert await work(one, other, rounds=7) == ["one", "other"] * 3
    assert house.used == 0


async def test_a_limited_instance_is_given_no_batch_ahead(house, autojump_clock):
    model = house.model("model", capacity=2)
    await model.send()
    await model.sent()
    assert model.worker.sizes == [1]
    await model.finished()
    assert model.worker.sizes == [1, 1]


async def test_instances_of_a_model_that_together_need_more_than_there_is_take_turns(house, autojump_clock):
    model = house.model("model", count=3)
    for _ in range(6):
        await model.send()
    await work(model, rounds=7)
    assert [len(worker.sent) for worker in model.workers] == [2, 2, 2]


async def test_what_waits_for_a_resource_grows_into_a_batch(house, autojump_clock):
    one, other = house.model("one"), house.model("other", scheduling=DynamicBatching())
    await one.sent()
    for _ in range(5):
        await other.send()
    await other.settled()
    assert other.worker.sizes == []
    await one.finished()
    assert other.worker.sizes == [5]


async def test_a_death_hands_over_what_the_instance_held(one, other, house, autojump_clock):
    (held,) = [await one.sent()]
    await other.sent()
    assert other.worker.sizes == []
    one.worker.instance.worker = None
    one.worker.outstanding.clear()
    settle(one.state, one.worker.instance, Aftermath(requeue=(held,)))
    await other.settled()
    assert other.worker.sizes == [1]
    assert house.used == 1


async def test_a_batch_that_can_not_be_handed_over_holds_nothing(one, other, house, autojump_clock):
    one.worker.fail_next = OSError("no memory")
    lost = await one.sent()
    await other.sent()
    assert lost.reply.error is not None
    assert other.worker.sizes == [1]
    assert house.used == 1


async def test_a_model_whose_only_request_is_cancelled_in_line_holds_nobody_up(house, autojump_clock):
    both = (*GPU, Resource(name="other", count=1, shared=True))
    one, two = house.model("one"), house.model("two", resources=both)
    three = house.model("three", resources=both[1:])
    await one.sent()
    cancelled = await two.sent()
    await three.sent()
    assert three.worker.sizes == []  # the second is ahead of it
    two.state.cancel(cancelled)
    await three.settled()
    assert three.worker.sizes == [1]


async def test_a_queue_timeout_holds_nobody_up(house, autojump_clock):
    one, two, three = house.model("one"), house.model("two", queue_bounds=QueueBounds()), house.model("three")
    await one.sent()
    expiring = await two.sent(deadline=trio.current_time() + 1)
    await three.send()
    await trio.sleep(2)
    assert expiring.reply.error is not None
    await one.finished()
    assert three.worker.sizes == [1]


async def test_an_instance_that_hunts_for_a_deadly_request_waits_in_line_too(one, other, autojump_clock):
    await one.sent()
    suspects = [other.request(), other.request()]
    other.state.in_flight.update(dict.fromkeys(suspects))
    settle(other.state, other.worker.instance, Aftermath(suspects=tuple((each,) for each in suspects)))
    await other.settled()
    assert other.worker.sent == []
    await one.finished()
    assert [(requests, alone) for _, requests, alone in other.worker.sent] == [([suspects[0]], True)]
    await one.sent()
    assert one.worker.sizes == [1]
    assert await work(one, other, rounds=4) == ["other", "one", "other"]


async def test_a_scheduler_that_ends_leaves_the_line(one, other, house, autojump_clock):
    await one.sent()
    async with trio.open_nursery() as brief:
        crashing = Stage(brief, name="crashing", instances=instances("crashing"))
        crashing.state.dispatcher.limiter = house.limiter
        each = crashing.state.instances[0]
        house.limiter.enter("crashing", [(each, each.spec)], crashing.state.doorbell.ring)
        await crashing.sent()
        await other.sent()
        assert house.limiter.statistics().line[0] is each
        brief.cancel_scope.cancel()
    assert each not in house.limiter.statistics().line
    await one.finished()
    assert other.worker.sizes == [1]


async def test_an_instance_that_is_dismissed_while_it_executes_is_not_in_line_afterwards(
    house, autojump_clock
):
    one, other = house.model("one", count=2), house.model("other")
    for _ in range(4):
        await one.send()
    await one.settled()
    (busy,) = [worker for worker in one.workers if worker.outstanding]
    (idle,) = [worker for worker in one.workers if not worker.outstanding]
    await other.sent()
    for worker in (busy, idle):
        one.state.remove_instance(worker.instance)
    await one.settled()
    busy.finish()
    await other.settled()
    assert other.worker.sizes == [1]
    assert house.limiter.statistics().line == ()


async def test_each_lane_of_an_instance_needs_the_resource(house, autojump_clock):
    model = house.model("model", options={"lanes": 2}, capacity=2)
    await model.send()
    await model.sent()
    assert model.worker.sizes == [1]
