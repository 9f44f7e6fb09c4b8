"""A repository made of values, subtrees that load on cue, and a catalog over both, in virtual time."""

import json
from dataclasses import replace
from functools import partial

import pytest
import trio

from actors.catalog.catalog import Catalog, ControlMode
from actors.catalog.found import FoundModel
from actors.catalog.loading import AsGiven, Surroundings
from actors.catalog.operations import Listing, Unreadable
from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.supervision.spec import ChildSpec, Strategy
from actors.supervision.supervisor import Supervisor
from actors.values.errors import Internal, TritiumError
from actors.values.specs import InstanceSpec, ModelKey, Probe
from tests.support.doubles import Double
from tests.support.logged import Logged
from tests.support.model_doubles import make_spec
from tests.support.tasks import outcome_of

EXPLICIT = {"mode": ControlMode.EXPLICIT, "startup": ()}


async def failure(awaitable):
    """Return the error that it must end with."""
    with pytest.raises(TritiumError) as caught:
        await awaitable
    return caught.value


async def superseded_load(world, nursery):
    """Have a load of "m" superseded by an unload; return what the caller of the load was told."""
    told = outcome_of(nursery, world.catalog.load, "m", {})
    await trio.sleep(5)
    await world.catalog.unload("m")
    await trio.testing.wait_all_tasks_blocked()
    return told


class FakeTree(Double):
    """Subtrees that load for a second, and fail as often as the test says."""

    def __init__(self, router):
        self.router = router
        self.fails = {}  # (name, version) or name -> how often
        self.seconds = {}  # the same -> how long, inf for ever
        self.scale_fails = ""
        self.loading = 0
        self.most_loading = 0
        self.started = []
        self.ended = []
        self.scaled = []
        self.nursery: trio.Nursery  # set by the test

    def _of(self, table, spec, default):
        return table.get((spec.name, spec.version), table.get(spec.name, default))

    def make_state(self, spec):
        return ModelState(
            spec, statistics=ModelStatistics(), on_status=self.router.roster.changed, wall_clock=lambda: 0
        )

    async def start(self, state):
        state.subtree = f"{state.spec.name}/{state.spec.version} {len(self.started)}"
        self.started.append(state)
        self.nursery.start_soon(self._load, state)

    async def _load(self, state):
        self.loading += 1
        self.most_loading = max(self.most_loading, self.loading)
        with trio.move_on_after(self._of(self.seconds, state.spec, 1.0)):
            await trio.sleep_forever()
        self.loading -= 1
        if state in self.ended:
            return
        left = self._of(self.fails, state.spec, 0)
        if left > 0:
            key = (state.spec.name, state.spec.version)
            self.fails[key if key in self.fails else state.spec.name] = left - 1
            state.standing.load_failed("Internal: no")
        else:
            state.standing.become(Status.READY)

    async def scale(self, state, spec):
        await trio.sleep(1)
        if self.scale_fails:
            raise Internal(self.scale_fails)
        self.scaled.append(spec)
        state.respecify(spec)
        state.settle()

    async def end(self, state):
        await trio.lowlevel.checkpoint()
        self.ended.append(state)
        state.close()


class Copy:
    """A local copy that counts its holders."""

    def __init__(self):
        self.users = 1
        self.removed = False

    def hold(self):
        assert not self.removed
        self.users += 1

    def settled(self, *, applied):
        assert not self.removed

    def let_go(self):
        self.users -= 1
        self.removed = self.users == 0


class FakeSource(Double):
    """Models by name; a value, or an exception to raise. `changes` counts what is read."""

    def __init__(self):
        self.models = {}
        self.unreadable = ""
        self.reads = []
        self.copies = []
        self.read_seconds = {}
        self.listing_seconds = 0.0

    async def listing(self):
        await trio.sleep(self.listing_seconds)
        if self.unreadable:
            return Listing(keys=(), failures=(self.unreadable,))
        return Listing(keys=[ModelKey(name) for name in sorted(self.models)])

    async def read(self, key, override, report):
        self.reads.append(key.name)
        report("reading", {})
        await trio.sleep(self.read_seconds.get(key.name, 0))
        if self.unreadable:
            raise Unreadable(self.unreadable)
        found = self.models.get(key.name)
        if found is None:
            return None
        if override is not None:
            found = _overridden(found, override)
        copy = Copy()
        self.copies.append(copy)
        return replace(found, copy=copy)


