"""What should run is started: so many at a time, each on its own, and what failed is known by its reason."""

import pytest
import trio

from actors.catalog import POLLING, Catalog, FoundModel
from actors.messages.errors import Unavailable
from actors.model import ModelState, Status
from actors.router import Router
from actors.statistics import ModelStatistics
from tests.support.model_doubles import Context, make_spec


class FakeTree:
    """Subtrees that load for a second, and fail as often as they are told."""

    def __init__(self, router):
        self.router = router
        self.fails = {}  # name -> how often
        self.seconds = {}  # name -> how long, inf for ever
        self.loading = 0
        self.most_loading = 0
        self.started = []
        self.ended = []
        self.nursery = None

    def make_state(self, spec):
        return ModelState(
            spec, statistics=ModelStatistics(), on_status=self.router.changed, wall_clock=lambda: 0
        )

    async def start(self, state):
        self.started.append(state)
        self.nursery.start_soon(self._load, state)

    async def _load(self, state):
        self.loading += 1
        self.most_loading = max(self.most_loading, self.loading)
        name = state.spec.name
        await trio.sleep(self.seconds.get(name, 1.0))
        self.loading -= 1
        if self.fails.get(name, 0) > 0:
            self.fails[name] -= 1
            state.load_failed("Internal: no")
        else:
            state.become(Status.READY)

    async def end(self, state):
        self.ended.append(state)


class Logged(list):
    def __call__(self, event, *, level="info", **keys):
        self.append((str(event), level, keys))


class World:
    def __init__(self, found, *, loads_at_once=2, extra_attempts=0):
        self.router = Router()
        self.tree = FakeTree(self.router)
        self.log = Logged()
        self.found = found
        self.reads = 0
        self.catalog = Catalog(
            self.router,
            self.tree,
            self._find,
            log=self.log,
            loads_at_once=loads_at_once,
            extra_attempts=extra_attempts,
        )

    async def _find(self):
        self.reads += 1
        return self.found

    def state(self, name, version=1):
        return self.router.find(name, version).status

    def run(self, nursery):
        """One life of the catalog; returns the scope that ends it."""
        self.tree.nursery = nursery
        scope = trio.CancelScope()

        async def life():
            with scope:
                await self.catalog.run(Context())

        nursery.start_soon(life)
        return scope


def models(*names, **options):
    return [FoundModel(name=name, specs=[make_spec(name=name)], versions=[1], **options) for name in names]


async def test_loads_run_side_by_side_but_only_so_many(nursery, autojump_clock):
    world = World(models("a", "b", "c", "d", "e"), loads_at_once=2)
    world.run(nursery)
    start = trio.current_time()
    await world.catalog.finished.wait()
    assert trio.current_time() - start == pytest.approx(3)
    assert world.tree.most_loading == 2
    assert [entry.state for entry in world.router.index()] == ["READY"] * 5
    nursery.cancel_scope.cancel()


async def test_a_load_that_fails_or_never_ends_blocks_no_other(nursery, autojump_clock):
    world = World(models("bad", "endless", "good", "better"), loads_at_once=2)
    world.tree.fails["bad"] = 9
    world.tree.seconds["endless"] = float("inf")
    world.run(nursery)
    await trio.sleep(10)
    assert world.state("bad") is Status.UNAVAILABLE
    assert world.state("endless") is Status.LOADING
    assert world.state("good") is world.state("better") is Status.READY
    assert not world.catalog.finished.is_set()
    assert [state.spec.name for state in world.tree.ended] == ["bad"]
    nursery.cancel_scope.cancel()


async def test_a_failed_load_is_tried_again_as_often_as_configured(nursery, autojump_clock):
    world = World(models("flaky", "hopeless"), extra_attempts=2)
    world.tree.fails = {"flaky": 2, "hopeless": 99}
    world.run(nursery)
    await world.catalog.finished.wait()
    assert world.state("flaky") is Status.READY
    assert world.state("hopeless") is Status.UNAVAILABLE
    assert len(world.tree.started) == 6
    assert len(world.tree.ended) == 2 + 3
    attempts = [keys["attempt"] for event, _, keys in world.log if event == "model_loading"]
    assert sorted(attempts) == [1, 1, 2, 2, 3, 3]
    nursery.cancel_scope.cancel()


async def test_a_model_that_cannot_be_configured_is_known_by_its_reason(nursery, autojump_clock):
    broken = FoundModel(name="broken", versions=[3], reason="Invalid argument: no", warnings=["odd"])
    world = World([broken, *models("good")])
    world.run(nursery)
    await world.catalog.finished.wait()
    (entry,) = (entry for entry in world.router.index() if entry.name == "broken")
    assert (entry.version, entry.state, entry.reason) == (3, "UNAVAILABLE", "Invalid argument: no")
    assert ("model_unavailable", "error", {"model": "broken", "reason": "Invalid argument: no"}) in world.log
    assert ("model_loading", "warning", {"model": "broken", "warning": "odd"}) in world.log
    nursery.cancel_scope.cancel()


async def test_a_restart_in_the_middle_adopts_what_runs_and_loads_the_rest(nursery, autojump_clock):
    world = World(models("quick", "failed", "slow"), loads_at_once=3)
    world.tree.fails["failed"] = 1
    world.tree.seconds["slow"] = 5.0
    first = world.run(nursery)
    await trio.sleep(2)
    first.cancel()
    await trio.testing.wait_all_tasks_blocked()
    quick = world.router.find("quick", 1)
    world.run(nursery)
    await world.catalog.finished.wait()
    assert world.router.find("quick", 1) is quick
    assert sorted(state.spec.name for state in world.tree.started) == ["failed", "quick", "slow", "slow"]
    assert world.state("slow") is Status.READY
    assert world.state("failed") is Status.UNAVAILABLE
    nursery.cancel_scope.cancel()


async def test_a_restart_after_everything_was_loaded_looks_at_nothing(nursery, autojump_clock):
    world = World(models("a"))
    first = world.run(nursery)
    await world.catalog.finished.wait()
    first.cancel()
    world.run(nursery)
    await trio.sleep(5)
    assert world.reads == 1
    assert len(world.tree.started) == 1
    nursery.cancel_scope.cancel()


async def test_loading_and_unloading_on_request_are_refused(nursery):
    world = World([])
    for call in (world.catalog.load("m", {}), world.catalog.unload("m", unload_dependents=True)):
        with pytest.raises(Unavailable, match=POLLING):
            await call
