"""What a model's lifecycle must survive: crashes and cancellations halfway, and orders that collide."""

import math
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from actors.catalog.catalog import ControlMode
from actors.catalog.found import FoundModel, Override
from actors.catalog.operations import Unreadable
from actors.seams import faults
from actors.serving.deaths import settle
from actors.serving.model import ModelState
from actors.serving.policy.retries import Aftermath
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.supervision.spec import Strategy
from actors.supervision.supervisor import Supervisor
from actors.values.errors import ErrorCode, Internal, TritiumError, Unavailable
from actors.values.interfaces import DUPLICATE_REASON
from actors.values.specs import InstanceSpec, ModelKey, Residency
from engine.repository.copies import Janitor
from engine.repository.fingerprint import Digests
from engine.repository.local import LocalSource
from engine.repository.reader import ReadOptions, RepositoryReader
from engine.repository.source import Fetched
from engine.server.version_tree import ModelSubtrees
from engine.settings.reporting import MetricsSettings
from tests.support.catalog_doubles import EXPLICIT, World, failure, model, superseded_load
from tests.support.doubles import Double, ServedDouble
from tests.support.logged import Logged
from tests.support.model_doubles import FakeWorker, make_request, make_spec
from tests.support.tasks import outcome_of

M = ModelKey("m")


def dormant(spec):
    return ServedDouble.of(spec)


async def hold(state):
    """Have a version that will retire answer nothing for now; return what ends that."""
    request = make_request()
    await state.submit(request)
    state.queue.take(1)
    return lambda: state.outcome.fail(request, Unavailable("answered"), FailureReason.OTHER)


def duplicate(name="m"):
    return FoundModel(key=ModelKey(name), reason=DUPLICATE_REASON, duplicate=True, content="both")


# -- crashes


async def test_a_retirement_goes_on_after_its_supervisor_was_restarted(loaded, autojump_clock):
    world, state = await loaded(model("m"))
    answer = await hold(state)
    await world.catalog.unload("m")
    world.root.kill("retirements")
    await trio.sleep(2)
    assert state not in world.tree.ended
    assert world.index("m") == [("m", 1, "UNLOADING", "")]
    answer()
    await state.standing.ended.wait()
    assert state in world.tree.ended
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]
    assert all(copy.removed for copy in world.source.copies)


@pytest.mark.parametrize(
    "kill",
    [
        lambda world, state: world.root.kill("retirements"),
        lambda world, state: world.retirements.kill(f"retirements/{state.subtree}"),
    ],
    ids=["with its supervisor", "alone"],
)
async def test_a_retirement_that_is_restarted_keeps_its_deadline(loaded, autojump_clock, kill):
    world, state = await loaded(model("m", drain_timeout=10.0))
    await hold(state)
    begun = trio.current_time()
    await world.catalog.unload("m")
    await trio.sleep(6)
    kill(world, state)
    with trio.fail_after(60):
        await state.standing.ended.wait()
    assert trio.current_time() - begun == pytest.approx(10)


@contextmanager
def crashes(point, *, times=1):
    """Make the first `times` callers of the fault point crash."""
    left = times

    def crash():
        nonlocal left
        left -= 1
        if left >= 0:
            raise ValueError("a bug")

    points = faults.Points()
    with faults.given(points):
        points.arm(point, crash)
        yield


async def test_a_retirement_that_crashes_is_taken_up_again_at_once(loaded, autojump_clock):
    world, state = await loaded(model("m"))
    answer = await hold(state)
    begun = trio.current_time()
    with crashes("deployment.retirement"):
        await world.catalog.unload("m")
        await wait_all_tasks_blocked()
    answer()
    with trio.fail_after(60):
        await state.standing.ended.wait()
    assert trio.current_time() == begun
    assert world.tree.ended == [state]
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]
    assert all(copy.removed for copy in world.source.copies)
    await wait_all_tasks_blocked()
    assert world.retirements.which_children() == ()


async def test_a_retirement_that_keeps_crashing_disturbs_no_other(loaded, autojump_clock):
    world, other = await loaded(model("m"), model("n"))
    await world.catalog.load("m", {})
    (state,) = world.serving("m").values()
    answer = await hold(other)
    await world.catalog.unload("n")
    await wait_all_tasks_blocked()
    with crashes("deployment.retirement", times=20):
        await world.unload("m")
        answer()
        with trio.fail_after(1):
            await other.standing.ended.wait()
        with trio.fail_after(600):
            await state.standing.ended.wait()
    (catalog,) = [each for each in world.root.tree().children if each.name == "catalog"]
    assert catalog.restarts == 0


