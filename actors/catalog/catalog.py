"""The catalog: which models should run, in each control mode, and on whose request.

Contract: repository.md sections 3, 5, 6.

Every model has a *lane*, an actor of its own that carries out the operations on that model, one after the
other. So a load that is slow, fails or never ends holds up its own model and no other, and each caller gets
the outcome of its own operation. An order to unload does not wait for a load: it takes its place.

Passive state, such as the operations that wait in a lane, outlives a crash of the catalog's actor or of a
lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Final

import trio

from actors.catalog.found import FoundModel
from actors.catalog.lane import Lane
from actors.catalog.loading import Surroundings, not_polled
from actors.catalog.operations import (
    NOWHERE,
    Evict,
    Gone,
    Listing,
    Load,
    LookAt,
    ModelSource,
    Need,
    Operation,
    Recompose,
    Start,
    Unload,
    Wake,
    check_name,
    read_parameters,
)
from actors.seams import faults
from actors.seams.bell import Bell
from actors.serving.policy.coming_back import after_load
from actors.serving.router import OnTheWay, ambiguous
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.supervision.supervisor import Supervisor
from actors.values.errors import NEVER, ErrorCode, Internal, TritiumError, Unavailable
from actors.values.events import Event
from actors.values.specs import ModelKey

POLLING: Final = "explicit model load / unload is not allowed if polling is enabled"
INTENSITY: Final = Intensity(5, 60.0)


class ControlMode(Enum):
    """`--model-control-mode`."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


