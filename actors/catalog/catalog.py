"""The catalog: which models should run, in each control mode, and on whose request.

Contract: repository.md sections 3, 5, 6.

Every model has a *lane*, an actor of its own that carries out the operations on that model, one after the
other. So a load that is slow, fails or never ends holds up its own model and no other, and each caller gets
the outcome of its own operation. An order to unload does not wait for a load: it takes its place.

Watcher, catalog and lanes talk over bounded channels. In the direction watcher, catalog, lane a sender may
wait: the watcher for the catalog, a client's request for its lane. The catalog itself does not wait for a
lane: where one has no place, the watcher is told to look at the model again. What comes back (a lane is over,
a model could not be looked at, an ensemble's model has changed) never waits.

Passive state, such as the operations that wait in a lane, outlives a crash of the catalog's actor or of a
lane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, assert_never

import trio

from actors.catalog.deployment import INTENSITY
from actors.catalog.lane import Lanes, ModelLane
from actors.catalog.loading import Surroundings, not_polled
from actors.catalog.operations import (
    NOWHERE,
    Evict,
    Gone,
    Listing,
    Load,
    LookAt,
    ModelSource,
    Operation,
    Start,
    Unload,
    Wake,
    check_name,
    read_parameters,
)
from actors.catalog.parts import Parts
from actors.catalog.settling import Change, Changed, Left, Listed, News
from actors.serving.policy.coming_back import after_load
from actors.serving.routing.router import OnTheWay, ambiguous
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, OnExhausted
from actors.supervision.supervisor import Supervisor
from actors.values.errors import NEVER, Internal, Unavailable
from actors.values.events import Event
from actors.values.interfaces import PermitIn, anywhere
from actors.values.specs import ModelKey

POLLING: Final = "explicit model load / unload is not allowed if polling is enabled"

NEWS: Final = 64
"""Pieces of news that wait for the catalog before the watcher has to wait."""


class ControlMode(Enum):
    """`--model-control-mode`."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