def _overridden(found, override):
    """The model as a request has it: another configuration, and with files nothing that could be compared."""
    count = json.loads(override.config).get("count")
    changes = {"config_json": override.config.encode()}
    if count is not None:
        instances = tuple(InstanceSpec(name=f"m_0_{at}") for at in range(count))
        changes = {"config_json": b'{"instance_group": %d}' % count, "instances": instances}
    if override.files:
        changes["content"] = ""
    specs = [replace(spec, **changes) for spec in found.specs]
    return replace(found, content="" if override.files else found.content, specs=specs)


def model(name, *versions, content="c", reason="", **changes):
    """A found model; `content` tells its versions' files apart from what they were before."""
    versions = versions or (1,)
    changes.setdefault("probe", Probe.OFF)
    specs = [make_spec(name=name, version=each, content=f"{content}{each}", **changes) for each in versions]
    return FoundModel(
        key=ModelKey(name), specs=() if reason else specs, versions=versions, reason=reason, content=content
    )


class World:
    """A catalog in its part of a supervision tree."""

    def __init__(
        self,
        *found,
        mode=ControlMode.NONE,
        startup=("*",),
        loads_at_once=2,
        extra_attempts=0,
        dormant=None,
        placing=None,
    ):
        self.router = Router(on_the_way=lambda name, namespace: self.catalog.on_the_way(name, namespace))
        self.tree = FakeTree(self.router)
        self.log = Logged()
        self.source = FakeSource()
        self.source.models = {each.key.name: each for each in found}
        self.swaps: list[tuple[str, list[int] | None]] = []
        self.composed = []
        self.lanes = Supervisor()
        self.retirements = Supervisor()
        self.around = Surroundings(
            roster=self.router.roster,
            tree=self.tree,
            retirements=self.retirements,
            dormant=lambda specs: {spec.version: dormant(spec) for spec in specs},
            swapped=lambda key, specs: self.swaps.append((key.name, [spec.version for spec in specs])),
            left=lambda key: self.swaps.append((key.name, None)),
            loads=trio.CapacityLimiter(loads_at_once),
            extra_attempts=extra_attempts,
            log=self.log,
            placing=placing or AsGiven(),
            compose=self._compose,
        )
        # The models that could not be looked at, and whether they had changed.
        self.could_not: list[tuple[str, bool]] = []
        self.catalog = Catalog(
            self.around,
            self.source,
            self.lanes,
            mode=mode,
            startup=startup,
            could_not_look=lambda key, changed: self.could_not.append((key.name, changed)),
        )
        self.root = Supervisor(
            [
                self.lanes.spec("lanes"),
                self.retirements.spec("retirements"),
                ChildSpec("catalog", self.catalog.run),
            ],
            strategy=Strategy.REST_FOR_ONE,
        )

    def _compose(self, found):
        """Make a model without specs if a model that it depends on is neither ready nor dormant."""
        self.composed.append(found.key.name)
        for name in sorted({name for spec in found.specs for name in spec.depends_on}):
            key = ModelKey(name)
            if not (self.router.roster.ready(key) or self.router.roster.dormant(key)):
                why = f"'{found.key.name}' is nothing without '{name}'"
                return replace(found, specs=(), reason=f"Invalid argument: {why}", unfit=why)
        return found

    async def begin(self, nursery, *, wait=True):
        self.tree.nursery = nursery
        await nursery.start(partial(self.root.serve))
        if wait:
            await self.catalog.finished.wait()

    async def look(self, name, *, changed=True):
        """Have the catalog look at a model, as the watcher asks, and let it be done."""
        self.catalog.look_at(ModelKey(name), changed=changed)
        await trio.sleep(5)

    async def unload(self, name, **options):
        """Unload a model, and let it be over."""
        await self.catalog.unload(name, **options)
        await trio.sleep(5)

    async def fail_to_load(self, name):
        self.tree.fails[name] = 1
        await failure(self.catalog.load(name, {}))

    def index(self, name=None):
        return [
            (entry.name, entry.version, entry.state, entry.reason)
            for entry in self.router.roster.index()
            if name in (None, entry.name)
        ]

    def states(self, name):
        """The states in the index by version."""
        return {version: state for _, version, state, _ in self.index(name)}

    def serving(self, name):
        return self.router.roster.serving(ModelKey(name))