async def test_a_version_that_could_not_be_ended_is_ended_by_the_next_life_of_its_retirement(
    loaded, autojump_clock
):
    world, state = await loaded(model("m"))
    end = world.tree.end

    async def crash(_):
        world.tree.end = end
        raise ValueError("a bug")

    world.tree.end = crash
    await world.catalog.unload("m")
    with trio.fail_after(60):
        await state.standing.ended.wait()
    assert world.tree.ended == [state]
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]


async def test_a_catalog_that_keeps_crashing_ends_nothing_that_serves(nursery, autojump_clock):
    world: Any = World(model("m"), mode=ControlMode.POLL)
    listing, world.source.listing = world.source.listing, None  # what is called then is no function
    world.root = Supervisor(
        [world.lanes.spec("lanes"), world.retirements.spec("retirements"), world.catalog.spec()],
        strategy=Strategy.REST_FOR_ONE,
    )
    await world.begin(nursery, wait=False)
    await trio.sleep(20)
    assert world.root.is_running
    world.source.listing = listing
    await world.catalog.finished.wait()
    assert world.states("m") == {1: "READY"}
    nursery.cancel_scope.cancel()


async def test_a_crash_in_the_middle_of_a_load_is_answered_and_leaves_nothing_behind(begin, autojump_clock):
    world = await begin(model("m"), **EXPLICIT)
    start = world.tree.start

    async def crash(state):
        await start(state)
        raise ValueError("a bug")

    world.tree.start = crash
    error = await failure(world.catalog.load("m", {}))
    assert error.code is ErrorCode.INTERNAL
    assert world.tree.ended == world.tree.started
    assert all(copy.removed for copy in world.source.copies)
    assert world.around.loads.borrowed_tokens == 0
    world.tree.start = start
    await world.catalog.load("m", {})
    assert world.states("m") == {1: "READY"}


# -- copies


async def test_a_copy_is_let_go_where_a_part_of_the_model_can_not_be_loaded(begin, autojump_clock):
    world = await begin(model("whole", depends_on=("part",)), **EXPLICIT)
    await failure(world.catalog.load("whole", {}))
    (copy,) = world.source.copies
    assert copy.removed


async def test_a_version_that_was_scaled_restarts_from_the_files_it_was_loaded_from(begin, autojump_clock):
    def found(directory, count):
        instances = tuple(InstanceSpec(name=f"m_0_{each}") for each in range(count))
        return model("m", instances=instances, model_directory=directory, version_directory=directory / "1")

    world = await begin(found(Path("/copies/a/m"), 1), **EXPLICIT)
    await world.catalog.load("m", {})
    world.source.models["m"] = found(Path("/copies/b/m"), 2)
    await world.catalog.load("m", {})
    (state,) = world.serving("m").values()
    assert len(state.spec.instances) == 2
    assert state.spec.version_directory == Path("/copies/a/m/1")
    assert state.spec.model_directory == Path("/copies/a/m")
    assert not world.source.copies[0].removed


# -- orders that meet each other


async def test_an_unload_does_not_wait_for_an_eviction(begin, nursery, autojump_clock):
    world = await begin(model("m", residency=Residency.ON_DEMAND), dormant=dormant, **EXPLICIT)
    await world.catalog.load("m", {})
    (state,) = world.serving("m").values()
    await hold(state)
    refused = outcome_of(nursery, world.catalog.evict, M)
    await trio.sleep(5)
    begun = trio.current_time()
    await world.catalog.unload("m")
    assert trio.current_time() == begun
    await trio.testing.wait_all_tasks_blocked()
    assert "was unloaded" in refused[0].message
    with pytest.raises(TritiumError, match="has no available versions"):
        world.router.resolve("m")


@pytest.mark.parametrize("residency", [Residency.ALWAYS, Residency.PINNED])
async def test_an_eviction_that_comes_after_a_reload_spares_what_is_no_more_to_be_evicted(
    residency, begin, autojump_clock
):
    world = await begin(model("m", residency=Residency.ON_DEMAND), dormant=dormant, **EXPLICIT)
    await world.catalog.load("m", {})
    world.source.models["m"] = model("m", content="new", residency=residency)
    await world.catalog.load("m", {})
    assert not await world.catalog.evict(M)
    assert world.states("m") == {1: "READY"}


