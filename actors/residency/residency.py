"""Residency: which models are in memory. Loads those that requests wait for, and evicts others to make room.

`Residents` is passive: it knows every model that may be dormant, its waiting room, and its measurements. The
actor may die at any time. The requests wait on, and the next life looks at the present state and goes on from
there. `actors.residency.policy` decides what to do. Loading and unloading is the catalog's work, which
children of the actor ask for and await.

Requests to a loaded model cost nothing extra. Whether the model is in use is read from its state, when
another model needs its room.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from actors.residency.dormant import Dormant, WaitingRoom
from actors.residency.policy import Hold, Newcomer, Plan, Resident, estimate, plan, turn
from actors.seams import faults
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.router import Router
from actors.serving.standing import Status
from actors.supervision.context import ChildContext
from actors.supervision.errors import SupervisionError
from actors.values.errors import TritiumError
from actors.values.events import Event, Log
from actors.values.specs import ModelKey, ModelSpec, Residency

MEASURE_SECONDS: Final = 5.0
"""Seconds between two measurements.

The pause is longer where one takes long, so that nine tenths of the time are free of measurement.
"""

NOT_EVICTED_SECONDS: Final = 1.0
"""How long a model that could not be evicted is left alone."""


class Loads(Protocol):
    """What the actor asks of the catalog."""

    async def wake(self, key: ModelKey) -> None:
        """Load a dormant model; returns when it serves, at once if it does. Raises TritiumError."""

    async def evict(self, key: ModelKey) -> bool:
        """Make a model dormant again; returns once its workers have ended. False if it was not evicted."""


class Memory(Protocol):
    """How memory is measured. However long the kernel takes, the event loop does not wait for it."""

    async def of_processes(self, pids: Collection[int]) -> Mapping[int, int]:
        """Return the bytes that each process has resident; one that has ended is left out."""

    async def of_files(self, directory: Path) -> int:
        """Return the bytes of all files below a directory; 0 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResidency:
    """One model at the moment of a scrape; counters are None for a model that is never loaded on demand."""

    key: ModelKey
    resident: int
    counters: Counters | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What happened to a model that is loaded on demand.

    A wake is a load that requests waited for, counted from the first request to the last.
    """

    waiting: int
    loads: int
    evictions: int
    wakes: int
    wake_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencySample:
    """Memory of models, in bytes, at the moment of a scrape."""

    budget: int
    models: Sequence[ModelResidency]


class _Model:
    """What is remembered of a model that is loaded on demand, beside what can be observed."""

    __slots__ = (
        "evictions",
        "files",
        "fresh",
        "key",
        "last",
        "least",
        "leaving",
        "loading",
        "loads",
        "not_before",
        "reserved",
        "room",
        "sizing",
        "specs",
    )

    def __init__(self, key: ModelKey, ring: Callable[[], object]) -> None:
        self.key = key
        self.room = WaitingRoom(key, ring)
        self.specs: Sequence[ModelSpec] = ()
        # For each version the bytes of its files and the number of its worker processes.
        self.files: Sequence[tuple[int, int]] | None = None
        self.last: int | None = None  # bytes it took when last measured
        self.least: int | None = None  # bytes it took when first measured after a load
        self.fresh = False  # it has not been measured since it was loaded
        self.reserved = 0  # bytes that its load is expected to take
        self.sizing = self.loading = self.leaving = False  # what the actor has under way
        # When to try again to evict it, after an eviction that failed.
        self.not_before = 0.0
        self.loads = self.evictions = 0

    def respecify(self, specs: Sequence[ModelSpec]) -> None:
        """Take over specs. If the files or the configuration differ, the measurements are void."""
        if _fingerprint(specs) != _fingerprint(self.specs):
            self.files = self.last = self.least = None
            self.room.forgive()
        self.specs = specs

    def measured(self, nbytes: int) -> None:
        """The model serves, and takes `nbytes`."""
        self.last = nbytes
        if self.fresh:
            self.fresh, self.least = False, nbytes

    def overhead(self) -> float | None:
        """Return the bytes that each of its workers takes beside the files, where both are known."""
        workers = sum(count for _, count in self.files or ())
        if not (workers and self.last and self.files):
            return None
        return max(0.0, (self.last - sum(nbytes * count for nbytes, count in self.files)) / workers)

    def newcomer(self, overheads: Sequence[float]) -> Newcomer | None:
        """Return what the plan must know to load it; None before its files have been looked at."""
        if self.last is not None:
            least = self.last if self.least is None else min(self.least, self.last)
            return Newcomer(key=self.key, expected=self.last, least=least)
        if self.files is None:
            return None
        # No model is refused for the overhead of other models: its own load will show what it takes.
        least = sum(nbytes * workers for nbytes, workers in self.files)
        return Newcomer(key=self.key, expected=estimate(self.files, overheads), least=least)


def _fingerprint(specs: Sequence[ModelSpec]) -> list[tuple[int, str, bytes]]:
    return [(spec.version, spec.content, spec.config_json) for spec in specs]


class Residents:
    """Every model that takes memory or may be loaded on demand. See the module."""

    def __init__(self, router: Router, *, budget: int) -> None:
        """`budget` is how many bytes all models together may take."""
        self.router = router
        self.roster = router.roster
        self.budget = budget
        self.models: dict[ModelKey, _Model] = {}  # the actor's
        self.sizes: Mapping[int, int] = {}  # the actor's: bytes resident, by process
        self.closed = False
        self.changed = Bell()
        self.roster.on_change(lambda _: self.changed.ring())

    def dormant(self, specs: Sequence[ModelSpec]) -> Mapping[int, Dormant]:
        """Return the stand-ins for the versions of a model that is not loaded, for `Router.set_dormant`."""
        model = self.models.get(specs[0].key)
        if model is None:
            model = self.models[specs[0].key] = _Model(specs[0].key, self.changed.ring)
            if self.closed:
                model.room.close()
        model.respecify(specs)
        return {spec.version: Dormant(spec, model.room, self.router.resolve) for spec in specs}

    def close(self) -> None:
        """The server stops: answer all requests that wait for a load, and let no more in.

        From now on no model is loaded or evicted.
        """
        self.closed = True
        for model in self.models.values():
            model.room.close()

    def states(self, key: ModelKey) -> list[ModelState]:
        """Return the versions of a model that may take memory: those that serve, load or retire."""
        return [*self.roster.serving(key).values(), *self.roster.background(key)]

    def resident(self, key: ModelKey) -> int:
        """Return the bytes that a model was measured to take."""
        return sum(self.sizes.get(pid, 0) for pid in _pids(self.states(key)))

    def samples(self) -> ResidencySample:
        """Return a sample for metrics."""
        keys = self.roster.keys()
        models = [
            ModelResidency(
                key=key,
                resident=self.resident(key),
                counters=self._counters(self.models[key]) if key in self.models else None,
            )
            for key in keys
        ]
        return ResidencySample(budget=self.budget, models=models)

    @staticmethod
    def _counters(model: _Model) -> Counters:
        return Counters(
            waiting=model.room.waiting,
            loads=model.loads,
            evictions=model.evictions,
            wakes=model.room.wakes,
            wake_seconds=model.room.wake_seconds,
        )


async def run(
    ctx: ChildContext,
    *,
    residents: Residents,
    catalog: Loads,
    memory: Memory,
    log: Log,
    wall_clock: Callable[[], int],
) -> None:
    """Live one life of the actor.

    `wall_clock` gives milliseconds since the epoch, as statistics have them.
    """
    await _Life(ctx, residents, catalog, memory, log, wall_clock).run()


class _Life:
    """One life of the actor."""

    def __init__(
        self,
        ctx: ChildContext,
        residents: Residents,
        catalog: Loads,
        memory: Memory,
        log: Log,
        wall_clock: Callable[[], int],
    ) -> None:
        self._ctx = ctx
        self._residents = residents
        self._roster = residents.roster
        self._models = residents.models
        self._catalog = catalog
        self._memory = memory
        self._log = log
        self._wall_clock = wall_clock
        self._measure_now = Bell()
        self._watched: set[ModelState] = set()

    async def run(self) -> None:
        """Decide whenever something has changed; measure now and then."""
        for model in self._models.values():  # the work of the actor's previous life has ended
            model.sizing = model.loading = model.leaving = False
        self._ctx.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._measure_for_ever)
            heard = 0
            while True:
                look_at = self._turn(nursery, trio.current_time())
                with trio.move_on_at(look_at):
                    heard = await self._residents.changed.wait(heard)

    def _turn(self, nursery: trio.Nursery, now: float) -> float:
        """Do what can be done now; return when there is more to do if nothing changes before."""
        if faults.points is not None:
            faults.points.passing("residency.turn")
        look_at = math.inf
        if not self._residents.closed:
            newcomers = self._newcomers(nursery)
            if newcomers or sum(self._residents.sizes.values()) > self._residents.budget:
                look_at = self._make_room(newcomers, nursery, now)
        self._publish()
        return look_at

    def _make_room(self, newcomers: Sequence[Newcomer], nursery: trio.Nursery, now: float) -> float:
        residents = self._present(now)
        decided = plan(newcomers, residents, budget=self._residents.budget, now=now)
        self._carry_out(decided, newcomers, nursery)
        if decided.waiting:
            self._watch(residents, nursery)
        spared = [model.not_before for model in self._models.values() if model.not_before > now]
        return min([decided.look_at, *spared])

    # -- what is the case ------------------------------------------------------------------------------------

    def _newcomers(self, nursery: trio.Nursery) -> list[Newcomer]:
        """The models that wait to be admitted, the longest wait first.

        A model that needs no admission is handled at once.
        """
        found: list[Newcomer] = []
        wanted = [
            (model.room.wanted_since, model)
            for model in self._models.values()
            if model.room.wanted_since is not None and not model.loading
        ]
        if not wanted:
            return found
        overheads = [each for each in map(_Model.overhead, self._models.values()) if each is not None]
        for _, model in sorted(wanted, key=lambda each: each[0]):
            if self._answered_by_state(model, nursery):
                continue
            newcomer = model.newcomer(overheads)
            if newcomer is not None:
                found.append(newcomer)
            elif not model.sizing:
                model.sizing = True
                nursery.start_soon(self._look_at_files, model)
        return found

    def _answered_by_state(self, model: _Model, nursery: trio.Nursery) -> bool:
        """Whether `model` needs no admission: it serves, or can't, or is being loaded for another reason."""
        serving = self._roster.serving(model.key).values()
        if any(state.status is Status.READY for state in serving):
            model.room.open()
            return True
        if serving:
            state = next(iter(serving))
            model.room.refuse(f"is loaded and can't serve: {state.reason or state.status.value}")
            return True
        if any(state.status is Status.LOADING for state in self._roster.background(model.key)):
            self._start_load(model, 0, nursery)
            return True
        return False

    def _present(self, now: float) -> list[Resident]:
        keys = {*self._roster.keys(), *(key for key, model in self._models.items() if model.loading)}
        return [each for key in sorted(keys) for each in self._parts(key, now)]

    def _parts(self, key: ModelKey, now: float) -> list[Resident]:
        """A model as the plan sees it.

        Its retiring versions are listed apart, since their memory is as good as free.
        """
        model = self._models.get(key)
        states = self._residents.states(key)
        retiring = [
            each
            for each in self._roster.background(key)
            if each.status in {Status.UNLOADING, Status.UNAVAILABLE}
        ]
        staying = [each for each in states if each not in retiring]
        parts = []
        if staying or (model is not None and model.loading):
            parts.append(self._resident(key, model, staying, now, changing=len(retiring) > 0))
        if retiring:
            parts.append(Resident(key=key, nbytes=self._nbytes(retiring), hold=Hold.CHANGE, leaving=True))
        return parts

    def _resident(
        self, key: ModelKey, model: _Model | None, states: Sequence[ModelState], now: float, *, changing: bool
    ) -> Resident:
        nbytes = self._nbytes(states)
        if model is not None and (model.loading or not self._all_measured(states)):
            nbytes = max(nbytes, model.reserved)
        return Resident(
            key=key,
            nbytes=nbytes,
            hold=Hold.CHANGE if changing else self._hold(key, model, states, now),
            last_used=max((self._last_used(each) for each in states), default=0.0),
            turn_ends=max(
                (each.standing.since + turn(each.standing.load_seconds) for each in states), default=now
            ),
            leaving=model is not None and model.leaving,
        )

    def _hold(self, key: ModelKey, model: _Model | None, states: Sequence[ModelState], now: float) -> Hold:
        if model is None or any(
            spec.residency is not Residency.ON_DEMAND
            for spec in [each.spec for each in states] or model.specs
        ):
            return Hold.FOR_GOOD
        changing = (
            model.loading or model.room.waiting or now < model.not_before or self._roster.background(key)
        )
        if changing or any(each.status is not Status.READY for each in states):
            return Hold.CHANGE
        accepted = [
            min(request.accepted_at for request in each.in_flight) for each in states if each.in_flight
        ]
        if not accepted:
            return Hold.NOTHING
        # A drain takes about as long as the oldest request has been here, and must end in time.
        within = min(each.spec.drain_timeout for each in states) / 2
        return Hold.REQUESTS if now - min(accepted) < within else Hold.LONG_REQUEST

    def _last_used(self, state: ModelState) -> float:
        """Seconds since the epoch."""
        used = max(state.statistics.last_inference_ms, state.statistics.last_hit_ms) / 1e3
        return used or self._wall_clock() / 1e3 - (trio.current_time() - state.standing.since)

    def _nbytes(self, states: Sequence[ModelState]) -> int:
        return sum(self._residents.sizes.get(pid, 0) for pid in _pids(states))

    def _all_measured(self, states: Sequence[ModelState]) -> bool:
        return all(pid in self._residents.sizes for pid in _pids(states))

    def _publish(self) -> None:
        models = self._models.values()
        self._ctx.publish(
            waiting={str(each.key): each.room.waiting for each in models if each.room.waiting} or None,
            loading=[str(each.key) for each in models if each.loading] or None,
            evicting=[str(each.key) for each in models if each.leaving] or None,
        )

    # -- what is done ----------------------------------------------------------------------------------------

    def _carry_out(self, decided: Plan, newcomers: Sequence[Newcomer], nursery: trio.Nursery) -> None:
        expected = {each.key: each.expected for each in newcomers}
        for key, why in decided.refuse.items():
            self._models[key].room.refuse(why)
        for key, newcomer in decided.evict.items():
            self._models[key].leaving = True
            nursery.start_soon(self._evict, self._models[key], newcomer)
        for key in decided.start:
            self._start_load(self._models[key], expected[key], nursery)

    def _start_load(self, model: _Model, reserved: int, nursery: trio.Nursery) -> None:
        model.loading, model.reserved = True, reserved
        nursery.start_soon(self._load, model)

    async def _load(self, model: _Model) -> None:
        try:
            await self._catalog.wake(model.key)
        except (TritiumError, SupervisionError) as error:
            model.room.load_failed(str(error).strip())
        else:
            model.loads += 1
            model.fresh = True
            model.room.open()
            self._measure_now.ring()
        model.loading = False
        self._residents.changed.ring()

    async def _evict(self, model: _Model, newcomer: ModelKey | None) -> None:
        freed = self._residents.resident(model.key)
        try:
            evicted = await self._catalog.evict(model.key)
        except (TritiumError, SupervisionError) as error:
            self._log(Event.MODEL_UNLOADING, level="warning", model=str(model.key), error=str(error))
            evicted = False
        if evicted:
            model.evictions += 1
            why = "memory is over the budget" if newcomer is None else f"memory is needed for '{newcomer}'"
            self._log(Event.MODEL_EVICTED, model=str(model.key), reason=why, freed_bytes=freed)
        else:
            model.not_before = trio.current_time() + NOT_EVICTED_SECONDS
        model.leaving = False
        self._residents.changed.ring()

    async def _look_at_files(self, model: _Model) -> None:
        specs = model.specs
        files = [
            (
                await self._memory.of_files(spec.version_directory),
                0 if spec.isolation == "thread" else len(spec.instances),
            )
            for spec in specs
        ]
        if specs is model.specs:  # if they have changed, the files are looked at again
            model.files = files
        model.sizing = False
        self._residents.changed.ring()

    def _watch(self, residents: Sequence[Resident], nursery: trio.Nursery) -> None:
        """A model waits for room: look again when a busy model has become idle."""
        for resident in residents:
            if resident.hold in {Hold.REQUESTS, Hold.LONG_REQUEST}:
                for state in self._roster.serving(resident.key).values():
                    if state not in self._watched:
                        self._watched.add(state)
                        nursery.start_soon(self._ring_when_idle, state)

    async def _ring_when_idle(self, state: ModelState) -> None:
        await state.wait_drained()
        self._watched.discard(state)
        self._residents.changed.ring()

    async def _measure_for_ever(self) -> None:
        heard = 0
        while True:
            began = trio.current_time()
            await self._measure()
            pause = max(MEASURE_SECONDS, 9 * (trio.current_time() - began))
            with trio.move_on_after(pause):
                heard = await self._measure_now.wait(heard)

    async def _measure(self) -> None:
        keys = self._roster.keys()
        pids = {pid for key in keys for pid in _pids(self._residents.states(key))}
        self._residents.sizes = await self._memory.of_processes(pids)
        for key, model in self._models.items():
            serving = list(self._roster.serving(key).values())
            whole = serving and not self._roster.background(key) and self._all_measured(serving)
            if whole and not model.loading and all(each.status is Status.READY for each in serving):
                model.measured(self._nbytes(serving))
        found = {str(key): self._residents.resident(key) for key in keys}
        self._ctx.publish(
            budget=self._residents.budget,
            resident=sum(found.values()),
            models={name: nbytes for name, nbytes in found.items() if nbytes} or None,
        )
        self._residents.changed.ring()


def _pids(states: Sequence[ModelState]) -> list[int]:
    """Return the worker processes of `states`.

    The memory of an instance on a thread of the server can't be told from the server's own.
    """
    own = os.getpid()
    found = (each.pid for state in states for each in state.instances)
    return [pid for pid in found if pid is not None and pid != own]
