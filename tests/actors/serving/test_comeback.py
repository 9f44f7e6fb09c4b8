"""After a crash of the supervisor of all versions: one instance of each starts before the others do."""

import pytest
import trio

from actors.serving.instances.comeback import PATIENCE, Comeback
from actors.serving.routing.router import Router
from actors.serving.standing import InstanceState, Status
from actors.supervision.context import Stopping
from actors.supervision.supervisor import Supervisor
from actors.values.specs import InstanceSpec
from engine.server.version_tree import ModelSubtrees
from engine.settings.reporting import MetricsSettings
from tests.support.doubles import Double
from tests.support.model_doubles import FakeWorker, make_spec


def crowd(*counts, passive=()):
    """Return the instances of one version per count; places in `passive` are passive in all versions."""
    return [
        [
            InstanceState(InstanceSpec(name=f"m{version}_{each}", passive=each in passive), str(each))
            for each in range(count)
        ]
        for version, count in enumerate(counts)
    ]


class Starts:
    """Starts instances as `comeback` lets them, and notes their names in order."""

    def __init__(self, nursery, comeback, versions):
        self.stopping = Stopping()
        self.names = []
        for each in (each for version in versions for each in version):
            nursery.start_soon(self._start, comeback, each)

    async def _start(self, comeback, each):
        await comeback.wait_turn(each, self.stopping)
        self.names.append(each.spec.name)

    async def settled(self):
        await trio.testing.wait_all_tasks_blocked()
        return sorted(self.names)


@pytest.fixture
async def begin(nursery):
    def begin(versions, *, cores):
        comeback = Comeback(versions, cores=cores)
        return comeback, Starts(nursery, comeback, versions)

    return begin


async def test_the_others_start_when_one_of_each_version_serves_or_has_died(begin, autojump_clock):
    versions = crowd(2, 3)
    comeback, starts = begin(versions, cores=2)
    assert await starts.settled() == ["m0_0", "m1_0"]
    comeback.over(versions[0][0])
    assert await starts.settled() == ["m0_0", "m1_0"]
    comeback.over(versions[1][0])
    assert await starts.settled() == ["m0_0", "m0_1", "m1_0", "m1_1", "m1_2"]


async def test_where_there_are_cores_for_all_nobody_waits(begin, autojump_clock):
    _, starts = begin(crowd(2, 3), cores=5)
    assert len(await starts.settled()) == 5


async def test_nobody_waits_for_long(begin, autojump_clock):
    _, starts = begin(crowd(2), cores=1)
    await trio.sleep(PATIENCE - 0.1)
    assert await starts.settled() == ["m0_0"]
    await trio.sleep(0.2)
    assert await starts.settled() == ["m0_0", "m0_1"]


async def test_one_that_executes_comes_before_one_that_is_passive(begin, autojump_clock):
    _, starts = begin(crowd(3, passive=(0,)), cores=1)
    assert await starts.settled() == ["m0_1"]


async def test_who_is_asked_to_stop_waits_no_more(begin, autojump_clock):
    _, starts = begin(crowd(2), cores=1)
    await starts.settled()
    starts.stopping.set()
    assert await starts.settled() == ["m0_0", "m0_1"]


async def test_a_second_life_does_not_wait(autojump_clock):
    versions = crowd(2)
    comeback = Comeback(versions, cores=1)
    with trio.move_on_after(1):
        await comeback.wait_turn(versions[0][1], Stopping())
    with trio.fail_after(1):
        await comeback.wait_turn(versions[0][1], Stopping())


class Launches(Double):
    """A launcher that notes which instances are to be started; its workers never come into existence."""

    def __init__(self):
        self.names = []

    async def launch(self, spec, instance):
        self.names.append(instance.name)
        await trio.sleep_forever()


async def test_all_versions_come_back_with_one_instance_of_each_first(nursery, autojump_clock):
    launches = Launches()
    models = Supervisor(lambda: subtrees.standing())
    subtrees = ModelSubtrees(
        models,
        Router(),
        launches,
        log=lambda event, **keys: None,
        metrics=MetricsSettings(),
        stop_within=10.0,
        cores=2,
        serving=lambda: False,
    )
    root = Supervisor([models.spec("models")])
    await nursery.start(root.serve)
    states = []
    for name in ("a", "b"):
        instances = tuple(InstanceSpec(name=f"{name}_{each}") for each in range(2))
        state = subtrees.make_state(make_spec(name=name, instances=instances))
        await subtrees.start(state)
        for each in state.instances:
            state.instance_ready(each, FakeWorker(state, each))
        states.append(state)
    await trio.testing.wait_all_tasks_blocked()
    assert launches.names == ["a_0", "a_1", "b_0", "b_1"]

    root.kill("models")
    await trio.testing.wait_all_tasks_blocked()
    assert launches.names[4:] == ["a_0", "b_0"]
    root.kill("models/a/1/instances/0")
    root.kill("models/b/1/instances/0")
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(launches.names[6:]) == ["a_0", "a_1", "b_0", "b_1"]
    assert [state.status for state in states] == [Status.READY, Status.READY]
    nursery.cancel_scope.cancel()
