"""Engines that show no sign of life, in virtual time: which are ended, and which are asked for one."""

import json
import math
from types import SimpleNamespace

import pytest
import trio

from actors.generation.engine import engine_spec
from actors.generation.pulse import Pulse
from actors.serving.model import ModelState
from actors.serving.statistics import ModelStatistics
from actors.supervision.context import Stopping
from actors.values.errors import InvalidArgument, WorkerLost
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferResponse
from actors.values.specs import InstanceSpec
from tests.support.model_doubles import Context, make_spec


class Batch:
    """A request that an engine has."""

    def __init__(self, prompt):
        tensor = SimpleNamespace(shape=(prompt,))
        self.requests = [SimpleNamespace(inputs=[tensor])]
        self.started_at = math.inf


class Engine:
    """A worker as the pulse sees it."""

    sleep_state = SleepState.AWAKE

    def __init__(self):
        self.batches: list[Batch] = []
        self.parts = self.steps = 0
        self.stuck_since = math.inf
        self.silent_for = 0.0
        self.has_room = True
        self.full = False
        self.ended: list[float] = []
        self.probes: list[object] = []
        self.held = SimpleNamespace(all=lambda: self.batches)

    @property
    def idle(self):
        return not self.batches

    def hangs(self, limit):
        self.ended.append(limit)

    def dispatch(self, requests, *, now):
        if self.full:
            raise OSError("no memory")
        (request,) = requests
        self.probes.append(json.loads(request.inputs[1].as_numpy()[0]))
        self.batches.append(Batch(1))
        self.request = request


class PulseContext(Context):
    def __init__(self):
        self.stopping = Stopping()


@pytest.fixture
async def watch(nursery):
    """Watch engines; return the version's standing."""

    def watch(*workers, **options):
        instances = tuple(InstanceSpec(name=f"i{number}") for number, _ in enumerate(workers))
        state = ModelState(
            engine_spec(make_spec(instances=instances)),
            statistics=ModelStatistics(),
            on_status=lambda state: None,
            wall_clock=lambda: 0,
        )
        for instance, worker in zip(state.instances, workers, strict=True):
            state.standing.joined(instance, worker)
        nursery.start_soon(Pulse(state, **{"within": 60.0, **options}).run, PulseContext())
        return state.standing

    yield watch
    nursery.cancel_scope.cancel()


async def test_an_engine_that_stands_still_is_ended_and_its_neighbour_is_not(watch, autojump_clock):
    still, busy, idle = Engine(), Engine(), Engine()
    standing = watch(still, busy, idle)
    still.batches = [Batch(10)]
    busy.batches = [Batch(10)]
    for _ in range(60):
        busy.steps += 1
        await trio.sleep(1.0)
    assert (still.ended, busy.ended, idle.ended) == ([], [], [])
    assert still.silent_for == 30.0
    assert standing.silent_for == 0.0, "others live"
    busy.steps += 1
    await trio.sleep(1.5)
    assert (still.ended, busy.ended, idle.ended) == ([60.0], [], [])


async def test_the_version_is_silent_where_all_of_its_engines_are(watch, autojump_clock):
    engine = Engine()
    standing = watch(engine)
    assert standing.silent_for == 0.0
    engine.batches = [Batch(10)]
    await trio.sleep(35.0)
    assert standing.silent_for == 30.0
    engine.parts += 1
    await trio.sleep(1.1)
    assert standing.silent_for == 0.0


async def test_an_idle_engine_is_asked_for_a_token_and_ended_where_it_gives_none(watch, autojump_clock):
    engine = Engine()
    watch(engine, probe_every=100.0)
    await trio.sleep(99.0)
    assert engine.probes == []
    await trio.sleep(3.0)
    assert engine.probes == [{"max_tokens": 1, "temperature": 0.0}]
    assert engine.request.synthetic
    await trio.sleep(70.0)
    assert engine.ended[0] == 60.0
    engine.request.reply.put(WorkerLost("it died", how="it died", blamed=True), final=True)


async def test_an_engine_that_only_embeds_is_asked_for_that(watch, autojump_clock):
    engine = Engine()
    watch(engine, probe_every=10.0)
    for answer in (
        InvalidArgument("it generates nothing"),
        InferResponse(model_name="m", model_version=1, outputs=[]),
    ):
        await trio.sleep(13.0)
        engine.batches.clear()
        engine.parts += 1
        engine.request.reply.put(answer, final=True)
    await trio.sleep(13.0)
    assert engine.probes[1:] == [{"embed": True, "dimensions": None}] * 2


async def test_what_can_not_be_probed_now_is_probed_later(watch, autojump_clock):
    engine = Engine()
    watch(engine, probe_every=10.0)
    engine.has_room = False
    await trio.sleep(20.0)
    engine.has_room, engine.full = True, True
    await trio.sleep(2.0)
    engine.full = False
    await trio.sleep(7.0)
    assert engine.probes == []
    await trio.sleep(4.0)
    assert len(engine.probes) == 1


async def test_engines_are_not_probed_unless_that_is_wanted(watch, autojump_clock):
    engine = Engine()
    watch(engine)
    await trio.sleep(10_000.0)
    assert engine.probes == []


@pytest.mark.parametrize("state", [SleepState.ASLEEP, SleepState.WAKING])
async def test_engines_that_sleep_are_left_alone(watch, autojump_clock, state):
    engine = Engine()
    engine.batches = [Batch(10)]
    standing = watch(engine, probe_every=10.0)
    await trio.sleep(40.0)
    assert standing.silent_for == 30.0
    engine.sleep_state = state
    await trio.sleep(1000.0)
    assert (engine.ended, engine.probes, standing.silent_for) == ([], [], 0.0)
    engine.sleep_state = SleepState.AWAKE
    await trio.sleep(50.0)
    assert engine.ended == [], "its silence counts from when it woke"
    await trio.sleep(20.0)
    assert engine.ended


async def test_one_that_does_not_fall_asleep_hangs(watch, autojump_clock):
    engine = Engine()
    watch(engine)
    engine.sleep_state = SleepState.FALLING
    engine.batches = [Batch(0)]
    await trio.sleep(65.0)
    assert engine.ended
