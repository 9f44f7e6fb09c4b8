"""One model on its way from what serves to what should: load beside, probe, swap, drain (DESIGN section 8).

A `Deployment` is passive: the model's lane (see `actors.catalog.lane`) calls one of its methods at a time.
Before the swap the serving versions are not touched. So a load that fails, or is given up, affects no client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from actors.catalog.changes import plan_change
from actors.catalog.earlier import earlier_than
from actors.catalog.found import FoundModel, Override
from actors.catalog.loading import OUTDATED, LoadFailed, Loading, Surroundings, not_polled, too_slow
from actors.seams import faults
from actors.serving.instances.phases import LoadPhases
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.supervision.context import ChildContext
from actors.supervision.errors import NotRunning
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted, Restart
from actors.values.errors import Internal, InvalidArgument, TritiumError, Unavailable
from actors.values.events import Event
from actors.values.generation.adapters import Adapter
from actors.values.interfaces import UNLOADED
from actors.values.specs import LanguageServing, ModelKey, ModelSpec, Residency

INTENSITY: Final = Intensity(5, 60.0)
"""Of each actor of this room."""


@dataclass(slots=True)
class Progress:
    """The phase that a model's lane is in."""

    phase: str
    since: float
    attempt: int = 1
    details: Mapping[str, object] = field(default_factory=dict)