class Catalog:
    """The models that should run; see the module.

    `finished` is set when every model to be loaded at start serves or has failed. `news` is where the watcher
    sends what it has found.
    """

    def __init__(
        self,
        around: Surroundings,
        source: ModelSource,
        lanes: Supervisor,
        *,
        mode: ControlMode = ControlMode.NONE,
        startup: Sequence[str] = ("*",),
        namespacing: bool = False,
        awaited_by: Callable[[str], AbstractSet[str]] = lambda _: frozenset(),
        could_not_look: Callable[[ModelKey, bool], object] = lambda *_: None,
    ) -> None:
        """`lanes` is the lanes' dynamic supervisor; `startup` names the models to load first, `*` for all.

        With `namespacing`, models of several repositories may share a name. `awaited_by`: see `Parts`.
        `could_not_look` is told which model must be looked at again, and whether it has changed.
        """
        self._namespacing = namespacing
        self._around = around
        self._source = source
        self._mode = mode
        self._startup = startup
        self._lanes = Lanes(around, lanes)
        self.parts = Parts(
            self._lanes, source, self._find, around.compose, awaited_by, again=mode is ControlMode.EXPLICIT
        )
        channel: tuple[trio.MemorySendChannel[News], trio.MemoryReceiveChannel[News]]
        channel = trio.open_memory_channel(NEWS)
        self.news, self._news = channel
        self._starts: dict[ModelKey, Operation] = {}
        self.finished = trio.Event()
        self._could_not_look = could_not_look
        self._looked = False  # the repositories have been read at the start
        self.start_failed = False  # something that should have been loaded at start was not
        self._unlisted: Sequence[str] = ()  # repositories that were missing at the start, and why
        self._catching_up: list[ModelLane] = []  # these load the models found in them since

    # -- the actor -------------------------------------------------------------------------------------------

    def spec(self, name: str = "catalog") -> ChildSpec:
        """Return the actor as a child: it is restarted for ever, without effect on its siblings."""
        return ChildSpec(name, self.run, intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    async def run(self, ctx: ChildContext) -> None:
        """Start lanes as they are needed, and load what is to be loaded first."""
        ctx.started()
        for lane in self._lanes.all().values():
            lane.deployment.resume_retirements()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lanes.keep)
            nursery.start_soon(self._read_news)
            if not self.finished.is_set():
                await self._start_up()
                self.finished.set()
            ctx.publish(mode=self._mode.value, models=len(self._lanes))

    async def _start_up(self) -> None:
        listing = await self._list()
        keys = listing.keys
        self._looked = True
        self.start_failed = bool(listing.failures)
        self._unlisted = listing.failures
        wanted = keys if "*" in self._startup else [key for key in keys if key.name in self._startup]
        for name in self._startup:
            if name != "*" and all(key.name != name for key in wanted):
                self._around.log(Event.MODEL_UNAVAILABLE, level="error", model=name, reason=NOWHERE)
                self.start_failed = True
        for key in wanted:
            if key not in self._starts:
                operation = Start(self._source, self.parts.ensure)
                lane = self._lanes.of(key)
                lane.deployment.explicit = True
                # Without a turn of the loop between two models: each is loading as soon as one is.
                if not lane.tell(operation):
                    await lane.send(operation)
                self._starts[key] = operation
        for started in self._starts.values():
            await started.done.wait()
            self.start_failed = self.start_failed or started.error is not None

    async def _read_news(self) -> None:
        async for news in self._news:
            match news:
                case Changed(key, change):
                    # The first look at a model is no news, or all models would be news at the start.
                    self.look_at(key, changed=change is not Change.FIRST_SEEN)
                case Left(key):
                    self.gone(key)
                case Listed():
                    self.listed()
                case _:
                    assert_never(news)

    # -- asked by others -------------------------------------------------------------------------------------

    async def load(self, name: str, parameters: Mapping[str, object], *, permit: PermitIn = anywhere) -> None:
        """Load or reload a model; returns when it serves. Raises as contract repository.md section 5 says."""
        self._require_explicit()
        check_name(name)
        override = read_parameters(parameters)
        try:
            key = await self._find(name, made_up=bool(override and override.files))
        except Internal:
            for each in self._lanes.named(name):
                # It may serve though its directory is gone.
                self._lanes.of(each).deployment.set_back({0: NOWHERE})
            raise
        permit(name, key.namespace)
        await self._lanes.of(key).ask(Load(self._source, self.parts.ensure, override))

    async def unload(
        self, name: str, *, unload_dependents: bool = False, permit: PermitIn = anywhere
    ) -> None:
        """Unload a model: it gets no more requests from now on. An unknown model counts as unloaded."""
        self._require_explicit()
        keys = self._lanes.named(name)
        if len(keys) > 1:
            raise ambiguous(name, len(keys))
        for key in (*keys, *(self.parts.alone_in(keys) if unload_dependents else ())):
            permit(key.name, key.namespace)
        parts = frozenset[str]().union(*(self._lanes.of(key).deployment.depends_on for key in keys))
        for key in keys:
            await self._lanes.of(key).ask(Unload())
        await self.parts.recheck_ensembles_of(name, set())  # they can't be served without it
        if unload_dependents:
            await self.parts.unload(parts, permit)

    async def wake(self, key: ModelKey) -> None:
        """Load a model that is loaded on demand. Raises TritiumError where that fails."""
        await self._lanes.of(key).ask(Wake())

    async def evict(self, key: ModelKey) -> bool:
        """Unload a model that is loaded on demand, for now; returns once its workers have ended."""
        operation = Evict()
        await self._lanes.of(key).ask(operation)
        return operation.evicted

    def look_at(self, key: ModelKey, *, changed: bool) -> None:
        """Have the model read again, and reloaded if its content has changed.

        With `changed`, it is also reloaded if it could not be loaded before. Never waits.
        """
        operation = LookAt(self._source, self.parts.ensure, self._could_not_look, changed=changed)
        if not self._lanes.of(key).tell(operation):
            self._could_not_look(key, changed)

    def gone(self, key: ModelKey) -> None:
        """The model has left its repository for good. Never waits."""
        lane = self._lanes.find(key)
        if lane is not None:
            lane.tell(Gone())

    def left(self, names: Collection[str], repository: str) -> None:
        """A repository is no longer one of this server's, with its models of these names. Never waits."""
        for key in self._lanes.all():
            if key.namespace == repository or (not key.namespace and key.name in names):
                self.gone(key)

    def listed(self) -> None:
        """Every repository has been read since the start; `look_at` was called for all models in them."""
        if self._unlisted:
            self._unlisted = ()
            self._catching_up = [lane for lane in self._lanes.all().values() if lane.has_work]

    @property
    def missing(self) -> str:
        """Which repository was missing at the start, and why, until its models are loaded.

        Empty if none was missing.
        """
        if self._unlisted:
            return "; ".join(self._unlisted)
        self._catching_up = [lane for lane in self._catching_up if lane.has_work]
        return (
            "models of a repository that was not there at the start are being loaded"
            if self._catching_up
            else ""
        )

    @property
    def busy(self) -> list[ModelKey]:
        """The models with an operation under way."""
        return [key for key, lane in self._lanes.all().items() if lane.deployment.progress is not None]

    def progress(self, key: ModelKey) -> Mapping[str, object] | None:
        """Return a model's operation under way: its phase, since how many seconds, at which attempt."""
        return self._lanes.progress(key)

    def on_the_way(self, name: str, namespace: str) -> OnTheWay | None:
        """Describe a model that is being loaded, or waits to be; None for any other.

        See `Router`.
        """
        if not self._looked:
            return OnTheWay(
                told="the server has just started and looks into its repositories", retry_after=1.0
            )
        key = ModelKey(name, namespace)
        if self._lanes.find(key) is None and self._namespacing and not namespace:
            key = next(iter(self._lanes.named(name)), key)
        lane = self._lanes.find(key)
        since = None if lane is None else lane.loading_since
        if lane is None or since is None:
            return None
        seconds = max(0.0, trio.current_time() - since)
        return OnTheWay(
            told=_told(self._lanes.progress(key)),
            retry_after=after_load(seconds, before=lane.deployment.load_seconds),
        )

    # -- inside ----------------------------------------------------------------------------------------------

    def _require_explicit(self) -> None:
        if self._mode is not ControlMode.EXPLICIT:
            raise Unavailable(POLLING, retry_after=NEVER)

    async def _list(self) -> Listing:
        listing = await self._source.listing()
        for failure in listing.failures:
            self._around.log(Event.REPOSITORY_UNAVAILABLE, level="error", reason=failure)
        if not listing.failures and self._mode is ControlMode.EXPLICIT and self.finished.is_set():
            self.listed()
        return listing

    async def _find(self, name: str, namespace: str = "", *, made_up: bool = False) -> ModelKey:
        """Return the key of a model in the repositories, preferably in this namespace.

        A model that is `made_up` of a request's files need not be there.
        """
        listing = await self._list()
        keys = {*listing.keys, *self._lanes.all()} if listing.failures else listing.keys
        found = [key for key in keys if key.name == name]
        own = ModelKey(name, namespace)
        if len(found) == 1 or own in found:
            return own if own in found else found[0]
        if found:
            raise ambiguous(name, len(found))
        if made_up:
            return ModelKey(name)
        self._around.log(Event.MODEL_LOAD_FAILED, level="error", model=name, reason=NOWHERE)
        raise not_polled(ModelKey(name), NOWHERE)


def _told(progress: Mapping[str, object] | None) -> str:
    """Return the operation under way on a model, in words."""
    if progress is None:
        return "it waits to be loaded"
    known = {"phase", "seconds", "attempt", "phase_seconds"}
    details = "".join(
        f", {key.replace('_', ' ')} {value}" for key, value in progress.items() if key not in known
    )
    attempt = f", attempt {progress['attempt']}" if progress["attempt"] != 1 else ""
    return (
        f"it is being loaded (phase '{progress['phase']}' for {progress['seconds']:.0f} s{attempt}{details})"
    )