async def test_a_model_that_is_on_demand_no_more_has_no_version_that_sleeps(begin, autojump_clock):
    world = await begin(model("m", 1, residency=Residency.ON_DEMAND), dormant=dormant, **EXPLICIT)
    await world.catalog.load("m", {})
    world.source.models["m"] = model("m", 2)
    await world.catalog.load("m", {})
    await trio.sleep(5)
    with pytest.raises(TritiumError, match="version 1 is not at ready state"):
        world.router.resolve("m", "1")
    world.router.roster.serving(M)[2].standing.become(Status.UNAVAILABLE, "Unavailable: it died")
    with pytest.raises(TritiumError, match="has no available versions"):
        world.router.resolve("m")


async def test_a_model_on_demand_that_became_a_duplicate_is_not_woken(begin, autojump_clock):
    world = await begin(model("m", residency=Residency.ON_DEMAND), dormant=dormant, mode=ControlMode.POLL)
    world.source.models["m"] = duplicate()
    await world.look("m")
    error = await failure(world.catalog.wake(M))
    assert "not known any more" in error.message
    assert world.tree.started == []
    assert all(copy.removed for copy in world.source.copies)


async def test_a_superseded_load_tells_of_what_was_loading_and_not_of_what_retires(
    loaded, nursery, autojump_clock
):
    world, _ = await loaded(model("m", 1))
    await hold(world.serving("m")[1])
    await world.catalog.unload("m")
    world.source.models["m"] = model("m", 2)
    world.tree.seconds = {"m": math.inf}
    outcomes = await superseded_load(world, nursery)
    assert outcomes[0].reasons.keys() == {2}


async def test_a_load_that_is_superseded_while_it_reads_says_so(begin, nursery, autojump_clock):
    world = await begin(model("m"), **EXPLICIT)
    world.source.read_seconds = {"m": math.inf}
    outcomes = await superseded_load(world, nursery)
    assert "Newer operation has been applied to the model lifecycle" in outcomes[0].message


async def test_two_models_that_wait_for_the_same_part_are_no_circle(begin, nursery, autojump_clock):
    world = await begin(
        model("part"),
        model("inner", depends_on=("part",)),
        model("outer", depends_on=("inner",)),
        **EXPLICIT,
    )
    world.tree.seconds = {"part": 5.0}
    nursery.start_soon(world.catalog.load, "inner", {})
    await trio.sleep(1)
    await world.catalog.load("outer", {})
    assert world.states("outer") == {1: "READY"}


# -- what can't serve any more


async def test_a_load_brings_back_a_version_whose_instances_keep_dying(loaded, autojump_clock):
    world, dead = await loaded(model("m"))
    dead.standing.become(Status.UNAVAILABLE, "Unavailable: all instances keep dying")
    await world.catalog.load("m", {})
    (state,) = world.serving("m").values()
    assert state is not dead
    assert state.status is Status.READY
    await dead.standing.ended.wait()


# -- what the index tells


async def test_why_a_load_failed_is_told_after_an_older_generation_has_retired(loaded, autojump_clock):
    world, state = await loaded(model("m"))
    answer = await hold(state)
    await world.catalog.unload("m")
    await world.fail_to_load("m")
    answer()
    await state.standing.ended.wait()
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "Internal: no")]


async def test_a_configuration_that_can_not_be_read_leaves_the_standing_of_what_serves_alone(
    loaded, autojump_clock
):
    world, _ = await loaded(model("m"))
    world.source.models["m"] = FoundModel(
        key=M, reason="Invalid argument: line 3", readable=False, content="broken"
    )
    error = await failure(world.catalog.load("m", {}))
    why = "Invalid argument: line 3"
    assert error.message == f"failed to load 'm', failed to poll from model repository: {why}"
    assert world.index("m") == [("m", 1, "READY", f"reload failed: {why}")]


async def test_a_namesake_answers_to_the_bare_name_once_the_other_has_left_and_drained():
    router = Router(namespacing=True)
    states = []
    for namespace in ("/a", "/b"):
        spec = make_spec(name="m", namespace=namespace)
        state = ModelState(
            spec, statistics=ModelStatistics(), on_status=router.roster.changed, wall_clock=lambda: 0
        )
        state.standing.become(Status.READY)
        router.roster.serve(spec.key, {1: state})
        states.append(state)
    gone, stays = states
    router.roster.serve(gone.spec.key, {})
    router.roster.forget(gone.spec.key)
    router.roster.retired(gone.spec.key, gone)
    assert router.resolve("m") is router.resolve("m", "1") is stays
    assert router.roster.keys() == [stays.spec.key]