class Deployment:
    """What is known about one model, and the way from what serves to what should."""

    def __init__(
        self,
        key: ModelKey,
        around: Surroundings,
        *,
        on_retired: Callable[[], object] = lambda: None,
        on_changed: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_retired` is called when a version has ended.

        `on_changed` is called when other versions serve than before.
        """
        self.key = key
        self.progress: Progress | None = None
        self.tell: Callable[..., object] = lambda **_: None  # the lane's place in the tree
        # Digest of the files that were applied last, if that succeeded.
        self.content = ""
        self.refused = ""  # the same, if it failed
        # It was asked for by its own name, not as a part of another model.
        self.explicit = False
        self.override: Override | None = None  # a load request's configuration that is in force
        # Digest of the files that the override is in force over.
        self.overrode = ""
        self.left = False  # it is no longer in the repository
        self.setback = ""  # why the last reload beside the serving versions failed
        self.load_seconds = 0.0  # how long the last load took
        self._around = around
        self._on_retired = on_retired
        self._on_changed = on_changed
        # A found model was applied, with or without success, and has not been unloaded since.
        self.tried = False
        # An ensemble as it was last read, before it was composed.
        self._wanted: FoundModel | None = None
        self._composed: FoundModel | None = None  # the same, of the serving ensemble
        self._found: FoundModel | None = None
        self._phases = LoadPhases()  # of the operation that is under way
        self._loading = Loading(key, around, self.enter)
        self._retiring: dict[ModelState, float] = {}  # each with the deadline for its last answers

    @property
    def serving(self) -> Mapping[int, ModelState]:
        """The versions that requests are sent to."""
        return self._around.roster.serving(self.key)

    @property
    def stands(self) -> bool:
        """Whether requests for it are accepted: it serves, or is loaded on demand."""
        roster = self._around.roster
        return bool(roster.ready(self.key) or roster.dormant(self.key))

    @property
    def versions(self) -> Sequence[int]:
        """The versions that are loading, or those that serve."""
        background = self._around.roster.background(self.key)
        loading = [state.spec.version for state in background if state not in self._retiring]
        return sorted(loading or self.serving)

    @property
    def at_rest(self) -> bool:
        """Whether the model has left, and all its versions have ended."""
        return self.left and not self._retiring

    @property
    def depends_on(self) -> frozenset[str]:
        """The models that the serving version is composed of."""
        return frozenset(name for state in self.serving.values() for name in state.spec.depends_on)

    @property
    def parts(self) -> frozenset[str]:
        """The models that it is composed of, or would be."""
        wanted = (
            frozenset(name for spec in self._wanted.specs for name in spec.depends_on) if self._wanted else ()
        )
        return self.depends_on.union(wanted)

    def want(self, found: FoundModel) -> None:
        """Note an ensemble as it was read, before its models have been looked at."""
        self._wanted = replace(found, copy=None)

    def enter(self, phase: str, *, attempt: int = 1, details: Mapping[str, object] | None = None) -> None:
        """Note the phase of the lane. `details` may go on changing."""
        now = trio.current_time()
        if self.progress is None:
            self._phases = LoadPhases()
        self._phases.enter(phase, now)
        self.progress = Progress(phase, now, attempt, details or {})
        self.tell(phase=phase, attempt=attempt)

    def set_back(self, reasons: Mapping[int, str]) -> None:
        """A load failed, with reasons by version, 0 for all.

        If a version serves, the failure is shown beside it until a load succeeds.
        """
        self._around.roster.load_failed(self.key, reasons)
        told = (self._around.roster.setback(self.key, number) for number in self.serving)
        self.setback = next(told, "")
        self.tell(reload_failed=self.setback or None)

    def could_not_read(self, reason: str) -> None:
        """The model's files can't be read: tell operators."""
        self._around.log(
            Event.MODEL_LOAD_FAILED, level="error", model=self.key.name, phase="reading", reason=reason
        )

    # -- towards what was found ------------------------------------------------------------------------------

    async def apply(
        self,
        found: FoundModel,
        *,
        override: Override | None = None,
        forced: bool = False,
        awake: bool = True,
    ) -> None:
        """Make the model that was found serve.

        Raises InvalidArgument or Internal if it can't; then the earlier versions still serve.

        `override` was read in place of files. Without `awake`, a model that is loaded on demand is only made
        known.
        """
        if faults.points is not None:
            faults.points.passing("deployment.apply")
        self.content = self.refused = ""
        try:
            await self._apply(found, forced=forced, awake=awake)
        except TritiumError as error:
            self.refused = found.content
            reasons = error.reasons if isinstance(error, LoadFailed) else {0: found.reason or error.render()}
            self.set_back(reasons or {0: error.render()})
            if override is None and found.readable:
                self._keep(None, "")  # the files have changed, which ends the override
            raise
        self.content = found.content
        self.setback = ""
        self.tell(reload_failed=None)
        self._keep(override, found.content)

    def _keep(self, override: Override | None, content: str) -> None:
        """Note the override for later loads that have none of their own.

        A request's files count for one load; its configuration lasts.
        """
        lasts = override is not None and not override.files
        self.override, self.overrode = (override, content) if lasts else (None, "")

    async def _apply(self, found: FoundModel, *, forced: bool, awake: bool) -> None:
        self.tried = True
        self.left = False
        for warning in found.warnings:
            self._around.log(Event.MODEL_LOADING, level="warning", model=self.key.name, warning=warning)
        # The first one is the reason that `_refuse` gives.
        for error in found.errors if found.specs else found.errors[1:]:
            self._around.log(Event.MODEL_LOADING, level="error", model=self.key.name, error=error)
        if not found.specs:
            self._refuse(found)
        sleeps = found.specs[0].residency is not Residency.ALWAYS
        if sleeps and not awake and not self.serving:
            self._adopt(found)
            self._make_dormant()
            self._on_changed()
            return
        # A version that is loaded but can't serve has to be loaded anew.
        ready = self._around.roster.ready(self.key)
        change = plan_change(
            {number: state.spec for number, state in ready.items()}, found.specs, forced=forced
        )
        before = self._phases.seconds(trio.current_time()) if self.progress is not None else {}
        started = await self._loading.bring_up(change.start, found, before)
        states = {number: self.serving[number] for number in change.stay} | started
        try:
            for spec in change.scale:
                states[spec.version] = await self._scale(spec)
        except BaseException:
            await self._loading.abandon(started.values(), OUTDATED)
            raise
        self._adopt(found)
        self._swap(states, started)
        if sleeps:
            self._make_dormant()
        else:
            self._around.roster.set_dormant(self.key, None)

    def _refuse(self, found: FoundModel) -> None:
        """Tell why there is no version to load: in the log, and by an error."""
        roster = self._around.roster
        self._around.log(
            Event.MODEL_LOAD_FAILED if self.serving else Event.MODEL_UNAVAILABLE,
            level="error",
            model=self.key.name,
            reason=found.errors[0] if found.errors else found.reason,
        )
        if found.duplicate:
            self.retire_all()
        if not self.serving:
            roster.set_dormant(self.key, None)
            self._disown()
        roster.mark_broken(self.key, found.versions, found.reason, faults=found.faults)
        if found.unfit:
            raise InvalidArgument(f"load failed for model '{self.key.name}': {found.unfit};\n")
        if found.duplicate or not found.readable:
            raise not_polled(self.key, found.reason)
        if not found.versions:
            raise Internal(f"failed to load '{self.key.name}', no version is available: {found.reason}")
        raise LoadFailed(self.key.name, found.faults)

    def _adopt(self, found: FoundModel) -> None:
        before, self._found = self._found, found
        self._composed = self._wanted
        if found.copy is not None:
            found.copy.hold()
        if before is not None and before.copy is not None:
            before.copy.let_go()

    def _disown(self) -> None:
        """No version of it serves any more, or can be woken."""
        if self._found is not None and self._found.copy is not None:
            self._found.copy.let_go()
        self._found = None

    async def _scale(self, spec: ModelSpec) -> ModelState:
        state = self.serving[spec.version]
        had, before = state.spec, len(state.executing.instances)
        # Its files are the same, and the directories that it was loaded from stay as long as it does.
        kept = replace(
            spec,
            model_directory=state.spec.model_directory,
            version_directory=state.spec.version_directory,
        )
        self.enter("scaling")
        reason = ""
        with trio.move_on_after(spec.load_timeout or math.inf) as limit:
            try:
                kept = await self._around.placing.place(kept, had.instances)
                await self._around.tree.scale(state, kept)
            except TritiumError as error:
                reason = error.message
            finally:
                self._around.placing.settled(kept)
        if limit.cancelled_caught:
            reason = too_slow(spec)
        if reason:
            self._around.log(
                Event.MODEL_LOAD_FAILED,
                level="error",
                model=spec.name,
                version=spec.version,
                reason=reason,
            )
            raise LoadFailed(spec.name, {spec.version: reason})
        if kept.instances != had.instances or spec.config_json != had.config_json:
            self._around.log(
                Event.MODEL_SCALED,
                model=spec.name,
                version=spec.version,
                instances=len(state.executing.instances),
                before=before,
            )
        now, then = _adapters(spec), _adapters(had)
        if now != then:
            self._around.log(
                Event.ADAPTERS_CHANGED,
                model=spec.name,
                version=spec.version,
                loaded=sorted(each.name for each in now - then),
                unloaded=sorted({each.name for each in then} - {each.name for each in now}),
            )
        return state

    def _swap(self, states: Mapping[int, ModelState], started: Mapping[int, ModelState]) -> None:
        """Send requests to `states` from now on. Everything before this could be undone."""
        around = self._around
        replaced = around.roster.serve(self.key, states)
        around.swapped(self.key, [states[number].spec for number in sorted(states)])
        self.load_seconds = max(
            [state.standing.load_seconds for state in started.values()], default=self.load_seconds
        )
        for number, state in sorted(started.items()):
            around.log(
                Event.MODEL_READY,
                model=self.key.name,
                version=number,
                load_seconds=round(state.standing.load_seconds, 3),
            )
        if replaced:
            around.log(
                Event.MODEL_SWAPPED,
                model=self.key.name,
                versions=sorted(states),
                replaced=sorted(state.spec.version for state in replaced),
            )
        for state in replaced:
            successor = states.get(state.spec.version)
            if successor is not None and successor.spec.metric_tags == state.spec.metric_tags:
                successor.statistics.earlier = earlier_than(state.statistics)
            self._retire(state, state.spec.drain_timeout)
        if started or replaced:
            self._on_changed()

    async def recompose(self) -> None:
        """Check again whether an ensemble's models fit together, after one of them has changed or gone.

        An ensemble that no longer fits is unloaded until it does. One that did not fit is loaded once it
        does.
        """
        if self._wanted is None:
            return
        found = self._around.compose(self._wanted)
        if not found.specs and self._composed is not None and self._composed is not self._wanted:
            found = self._around.compose(self._composed)  # the last reload failed; an older version serves
        present = {number: state.spec for number, state in self.serving.items()}
        if found.specs and {spec.version: spec for spec in found.specs} != present:
            await self.apply(found, override=self.override, awake=False)
        elif not found.specs and (present or self._found is not None):
            self._around.log(Event.MODEL_UNAVAILABLE, level="error", model=self.key.name, reason=found.reason)
            self._around.roster.set_dormant(self.key, None)
            self.retire_all()
            self._disown()

    # -- away from it ----------------------------------------------------------------------------------------

    def retire_all(self, *, patiently: bool = False) -> list[ModelState]:
        """Send no more requests to the model; accepted ones are answered. Returns the versions that retire.

        They have until their deadlines; if `patiently`, as long as they need.
        """
        replaced = self._around.roster.serve(self.key, {})
        self._around.swapped(self.key, [])
        for state in replaced:
            self._retire(state, math.inf if patiently else state.spec.drain_timeout)
        if replaced:
            self._on_changed()
        return replaced

    def unload(self) -> None:
        """Unload the model: no version of it serves any more, or waits for requests."""
        self._wanted = self._composed = None
        self.tried = False
        self._around.roster.set_dormant(self.key, None)
        if not self.retire_all():
            self._on_changed()  # it may have been dormant
        self._around.roster.unloaded(self.key)
        self._disown()
        self.content = self.refused = ""
        self._keep(None, "")
        self.setback = ""
        self.tell(reload_failed=None)
        self.explicit = False

    def leave(self) -> None:
        """The model is no longer in the repository."""
        self.left = True
        self.unload()
        self._around.roster.forget(self.key)
        self._around.left(self.key)

    def _retire(self, state: ModelState, within: float) -> None:
        state.standing.become(Status.UNLOADING)
        self._retiring[state] = trio.current_time() + within
        # It is being restarted, or the server is stopping and ends every subtree itself.
        with suppress(NotRunning):
            self._start_retirement(state)

    def resume_retirements(self) -> None:
        """Go on with the retirements that ended with their supervisor."""
        present = set(self._around.retirements.which_children())
        for state in self._retiring:
            if state.subtree not in present:
                self._start_retirement(state)

    def _start_retirement(self, state: ModelState) -> None:
        self._around.retirements.start_child_nowait(
            ChildSpec(
                state.subtree,
                lambda ctx: self._retirement(state, ctx),
                restart=Restart.TRANSIENT,
                shutdown=state.spec.drain_timeout,
                intensity=INTENSITY,
                on_exhausted=OnExhausted.RETRY_AT_CAP,
            )
        )

    async def _retirement(self, state: ModelState, ctx: ChildContext) -> None:
        """Drain one version until its deadline, and end it.

        If a life crashes, the next one begins anew.
        """
        if faults.points is not None:
            faults.points.passing("deployment.retirement")
        ctx.started()
        ctx.publish(model=state.spec.name, version=state.spec.version, in_flight=len(state.in_flight))
        spec = state.spec
        with trio.move_on_at(self._retiring[state]) as patience:
            await state.wait_drained()
        if patience.cancelled_caught:
            state.give_up(
                f"version {spec.version} of model '{spec.name}' was replaced or unloaded, and this request"
                f" was not answered within the {spec.drain_timeout:g} s of 'tritium.drain_timeout' after that"
            )
        with trio.CancelScope(shield=True):
            await self._around.tree.end(state)
        state.statistics.ended = True
        state.standing.become(Status.UNAVAILABLE, UNLOADED)
        self._around.roster.retired(self.key, state)
        self._loading.let_go(state)
        state.standing.ended.set()
        del self._retiring[state]
        self._on_retired()

    # -- on demand -------------------------------------------------------------------------------------------

    def _make_dormant(self) -> None:
        assert self._found is not None
        self._around.roster.set_dormant(self.key, self._around.dormant(self._found.specs))

    async def wake(self) -> None:
        """Load a model that is known and not loaded."""
        if self._found is None:
            raise Unavailable(f"model '{self.key.name}' is not known any more")
        if not self._around.roster.ready(self.key):
            await self.apply(self._found, override=self.override, forced=True)

    async def evict(self) -> bool:
        """Unload a model that is loaded on demand; returns once its workers have ended.

        Returns False if it was not loaded, or is no longer to be evicted. Its clients get no deadline, since
        the eviction is not their doing: the memory is freed when they have their answers.
        """
        if self._found is None or self._found.specs[0].residency is not Residency.ON_DEMAND:
            return False
        retiring = self.retire_all(patiently=True)
        for state in retiring:
            await state.standing.ended.wait()
        return bool(retiring)


def _adapters(spec: ModelSpec) -> frozenset[Adapter]:
    return frozenset(spec.scheduling.adapters if isinstance(spec.scheduling, LanguageServing) else ())
