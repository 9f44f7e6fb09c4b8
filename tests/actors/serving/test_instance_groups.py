"""Which instance a batch goes to, and which get none, in virtual time."""

import pytest

from actors.serving.deaths import settle
from actors.serving.instances.launching import threads_for
from actors.serving.policy.retries import Aftermath
from actors.serving.standing import Status
from actors.values.specs import InstanceSpec
from tests.support.model_doubles import Stage, make_spec


@pytest.fixture
async def stage(nursery):
    def make(**changes):
        return Stage(nursery, **changes)

    return make


def group(*, count=1, number=0, **options):
    return tuple(InstanceSpec(name=f"model_{number}_{n}", **options) for n in range(count))


async def test_instances_of_all_groups_share_one_queue(stage, autojump_clock):
    model = stage(instances=group(count=2) + group(number=1, kind="MODEL"))
    for _ in range(3):
        await model.send()
    await model.settled()
    assert [len(worker.sent) for worker in model.workers] == [1, 1, 1]


async def test_a_passive_instance_is_given_nothing_however_busy_the_others_are(stage, autojump_clock):
    model = stage(instances=group(passive=True) + group(number=1), capacity=2)
    for _ in range(4):
        await model.send()
    for _ in range(4):
        await model.settled()
        model.workers[1].finish()
    assert [len(worker.sent) for worker in model.workers] == [0, 4]


async def test_a_version_is_ready_when_its_passive_instances_are_loaded_too(stage, autojump_clock):
    model = stage(instances=group() + group(number=1, passive=True), ready=False)
    model.state.instance_ready(model.workers[0].instance, model.workers[0])
    assert model.state.status is Status.LOADING
    model.state.instance_ready(model.workers[1].instance, model.workers[1])
    assert model.state.status is Status.READY


async def test_a_model_of_which_only_passive_instances_are_left_is_unavailable(stage, autojump_clock):
    model = stage(instances=group() + group(number=1, passive=True))
    worker = model.workers[0]
    worker.instance.worker = None
    settle(model.state, worker.instance, Aftermath())
    model.state.instance_exhausted(worker.instance)
    assert model.state.status is Status.UNAVAILABLE


async def test_passive_instances_come_and_go_with_the_configuration(stage, autojump_clock):
    model = stage()
    (added,) = model.state.standing.add_instances(group(number=1, passive=True))
    assert added in model.state.instances
    assert added not in model.state.rotation
    model.state.remove_instance(added)
    assert added not in model.state.instances


async def test_an_idle_instance_goes_before_one_with_more_lanes_free(stage, autojump_clock):
    model = stage(instances=group(lanes=4) + group(number=1), capacity=4)
    for _ in range(2):
        await model.sent()
    assert [len(worker.sent) for worker in model.workers] == [1, 1]


async def test_of_busy_instances_that_with_the_most_lanes_free_is_next(stage, autojump_clock):
    model = stage(instances=group() + group(number=1, lanes=4), capacity=8)
    for _ in range(5):
        await model.sent()
    assert [len(worker.sent) for worker in model.workers] == [1, 4]  # and nothing was sent ahead
    for _ in range(2):
        await model.sent()
    assert [len(worker.sent) for worker in model.workers] == [2, 5]  # in turn


def test_passive_instances_take_no_share_of_the_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    spec = make_spec(instances=group(count=2) + group(number=1, count=6, passive=True))
    assert threads_for(spec, spec.instances[0]) == 4


def test_instances_share_the_cores_that_they_are_bound_to(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    spec = make_spec(instances=group(count=2, cores=(0, 1, 2, 3, 4, 5)) + group(number=1, cores=(6,)))
    assert [threads_for(spec, each) for each in spec.instances] == [3, 3, 1]