async def test_a_model_that_came_back_while_it_retired_is_told_of(begin, autojump_clock):
    world = await begin(model("m"), mode=ControlMode.POLL)
    answer = await hold(world.serving("m")[1])
    old = world.serving("m")[1]
    found = world.source.models.pop("m")
    world.catalog.gone(M)
    await trio.sleep(1)
    world.source.models["m"] = replace(found, content="again")
    world.tree.fails = {"m": 1}
    await world.look("m")
    answer()
    await old.standing.ended.wait()
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "Internal: no")]


async def test_nothing_is_kept_of_models_that_have_left(begin, autojump_clock):
    world = await begin(model("stays"), mode=ControlMode.POLL)
    for number in range(3):
        name = f"passing-{number}"
        world.source.models[name] = model(name)
        await world.look(name)
        assert world.states(name) == {1: "READY"}
        del world.source.models[name]
        world.catalog.gone(ModelKey(name))
        await trio.sleep(5)
    assert world.lanes.which_children() == ("stays",)
    assert world.router.roster.keys() == [ModelKey("stays")]
    world.source.models["passing-0"] = model("passing-0")
    await world.look("passing-0")
    assert world.states("passing-0") == {1: "READY"}


# -- scaling in place


class Unhurried(Double):
    """A launcher whose workers never come into existence."""

    async def launch(self, spec, instance):
        await trio.sleep_forever()


class Scaled:
    """A READY version in its real subtree, whose workers are played."""

    def __init__(self, nursery):
        self.nursery = nursery
        self.router = Router()
        self.models = Supervisor()
        self.subtrees = ModelSubtrees(
            self.models,
            self.router,
            Unhurried(),
            log=Logged(),
            metrics=MetricsSettings(),
            stop_within=10.0,
        )
        self.state: Any = None
        self.instances: tuple[InstanceSpec, ...] = ()
        self.options: dict[str, Any] = {}

    async def begin(self, *, working):
        instances = self.instances or tuple(InstanceSpec(name=f"m_0_{each}") for each in range(len(working)))
        await self.nursery.start(self.models.serve)
        self.state = self.subtrees.make_state(make_spec(name="m", instances=instances, **self.options))
        await self.subtrees.start(self.state)
        for instance, works in zip(self.state.instances, working, strict=True):
            if works:
                self.state.instance_ready(instance, FakeWorker(self.state, instance))
            else:
                instance.started_once = instance.exhausted = True
        self.state.standing.become(Status.READY)
        return self.state

    def with_instances(self, count):
        instances = tuple(InstanceSpec(name=f"m_0_{each}") for each in range(count))
        return replace(self.state.spec, instances=instances)


@pytest.fixture
async def scaled(nursery):
    yield Scaled(nursery)
    nursery.cancel_scope.cancel()


async def test_scaling_down_keeps_the_instances_that_work(scaled, autojump_clock):
    state = await scaled.begin(working=(False, True))
    healthy = state.instances[1]
    await scaled.subtrees.scale(state, scaled.with_instances(1))
    assert state.instances == [healthy]


async def test_a_version_has_a_gpu_once_all_other_instances_have_gone(scaled, autojump_clock):
    gpu = (InstanceSpec(name="m_0_0", kind="GPU"),)
    scaled.instances = (InstanceSpec(name="cpu"), *gpu)
    scaled.options = {"device_tensors": True}
    state = await scaled.begin(working=(True, True))
    assert state.gpu == -1
    await scaled.subtrees.scale(state, replace(state.spec, instances=gpu))
    assert (state.gpu, state.intake._stay.gpu, state.dispatcher.takes_devices) == (0, 0, True)


async def test_scaling_that_is_given_up_leaves_everything_as_it_was(scaled, autojump_clock):
    scaled.instances = (InstanceSpec(name="m_0_0", kind="GPU"),)
    scaled.options = {"device_tensors": True}
    state = await scaled.begin(working=(True,))
    before, spec = list(state.instances), state.spec
    async with trio.open_nursery() as scaling:
        scaling.start_soon(scaled.subtrees.scale, state, scaled.with_instances(3))
        await trio.testing.wait_all_tasks_blocked()
        # Those that come are elsewhere, and those that are here serve meanwhile.
        assert (state.gpu, state.intake._stay.gpu) == (-1, -1)
        scaling.cancel_scope.cancel()
    assert (state.gpu, state.intake._stay.gpu) == (0, 0)
    assert state.instances == state.rotation == before
    assert state.spec is spec
    assert len(scaled.models.tree().children[0].children[0].children) == 1


