"""The two gauges of all requests: what waits and what runs, through deaths, queues and ends."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.serving.deaths import settle
from actors.serving.instances.batches import InFlight
from actors.serving.policy.retries import Aftermath
from actors.serving.routing.roster import Roster
from actors.serving.standing import Status
from actors.values.interfaces import ModelLoad
from actors.values.specs import DynamicBatching, InstanceSpec
from engine.observability.pending import LoadReports, RequestLoad, request_load, total_load, waiting_requests
from tests.support.model_doubles import FakeSlot, Stage


@pytest.fixture
async def stage(nursery):
    def make(**changes):
        return Stage(nursery, **changes)

    return make


async def test_what_executes_runs_and_what_is_queued_waits(stage, autojump_clock):
    model = stage(scheduling=DynamicBatching())
    for _ in range(6):
        await model.send()
        await model.settled()
    assert request_load(model.state) == RequestLoad(pending=5, running=1)
    await model.finished()
    assert request_load(model.state) == RequestLoad(pending=0, running=5)
    await model.finished()
    assert request_load(model.state) == RequestLoad()


async def test_versions_are_counted_together(stage, autojump_clock):
    models = [
        stage(name=name, instances=tuple(InstanceSpec(name=f"{name}_{n}") for n in range(lanes)))
        for name, lanes in (("one", 1), ("two", 2))
    ]
    for model in models:
        for _ in range(3):
            await model.send()
        await model.settled()
    assert total_load(model.state for model in models) == RequestLoad(pending=3, running=3)
    assert total_load([]) == RequestLoad()


async def test_after_a_death_requests_that_run_again_wait_and_each_is_counted_once(stage, autojump_clock):
    model = stage(scheduling=DynamicBatching())
    first = await model.sent()
    second = await model.send()
    await model.settled()
    model.state.instances[0].worker = None
    model.worker.outstanding.clear()
    assert request_load(model.state) == RequestLoad(pending=1, running=1)  # not buried yet
    settle(model.state, model.worker.instance, Aftermath(requeue=(first,)))
    assert request_load(model.state) == RequestLoad(pending=2, running=0)
    model.state.instance_ready(model.worker.instance, model.worker)
    await model.settled()
    assert request_load(model.state) == RequestLoad(pending=0, running=2)
    await model.finished()
    assert first.reply.answered
    assert second.reply.answered
    assert request_load(model.state) == RequestLoad()


async def test_suspects_of_a_death_wait_for_their_turn(stage, autojump_clock):
    model = stage(scheduling=DynamicBatching())
    first = await model.sent()
    model.state.instances[0].worker = None
    model.worker.outstanding.clear()
    settle(model.state, model.worker.instance, Aftermath(suspects=((first,),)))
    assert request_load(model.state) == RequestLoad(pending=1, running=0)


async def test_the_requests_of_an_ensemble_and_of_an_engine_are_others(stage, autojump_clock):
    model, engine = stage(), stage()
    await engine.send()
    await engine.settled()
    engine.state.whole = model.state
    assert request_load(engine.state) == RequestLoad()
    told = cast("Any", SimpleNamespace(composite=SimpleNamespace(), whole=None, in_flight={1: None}))
    assert (request_load(told), waiting_requests(told)) == (RequestLoad(), 0)  # an ensemble


# -- the load of one model


def reports(*models, cache=None):
    """Return what tells the loads of these versions, which serve, each under its own name."""
    roster = Roster()
    for model in models:
        roster.serve(model.state.spec.key, {model.state.spec.version: model.state})
    return LoadReports(roster, lambda key, version: cache)


def batch(number, *requests, began_at):
    return InFlight(number, list(requests), cast("Any", FakeSlot()), alone=False, began_at=began_at)


async def test_a_model_is_as_busy_as_its_lanes_that_execute(stage, autojump_clock):
    model = stage(name="two", instances=tuple(InstanceSpec(name=f"two_{n}") for n in range(2)))
    loads = reports(model)
    assert loads.of(model.state) == ModelLoad(queue_depth=0, utilization=0.0)
    instance = model.state.instances[0]
    instance.held.outstanding[1] = batch(1, began_at=0.0)
    assert loads.of(model.state).utilization == 0.5
    instance.held.outstanding[2] = batch(
        2, model.request(), model.request(), model.request(), began_at=math.inf
    )
    assert loads.of(model.state) == ModelLoad(queue_depth=3, utilization=0.5)
    instance.worker = None
    assert loads.of(model.state).utilization == 0.0  # of the instance that lives
    model.state.instances[1].worker = None
    assert loads.of(model.state).utilization is None


async def test_an_ensemble_is_as_busy_as_its_busiest_model_and_a_split_as_its_versions(stage, autojump_clock):
    one, two = stage(name="one"), stage(name="two")
    one.state.instances[0].held.outstanding[1] = batch(1, began_at=0.0)
    for each in (one, two):
        each.state.standing.become(Status.READY)
    loads = reports(one, two)
    ensemble = stage(name="both", depends_on=("one", "two", "missing"), instances=())
    ensemble.state.composite = cast("Any", SimpleNamespace())
    assert loads.of(ensemble.state) == ModelLoad(queue_depth=0, utilization=1.0)
    split = cast("Any", SimpleNamespace(spec=two.state.spec))
    assert loads.of(split) == ModelLoad(queue_depth=0, utilization=0.0)
    nowhere = cast("Any", SimpleNamespace(spec=ensemble.state.spec))
    assert loads.of(nowhere) == ModelLoad()
