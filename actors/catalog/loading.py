"""Loading versions beside the serving ones, and probing them, until they may be swapped in.

Nothing here touches the versions that serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from actors.catalog.found import FoundModel, LocalCopy
from actors.serving.instances.phases import LoadPhases
from actors.serving.model import ModelState
from actors.serving.probing import ProbeOutcome, passes, probe
from actors.serving.routing.roster import Roster
from actors.serving.standing import Status
from actors.supervision.supervisor import Supervisor
from actors.values.errors import Internal, InvalidArgument, TritiumError
from actors.values.events import Event, Log
from actors.values.interfaces import UNLOADED
from actors.values.requests import ServedModel
from actors.values.specs import InstanceSpec, ModelKey, ModelSpec, Probe

SLOW_SECONDS: Final = 10.0
"""A load that takes longer lets others begin: it waits for something other than the processor."""

PROBE_SECONDS: Final = 30.0
"""Seconds that a probe inference may take where `tritium.execution_timeout` is not set."""

OUTDATED: Final = "Unavailable: Newer operation has been applied to the model lifecycle, current load operation is out-dated."


class ModelTree(Protocol):
    """Starts and ends the subtree of a model version; `engine.server.version_tree` knows the parts of a subtree."""

    def make_state(self, spec: ModelSpec) -> ModelState:
        """Return the state of a version that is about to be loaded. No other code knows that state yet."""

    async def start(self, state: ModelState) -> None:
        """Start the subtree; returns when its actors run. The load ends with `state.load_finished`."""

    async def scale(self, state: ModelState, spec: ModelSpec) -> None:
        """Start and stop instances of a READY version until they match those of `spec`.

        Raises Internal; then nothing has changed.
        """

    async def end(self, state: ModelState) -> None:
        """End the subtree. Idempotent."""


class Placing(Protocol):
    """Chooses the devices of a version's instances; `engine.processes.gpus.placing` knows what is free."""

    async def place(self, spec: ModelSpec, before: Sequence[InstanceSpec] = ()) -> ModelSpec:
        """Return the version with all of its instances on devices.

        Those that were there `before` stay. Raises TritiumError if the version may not be loaded. `settled`
        follows once it is, or has failed.
        """

    def settled(self, spec: ModelSpec) -> None:
        """A version that was placed has taken what memory it takes, or none."""


class AsGiven:
    """Every instance is where its configuration says. Implements `Placing`."""

    async def place(self, spec: ModelSpec, before: Sequence[InstanceSpec] = ()) -> ModelSpec:
        """See `Placing`."""
        return spec

    def settled(self, spec: ModelSpec) -> None:
        """See `Placing`."""


def _as_found(found: FoundModel) -> FoundModel:
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The parts of the server that every deployment works with."""

    roster: Roster
    tree: ModelTree
    retirements: Supervisor  # dynamic: a temporary child for each version that drains
    # Returns the stand-ins of a model that is loaded on demand.
    dormant: Callable[[Sequence[ModelSpec]], Mapping[int, ServedModel]]
    swapped: Callable[[ModelKey, Sequence[ModelSpec]], None]  # is told what serves now
    left: Callable[[ModelKey], None]  # is told which model is no longer in the repository
    loads: trio.CapacityLimiter
    extra_attempts: int
    log: Log
    placing: Placing = field(default_factory=AsGiven)
    compose: Callable[[FoundModel], FoundModel] = _as_found
    """Completes an ensemble from its composing models, which are loaded, or says why they don't fit."""


class LoadFailed(InvalidArgument):
    """Some version could not be loaded, in the words of contract repository.md section 5."""

    def __init__(self, name: str, reasons: Mapping[int, str]) -> None:
        told = "".join(
            f"version {version} is at UNAVAILABLE state: {reason};"
            for version, reason in sorted(reasons.items())
        )
        super().__init__(f"load failed for model '{name}': {told}\n")
        self.reasons = reasons


class Superseded(LoadFailed):
    """A load whose place an order to unload has taken.

    If the load had not come to the versions yet, it names none.
    """

    def __init__(self, name: str, versions: Iterable[int]) -> None:
        super().__init__(name, dict.fromkeys(versions, OUTDATED))
        if not self.reasons:
            self.message = f"load failed for model '{name}': {OUTDATED};\n"