async def test_scaling_while_the_subtree_is_down_is_refused(scaled, autojump_clock):
    state = await scaled.begin(working=(True,))
    before = list(state.instances)
    await scaled.models.terminate_child(state.subtree)
    with pytest.raises(Internal):
        await scaled.subtrees.scale(state, scaled.with_instances(2))
    assert state.instances == before


async def test_scaling_that_takes_longer_than_a_load_may_fails(loaded, autojump_clock):
    world, _ = await loaded(model("m", load_timeout=4.0))
    more = (InstanceSpec(name="m_0_0"), InstanceSpec(name="m_0_1"))
    world.source.models["m"] = model("m", load_timeout=4.0, instances=more)

    async def hang(state, spec):
        await trio.sleep_forever()

    world.tree.scale = hang
    begun = trio.current_time()
    error = await failure(world.catalog.load("m", {}))
    assert trio.current_time() - begun == pytest.approx(4)
    assert "not loaded within the 4 s of tritium.load_timeout" in error.message


async def test_what_a_dismissed_instance_died_of_is_hunted_for_by_another(scaled, autojump_clock):
    state = await scaled.begin(working=(True, True))
    stays, leaves = state.instances
    requests = [make_request(), make_request()]
    for request in requests:
        await state.submit(request)
    state.queue.drain()
    state.remove_instance(leaves)
    settle(state, leaves, Aftermath(suspects=(tuple(requests),)))
    assert list(stays.suspects) == requests


# -- reading repositories


class Stuck:
    """A repository on a mount that does not answer."""

    uri = "/stuck"

    def __init__(self):
        self.asked = threading.Event()
        self.mended = threading.Event()

    def names(self):
        self.asked.set()
        self.mended.wait()
        return []


class Copying(Double):
    """A repository of one model whose every fetch makes a copy."""

    uri = "/copying"

    def __init__(self, directory):
        self.directory = directory
        self.fetched = threading.Event()
        self.released = []

    def names(self):
        return ["m"]

    def fetch(self, name, *, progress, cancelled):
        self.fetched.set()
        return Fetched(path=self.directory, contents=None)

    def release(self, path):
        self.released.append(path)


def reader_of(*sources, **options):
    read = ReadOptions(backends={}, backend_settings={}, **options)
    return RepositoryReader(sources, read, Janitor(Logged()), Digests())


def forget_phase(_phase, _details):
    """Discard the phase: these tests do not watch the read."""


@pytest.mark.system
async def test_a_repository_that_hangs_holds_up_none_of_the_others(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    stuck = Stuck()
    reader = reader_of(stuck, LocalSource(tmp_path), listing_seconds=0.25)
    try:
        for _ in range(12):
            assert list((await reader.listing()).keys) == [M]
        assert (await reader.read(M, None, forget_phase)).key == M
        with pytest.raises(Unreadable, match="could not be listed within"):
            await reader.read(ModelKey("elsewhere"), None, forget_phase)
    finally:
        stuck.mended.set()


async def test_a_copy_is_removed_whenever_its_reader_was_cancelled(tmp_path, nursery):
    (tmp_path / "m" / "1").mkdir(parents=True)
    source = Copying(tmp_path / "m")
    janitor = Janitor(Logged())
    reader = RepositoryReader([source], ReadOptions(backends={}, backend_settings={}), janitor, Digests())
    with trio.CancelScope() as scope:

        async def cancel():
            await trio.to_thread.run_sync(source.fetched.wait)
            scope.cancel()

        nursery.start_soon(cancel)
        found: Any = await reader.read(M, None, forget_phase)
        found.settle()  # it may have been quicker
    with trio.fail_after(5):
        while not source.released:
            janitor.finish()
            await trio.sleep(0.01)
    assert source.released == [tmp_path / "m"]


@pytest.mark.parametrize(("name", "why"), [("x" * 300, "File name too long"), ("\ud800", "can't encode")])
async def test_uploaded_files_that_can_not_be_written_are_refused_and_leave_nothing(
    name, why, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    janitor = Janitor(Logged())
    reader = RepositoryReader([], ReadOptions(backends={}, backend_settings={}), janitor, Digests())
    override = Override(config="{}", files={f"1/{name}": b""})
    found: Any = await reader.read(M, override, forget_phase)
    assert not found.readable
    assert why in found.reason
    found.settle()
    janitor.finish()
    assert list(tmp_path.iterdir()) == []