class Catalog:
    """The models that should run; see the module.

    `finished` is set when every model to be loaded at start serves or has failed.
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
    ) -> None:
        """`lanes` is the lanes' dynamic supervisor; `startup` names the models to load first, `*` for all.

        With `namespacing`, models of several repositories may share a name.
        """
        self._namespacing = namespacing
        self._around = around
        self._source = source
        self._supervisor = lanes
        self._mode = mode
        self._startup = startup
        self._lanes: dict[ModelKey, Lane] = {}
        self._news = Bell()  # a lane is to be started, or is over
        self._starts: dict[ModelKey, Operation] = {}
        self.finished = trio.Event()
        # Is told which model must be looked at again.
        self.could_not_look: Callable[[ModelKey], object] = lambda _: None
        # Returns the models whose loads a model's own load waits for: the model has asked for them while it
        # loads.
        self.awaited_by: Callable[[str], AbstractSet[str]] = lambda _: frozenset()
        self._looked = False  # the repositories have been read at the start
        self.start_failed = False  # something that should have been loaded at start was not
        self._unlisted: Sequence[str] = ()  # repositories that were missing at the start, and why
        self._catching_up: list[Lane] = []  # these load the models found in them since

    # -- the actor -------------------------------------------------------------------------------------------

    def spec(self, name: str = "catalog") -> ChildSpec:
        """Return the actor as a child: it is restarted for ever, without effect on its siblings."""
        return ChildSpec(name, self.run, intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    async def run(self, ctx: ChildContext) -> None:
        """Start lanes as they are needed, and load what is to be loaded first."""
        ctx.started()
        for lane in self._lanes.values():
            lane.deployment.resume_retirements()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_lanes)
            if not self.finished.is_set():
                await self._start_up()
                self.finished.set()
            ctx.publish(mode=self._mode.value, models=len(self._lanes))

    async def _keep_lanes(self) -> None:
        if faults.points is not None:
            faults.points.passing("catalog.lanes")
        present = set(self._supervisor.which_children())
        for lane in self._lanes.values():
            lane.standing = lane.name in present
        while True:
            heard = self._news.rings
            for key, lane in list(self._lanes.items()):
                with trio.CancelScope(shield=True):  # takes no time, and must not be interrupted
                    if lane.over:
                        del self._lanes[key]  # a later operation on the model gets a new lane
                        await self._end_lane(lane)
                    elif not lane.standing:
                        lane.standing = True
                        await self._supervisor.start_child(lane.spec())
            await self._news.wait(heard)

    async def _end_lane(self, lane: Lane) -> None:
        if lane.standing:
            await self._supervisor.terminate_child(lane.name)

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
                operation = self._starts[key] = Start(self._source, self._ensure_parts)
                self._lane(key).deployment.explicit = True
                self._add(key, operation)
        for started in self._starts.values():
            await started.done.wait()
            self.start_failed = self.start_failed or started.error is not None

    # -- asked by others -------------------------------------------------------------------------------------

    async def load(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load or reload a model; returns when it serves. Raises as contract repository.md section 5 says."""
        self._require_explicit()
        check_name(name)
        override = read_parameters(parameters)
        try:
            key = await self._find(name, made_up=bool(override and override.files))
        except Internal:
            for each in [key for key in self._lanes if key.name == name]:
                # It may serve though its directory is gone.
                self._lanes[each].deployment.set_back({0: NOWHERE})
            raise
        await self._do(key, Load(self._source, self._ensure_parts, override))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model: it gets no more requests from now on. An unknown model counts as unloaded."""
        self._require_explicit()
        keys = [key for key in self._lanes if key.name == name]
        if len(keys) > 1:
            raise ambiguous(name, len(keys))
        parts = frozenset[str]().union(*(self._lanes[key].deployment.depends_on for key in keys))
        for key in keys:
            await self._do(key, Unload())
        await self._recheck_ensembles_of(name, set())  # they can't be served without it
        if unload_dependents:
            await self._unload_parts(parts)

    async def wake(self, key: ModelKey) -> None:
        """Load a model that is loaded on demand. Raises TritiumError where that fails."""
        await self._do(key, Wake())

    async def evict(self, key: ModelKey) -> bool:
        """Unload a model that is loaded on demand, for now; returns once its workers have ended."""
        operation = Evict()
        await self._do(key, operation)
        return operation.evicted

    def look_at(self, key: ModelKey, *, changed: bool) -> None:
        """Have the model read again, and reloaded if its content has changed.

        With `changed`, it is also reloaded if it could not be loaded before. Never waits.
        """
        self._add(key, LookAt(self._source, self._ensure_parts, self.could_not_look, changed=changed))

    def gone(self, key: ModelKey) -> None:
        """The model has left its repository for good. Never waits."""
        if key in self._lanes:
            self._add(key, Gone())

    def listed(self) -> None:
        """Every repository has been read since the start; `look_at` was called for all models in them."""
        if self._unlisted:
            self._unlisted = ()
            self._catching_up = [lane for lane in self._lanes.values() if lane.has_work]

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
        return [key for key, lane in self._lanes.items() if lane.deployment.progress is not None]

    def progress(self, key: ModelKey) -> Mapping[str, object] | None:
        """Return a model's operation under way: its phase, since how many seconds, at which attempt."""
        lane = self._lanes.get(key)
        busy = None if lane is None else lane.deployment.progress
        if busy is None:
            return None
        phase = busy.phase
        if phase == "loading":
            loading = [
                state
                for state in self._around.roster.background(key)
                if not state.standing.load_finished.is_set()
            ]
            phase = loading[-1].standing.phase if loading else phase
        seconds = round(trio.current_time() - busy.since, 3)
        return {"phase": phase, "seconds": seconds, "attempt": busy.attempt, **busy.details}

    def on_the_way(self, name: str, namespace: str) -> OnTheWay | None:
        """Describe a model that is being loaded, or waits to be; None for any other.

        See `Router.on_the_way`.
        """
        if not self._looked:
            return OnTheWay(
                told="the server has just started and looks into its repositories", retry_after=1.0
            )
        key = ModelKey(name, namespace)
        if key not in self._lanes and self._namespacing and not namespace:
            key = next((each for each in self._lanes if each.name == name), key)
        lane = self._lanes.get(key)
        since = None if lane is None else lane.loading_since
        if lane is None or since is None:
            return None
        seconds = max(0.0, trio.current_time() - since)
        return OnTheWay(
            told=_told(self.progress(key)),
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

    async def _find(self, name: str, *, made_up: bool, namespace: str = "") -> ModelKey:
        """Return the key of a model in the repositories, preferably in this namespace.

        A model that is `made_up` of a request's files need not be there.
        """
        listing = await self._list()
        keys = {*listing.keys, *self._lanes} if listing.failures else listing.keys
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

    def _lane(self, key: ModelKey) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(
                key,
                self._around,
                self._free_name(key.name),
                on_over=self._tell_news,
                on_changed=self._recheck_later,
            )
            self._tell_news()
        return lane

    def _tell_news(self) -> None:
        self._news.ring()

    def _free_name(self, name: str) -> str:
        taken = {lane.name for lane in self._lanes.values()}
        candidates = itertools.chain((name,), (f"{name}@{number}" for number in itertools.count(2)))
        return next(each for each in candidates if each not in taken)

    def _add(self, key: ModelKey, operation: Operation) -> None:
        self._lane(key).add(operation)

    async def _do(self, key: ModelKey, operation: Operation) -> None:
        self._add(key, operation)
        await operation.outcome()

    async def _ensure_parts(self, key: ModelKey, found: FoundModel) -> FoundModel:
        """Load a model's composing models unless they are loaded, and return it as they make it up."""
        names = sorted({name for spec in found.specs for name in spec.depends_on})
        if not names:
            return found
        # Before waiting for any load: circles are detected by this.
        self._lane(key).deployment.want(found)
        parts: list[ModelKey] = []

        async def ensure(name: str) -> None:
            try:
                part = await self._find(name, made_up=False, namespace=key.namespace)
                parts.append(part)
                if not self._way(part, key) and not self._awaits(part, key):
                    again = self._mode is ControlMode.EXPLICIT
                    await self._do(part, Need(self._source, self._ensure_parts, again=again))
            except TritiumError:
                # The composition of the model tells what is missing, and why.
                return

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ensure, name)
        circles = ((key, *way) for part in parts if (way := self._way(part, key)))
        circle = next(circles, None)
        return _circular(found, circle) if circle else self._around.compose(found)

    def _way(self, start: ModelKey, end: ModelKey) -> tuple[ModelKey, ...]:
        """Return a path from `start` to `end` through composing models; () if there is none."""
        paths: list[tuple[ModelKey, ...]] = [(start,)]
        seen = {start}
        for path in paths:  # `paths` grows meanwhile
            if path[-1] == end:
                return path
            lane = self._lanes.get(path[-1])
            parts = frozenset[str]() if lane is None else lane.deployment.parts
            for key in self._lanes:
                if key.name in parts and key not in seen:
                    seen.add(key)
                    paths.append((*path, key))
        return ()

    def _awaits(self, part: ModelKey, key: ModelKey) -> bool:
        """Whether `part` has itself asked for a load that waits for `key`'s load.

        Then `key` must not wait for it.
        """
        names = self.awaited_by(part.name)
        return any(each.name in names and self._way(each, key) for each in self._lanes)

    def needs(self, name: str, part: str) -> bool:
        """Whether `name` is composed of `part`, directly or through other models, as far as is known."""
        starts = [key for key in self._lanes if key.name == name != part]
        return any(self._way(start, end) for start in starts for end in self._lanes if end.name == part)

    def _ensembles_of(self, name: str) -> list[ModelKey]:
        return [key for key, lane in self._lanes.items() if name in lane.deployment.parts]

    def _recheck_later(self, key: ModelKey) -> None:
        """Other versions of a model serve than before: have its ensembles check themselves again."""
        for ensemble in self._ensembles_of(key.name):
            self._add(ensemble, Recompose())

    async def _recheck_ensembles_of(self, name: str, seen: set[ModelKey]) -> None:
        """Have the ensembles of a model check themselves again now, and their ensembles too."""
        for key in self._ensembles_of(name):
            if key not in seen:
                seen.add(key)
                with suppress(TritiumError):  # the error is logged
                    await self._do(key, Recompose())
                await self._recheck_ensembles_of(key.name, seen)

    async def _unload_parts(self, names: frozenset[str]) -> None:
        """Unload models that no client asked for by name, and that no loaded model is composed of."""
        needed = frozenset[str]().union(*(lane.deployment.depends_on for lane in self._lanes.values()))
        for key, lane in list(self._lanes.items()):
            if key.name in names - needed and not lane.deployment.explicit:
                parts = lane.deployment.depends_on
                await self._do(key, Unload())
                await self._unload_parts(parts)


def _told(progress: Mapping[str, object] | None) -> str:
    """Return the operation under way on a model, in words."""
    if progress is None:
        return "it waits to be loaded"
    known = {"phase", "seconds", "attempt"}
    details = "".join(
        f", {key.replace('_', ' ')} {value}" for key, value in progress.items() if key not in known
    )
    attempt = f", attempt {progress['attempt']}" if progress["attempt"] != 1 else ""
    return (
        f"it is being loaded (phase '{progress['phase']}' for {progress['seconds']:.0f} s{attempt}{details})"
    )


def _circular(found: FoundModel, circle: Sequence[ModelKey]) -> FoundModel:
    """Return an ensemble that contains itself as one that can't be loaded.

    Contract: repository.md section 7.
    """
    name, first = circle[0].name, circle[1].name
    text = f"circular dependency between ensembles: {name} -> ... -> {first} -> {name}"
    path = " -> ".join(key.name for key in reversed(circle))
    return replace(
        found,
        specs=(),
        reason=f"{ErrorCode.INVALID_ARG.rendered}: {text}",
        unfit=text,
        errors=(f"{text} (the whole circle: {path})",),
    )