class Loading:
    """The loads of one model. `enter` is told the phase that they are in."""

    def __init__(self, key: ModelKey, around: Surroundings, enter: Callable[..., None]) -> None:
        self._key = key
        self._around = around
        self._enter = enter
        self._copies: dict[ModelState, LocalCopy] = {}

    @property
    def _serving(self) -> Mapping[int, ModelState]:
        return self._around.roster.serving(self._key)

    async def bring_up(
        self, specs: Sequence[ModelSpec], found: FoundModel, before: Mapping[str, float]
    ) -> dict[int, ModelState]:
        """Load versions beside the serving ones; all of them, or none. Raises LoadFailed.

        `before`: the seconds of the phases that are over, for metrics.
        """
        loaded: dict[int, ModelState] = {}
        reasons: dict[int, str] = {}

        async def load(spec: ModelSpec) -> None:
            outcome = await self._load(spec, found, before)
            if isinstance(outcome, ModelState):
                loaded[spec.version] = outcome
            else:
                reasons[spec.version] = outcome

        try:
            async with trio.open_nursery() as nursery:
                for spec in specs:
                    nursery.start_soon(load, spec)
        except BaseException:
            await self.abandon(loaded.values(), OUTDATED)
            raise
        if reasons:
            await self.abandon(loaded.values(), UNLOADED)
            raise LoadFailed(self._key.name, reasons)
        return loaded

    async def _load(
        self, spec: ModelSpec, found: FoundModel, before: Mapping[str, float]
    ) -> ModelState | str:
        """Return the state of a version that is loaded and has passed its probe, or why there is none."""
        around = self._around
        reason = ""
        for attempt in range(1, 2 + around.extra_attempts):
            self._enter("waiting", attempt=attempt)
            phases = LoadPhases(before)
            phases.enter("waiting", trio.current_time())
            slot = object()
            await around.loads.acquire_on_behalf_of(slot)
            state: ModelState | None = None
            placed: ModelSpec | None = None
            try:
                placed, reason = await self._placed(spec)
                state = around.tree.make_state(placed or spec)
                phases.enter("starting", trio.current_time())
                state.follow(phases)
                if found.copy is not None:
                    found.copy.hold()
                    self._copies[state] = found.copy
                around.roster.load_begun(self._key, state)
                self._enter("loading", attempt=attempt)
                around.log(Event.MODEL_LOADING, model=spec.name, version=spec.version, attempt=attempt)
                if not reason:
                    await around.tree.start(state)
                    reason = await self._wait_loaded(state, slot)
                if not reason:
                    self._enter("probing", attempt=attempt)
                    phases.enter("probing", trio.current_time())
                    reason = await self._probe(state)
                if not reason:
                    phases.end(trio.current_time())
                    return state
            except BaseException:
                if state is not None:
                    await self.abandon([state], OUTDATED)
                raise
            finally:
                self._give_back(slot)
                if placed is not None:
                    around.placing.settled(placed)
            await self.abandon([state], reason)
            around.log(
                Event.MODEL_LOAD_FAILED if self._serving else Event.MODEL_UNAVAILABLE,
                level="error",
                model=spec.name,
                version=spec.version,
                attempt=attempt,
                reason=reason,
            )
        return reason

    async def _placed(self, spec: ModelSpec) -> tuple[ModelSpec | None, str]:
        """Return the version on its devices, or why it can't be loaded there."""
        try:
            return await self._around.placing.place(spec), ""
        except TritiumError as error:
            return None, error.render()

    async def _wait_loaded(self, state: ModelState, slot: object) -> str:
        """Wait for the end of the load; return why it failed, or an empty string."""
        limit = state.spec.load_timeout
        began = trio.current_time()
        with trio.move_on_after(min(limit or SLOW_SECONDS, SLOW_SECONDS)):
            await state.standing.load_finished.wait()
        if not state.standing.load_finished.is_set():
            self._give_back(slot)
            with trio.move_on_at(began + (limit or float("inf"))):
                await state.standing.load_finished.wait()
        if not state.standing.load_finished.is_set():
            return too_slow(state.spec)
        return "" if state.status is Status.READY else state.reason

    def _give_back(self, slot: object) -> None:
        try:
            self._around.loads.release_on_behalf_of(slot)
        except RuntimeError:
            return  # a slow load has given it back already

    async def _probe(self, state: ModelState) -> str:
        """Return why the version must not serve, or an empty string.

        If the version replaces none, there is no answer to compare with, and no serving version to protect.
        Then a probe runs only if it is required.
        """
        setting = state.spec.probe
        ready = self._around.roster.ready(self._key)
        if setting is Probe.OFF or (setting is Probe.COMPARE and not ready):
            return ""
        within = state.spec.execution_timeout or PROBE_SECONDS
        outcome = await probe(state, within=within)
        before: ProbeOutcome | None = None
        if setting is Probe.COMPARE and outcome.error:
            before = await probe(ready.get(state.spec.version) or ready[max(ready)], within=within)
        reason = passes(setting, before, outcome)
        return f"Internal: {reason}" if reason else ""

    async def abandon(self, states: Iterable[ModelState], reason: str) -> None:
        """End versions that will not serve after all."""
        with trio.CancelScope(shield=True):
            for state in list(states):
                await self._around.tree.end(state)
                self._around.roster.load_ended(self._key, state, reason)
                self.let_go(state)

    def let_go(self, state: ModelState) -> None:
        """A version has ended, and no longer needs its files."""
        copy = self._copies.pop(state, None)
        if copy is not None:
            copy.let_go()


def too_slow(spec: ModelSpec) -> str:
    """Return the failure reason of a load that took too long."""
    return f"Unavailable: the model was not loaded within the {spec.load_timeout:g} s of tritium.load_timeout"


def not_polled(key: ModelKey, reason: str) -> Internal:
    """Return the error for a model that can't be read.

    It is the contract's text (repository.md section 5), and the reason.
    """
    return Internal(f"failed to load '{key.name}', failed to poll from model repository: {reason}")
