"""The recycler of a version, in virtual time, with instances that are played by the test."""

import itertools

import pytest
import trio

from actors.serving.instances.recycling import Recycler
from actors.serving.model import ModelState
from actors.serving.policy.recycling import AFTER_FAILURE, LOOK_EVERY, REST
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.errors import Internal
from actors.values.specs import InstanceSpec, Recycle
from tests.support.doubles import Double
from tests.support.model_doubles import make_spec

LOAD_SECONDS = 2.0


class PlayedWorker(Double):
    """The part of `LiveWorker` that these tests use."""

    def __init__(self):
        self.given = 0
        self.serving_since = trio.current_time()
        self.farewell = "stopped"
        self.idle = True
        self.retired = False

    def not_begun(self):
        return []  # the tests give it no batches


class Stage:
    """A version, its recycler, and the actor that replaces instances.

    Implements `actors.serving.instances.recycling.Instances`.
    """

    def __init__(self, nursery, *, count=1, **ceilings):
        specs = tuple(InstanceSpec(name=f"model_0_{n}") for n in range(count))
        self.state = ModelState(
            make_spec(instances=specs),
            statistics=ModelStatistics(),
            on_status=lambda state: None,
            wall_clock=lambda: 0,
        )
        self.pids = itertools.count(100)
        self.memory, self.refuse = {}, None
        self.replacing = self.most_at_once = 0
        self.logged = []
        self.may_retire = trio.Event()
        self.may_retire.set()
        for each in self.state.instances:
            self.serve(each)
        recycler = Recycler(
            self.state, Recycle(**ceilings), instances=self, measure=self._measure, log=self._log
        )
        self.root = Supervisor([ChildSpec("recycler", recycler.run)])
        nursery.start_soon(self.root.serve)

    def serve(self, each):
        each.pid = next(self.pids)
        self.state.instance_ready(each, PlayedWorker())

    def _log(self, event, *, level="info", **keys):
        self.logged.append((str(event), level, keys))

    async def _measure(self, pid):
        return self.memory.get(pid, 0)

    async def replace(self, state, each):
        self.replacing += 1
        self.most_at_once = max(self.most_at_once, self.replacing)
        try:
            await trio.sleep(LOAD_SECONDS)
            if self.refuse is not None:
                raise self.refuse
            assert each.worker is not None  # it serves all the while
            (fresh,) = state.standing.add_instances([each.spec])
            self.serve(fresh)
            state.remove_instance(each)
            return fresh
        finally:
            self.replacing -= 1

    async def retire(self, state, each):
        await self.may_retire.wait()
        each.worker.retired = True

    @property
    def recycled(self):
        return dict(self.state.statistics.recycled)


@pytest.fixture
async def stage(nursery):
    def make(**options):
        return Stage(nursery, **options)

    yield make
    nursery.cancel_scope.cancel()


@pytest.fixture
async def play(stage):
    """One instance, which is replaced after a request."""
    return stage(requests=1)


async def test_a_worker_that_reaches_a_ceiling_is_replaced_and_then_retired(stage, autojump_clock):
    play = stage(requests=10)
    (old,) = play.state.instances
    old.worker.given = 9
    await trio.sleep(10)
    assert play.recycled == {}
    old.worker.given = 10
    await trio.sleep(LOOK_EVERY + LOAD_SECONDS + 0.1)
    assert play.recycled == {"requests": 1}
    assert old not in play.state.instances
    assert old.worker.retired
    assert old.worker.farewell == "recycled"
    ((event, level, keys),) = play.logged
    assert (event, level) == ("worker_recycled", "info")
    assert keys["ceiling"] == "requests"
    assert (keys["pid"], keys["replacement"]) == (100, 101)
    assert keys["seconds"] == pytest.approx(LOAD_SECONDS)


async def test_memory_is_that_of_the_worker_and_nobody_elses(stage, autojump_clock):
    play = stage(count=2, memory=1000)
    first, second = play.state.instances
    play.memory = {first.pid: 999, second.pid: 1000}
    await trio.sleep(LOOK_EVERY + LOAD_SECONDS + 0.1)
    assert first in play.state.instances
    assert second not in play.state.instances
    assert play.recycled == {"memory": 1}


async def test_workers_that_grow_old_together_are_replaced_one_after_the_other(stage, autojump_clock):
    play = stage(count=3, seconds=100.0)
    old = list(play.state.instances)
    await trio.sleep(100 + LOAD_SECONDS + 1)
    assert sum(each in play.state.instances for each in old) == 2
    await trio.sleep(3 * LOAD_SECONDS * (1 + REST))
    assert not any(each in play.state.instances for each in old)
    assert play.most_at_once == 1
    assert play.recycled == {"seconds": 3}


async def test_the_age_of_a_replacement_counts_from_its_own_start(stage, autojump_clock):
    play = stage(seconds=100.0)
    await trio.sleep(150)
    assert play.recycled == {"seconds": 1}
    await trio.sleep(100)
    assert play.recycled == {"seconds": 2}


async def test_a_ceiling_below_what_a_fresh_worker_takes_leaves_most_of_the_time_to_requests(
    stage, autojump_clock
):
    play = stage(memory=1)
    play.memory = dict.fromkeys(range(100, 1000), 2)
    await trio.sleep(100)
    cycle = LOAD_SECONDS * (1 + REST)
    assert 100 / cycle - 2 <= play.recycled["memory"] <= 100 / cycle + 1


async def test_where_the_replacement_cannot_be_loaded_the_worker_goes_on_and_it_is_tried_later(
    play, autojump_clock
):
    (old,) = play.state.instances
    old.worker.given = 5
    play.refuse = Internal("Internal: the model file is not there")
    await trio.sleep(LOOK_EVERY + LOAD_SECONDS + 0.1)
    assert play.state.instances == [old]
    assert old.worker.farewell == "stopped"
    ((_, level, keys),) = play.logged
    assert level == "warning"
    assert keys["error"] == "Internal: the model file is not there"
    play.refuse = None
    await trio.sleep(AFTER_FAILURE - 1)
    assert play.recycled == {}
    await trio.sleep(LOAD_SECONDS + 2)
    assert play.recycled == {"requests": 1}


async def test_the_next_one_is_not_replaced_before_the_last_has_gone(stage, autojump_clock):
    play = stage(count=2, requests=1)
    for each in play.state.instances:
        each.worker.given = 1
    play.may_retire = trio.Event()
    await trio.sleep(100)
    assert play.recycled == {"requests": 1}
    play.may_retire.set()
    await trio.sleep(LOAD_SECONDS * (2 + REST))
    assert play.recycled == {"requests": 2}


async def test_what_was_replaced_is_ended_by_the_next_life_of_a_recycler_that_crashes_meanwhile(
    play, autojump_clock
):
    old = play.state.instances[0]
    old.worker.given = 1
    play.may_retire = trio.Event()
    await trio.sleep(1 + LOAD_SECONDS)
    assert play.recycled == {"requests": 1}
    play.root.kill("recycler")
    await trio.sleep(1)
    play.may_retire.set()
    await trio.sleep(1)
    assert old.worker.retired


async def test_nothing_is_replaced_in_a_version_that_retires(play, autojump_clock):
    play.state.instances[0].worker.given = 1
    play.state.standing.become(Status.UNLOADING)
    await trio.sleep(10)
    assert play.recycled == {}


async def test_an_instance_whose_worker_is_dead_is_its_supervisors_business(play, autojump_clock):
    play.state.instances[0].worker.given = 1
    play.state.instances[0].worker = None
    await trio.sleep(10)
    assert play.recycled == {}
