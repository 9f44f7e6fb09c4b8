"""Residency: which models are in memory. Loads those that requests wait for, and evicts others to make room.

The actor may die at any time. The requests wait on, and the next life looks at the present state
(`actors.residency.residents`) and goes on from there. `actors.residency.policy` decides what to do. Loading
and unloading is the catalog's work, which children of the actor ask for and await.

Requests to a loaded model cost nothing extra. Whether the model is in use is read from its state, when
another model needs its room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import trio

from actors.residency.policy import KeptBy, Newcomer, Place, Plan, Resident, plan_places, turn
from actors.residency.residents import OnDemand, Residents, pids_of, standing_of, wanted_since
from actors.residency.sleepers import Sleepers, has_woken, why_freed
from actors.seams import faults
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.supervision.context import ChildContext
from actors.supervision.errors import SupervisionError
from actors.values.errors import TritiumError
from actors.values.events import Event, Log
from actors.values.generation.sleeping import SleepState
from actors.values.specs import ModelKey, Residency

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

    async def of_gpus(self, pids: Collection[int]) -> Mapping[int, Mapping[int, int]]:
        """Return the bytes that processes have on each GPU, as far as that can be told."""

    async def of_files(self, directory: Path) -> int:
        """Return the bytes of all files below a directory; 0 where there is none."""


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
        self._sleepers = Sleepers(residents, log, self._measure_now)
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
        for model in self._models.values():
            self._sleepers.follow(model, now)
        self._sleepers.wake_those_that_end()
        if not self._residents.closed:
            newcomers = self._newcomers(nursery)
            if newcomers or self._over_budget():
                look_at = self._make_room(newcomers, nursery, now)
        self._publish()
        return look_at

    def _over_budget(self) -> bool:
        over = sum(self._residents.sizes.values()) > self._residents.budget
        return over or any(
            sum(self._residents.on_gpus.get(gpu, {}).values()) > budget
            for gpu, budget in self._residents.gpu_budgets.items()
        )

    def _make_room(self, newcomers: Sequence[Newcomer], nursery: trio.Nursery, now: float) -> float:
        residents = self._present(now)
        places = [
            Place(name="", budget=self._residents.budget, residents=residents, newcomers=newcomers),
            *(
                self._on_gpu(gpu, budget, residents, newcomers)
                for gpu, budget in self._residents.gpu_budgets.items()
            ),
        ]
        decided = plan_places(places, now=now)
        self._carry_out(decided, newcomers, nursery)
        if decided.waiting:
            self._watch(residents, nursery)
        spared = [model.not_before for model in self._models.values() if model.not_before > now]
        return min([decided.look_at, *spared])

    def _on_gpu(
        self, gpu: int, budget: int, residents: Sequence[Resident], newcomers: Sequence[Newcomer]
    ) -> Place:
        """A GPU as the plan sees it. A model that sleeps is as large as measured, and no newcomer."""
        sizes = self._residents.on_gpus.get(gpu, {})
        there: dict[ModelKey, Resident] = {}
        for each in residents:
            if each.key in there and each.leaving:
                continue  # a part of it; the model itself counts
            model = self._models.get(each.key)
            states = self._residents.states(each.key)
            nbytes = sum(sizes.get(pid, 0) for pid in pids_of(states))
            if model is not None and (model.loading or not self._all_measured(states)):
                expected = model.newcomer_on(gpu)
                nbytes = max(nbytes, 0 if expected is None else expected.expected)
            there[each.key] = replace(each, nbytes=nbytes, rests=None)
        coming = [
            found
            for each in newcomers
            if each.has is None and (found := self._models[each.key].newcomer_on(gpu)) is not None
        ]
        return Place(name=f"GPU {gpu}", budget=budget, residents=list(there.values()), newcomers=coming)

    # -- what is the case ------------------------------------------------------------------------------------

    def _newcomers(self, nursery: trio.Nursery) -> list[Newcomer]:
        """The models that wait to be admitted, the longest wait first.

        A model that needs no admission is handled at once.
        """
        found: list[Newcomer] = []
        sleeping = {
            model: since
            for model in self._models.values()
            if (since := wanted_since(self._residents.sleepers(model.key))) is not None
        }
        wanted = {
            model: model.room.wanted_since
            for model in self._models.values()
            if model.room.wanted_since is not None and not model.loading
        }
        if not (sleeping or wanted):
            return found
        overheads = [each for each in map(OnDemand.overhead, self._models.values()) if each is not None]
        for model, _ in sorted({**wanted, **sleeping}.items(), key=lambda each: each[1]):
            if model not in sleeping and self._answered_by_state(model, nursery):
                continue
            newcomer = model.newcomer(overheads)
            if newcomer is not None and model in sleeping:
                has = self._has_asleep(model)
                newcomer = replace(
                    newcomer,
                    expected=max(0, newcomer.expected - has),
                    least=max(0, newcomer.least - has),
                    has=has,
                )
            if newcomer is not None:
                found.append(newcomer)
            elif not model.sizing:
                model.sizing = True
                nursery.start_soon(self._look_at_files, model)
        return found

    def _answered_by_state(self, model: OnDemand, nursery: trio.Nursery) -> bool:
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
            whole = self._resident(key, model, staying, now, changing=len(retiring) > 0)
            parts += [whole] if model is None else self._sleepers.parts(model, whole)
        if retiring:
            parts.append(Resident(key=key, nbytes=self._nbytes(retiring), hold=KeptBy.CHANGE, leaving=True))
        return parts

    def _resident(
        self,
        key: ModelKey,
        model: OnDemand | None,
        states: Sequence[ModelState],
        now: float,
        *,
        changing: bool,
    ) -> Resident:
        nbytes = self._nbytes(states)
        if model is not None and (
            model.loading or not self._all_measured(states) or (has_woken(model) and not model.counted)
        ):
            nbytes = max(nbytes, model.reserved)
        return Resident(
            key=key,
            nbytes=nbytes,
            hold=KeptBy.CHANGE if changing else self._hold(key, model, states, now),
            last_used=max((self._last_used(each) for each in states), default=0.0),
            turn_ends=max((_turn_ends(each) for each in states), default=now),
            leaving=model is not None and model.leaving,
        )

    def _has_asleep(self, model: OnDemand) -> int:
        """Return the bytes that a sleeper has, as the plan is told of it."""
        parts = self._parts(model.key, trio.current_time())
        return sum(each.nbytes for each in parts if each.hold is KeptBy.WANTED)

    def _hold(
        self, key: ModelKey, model: OnDemand | None, states: Sequence[ModelState], now: float
    ) -> KeptBy:
        if model is None or any(
            spec.residency is not Residency.ON_DEMAND
            for spec in [each.spec for each in states] or model.specs
        ):
            return KeptBy.FOR_GOOD
        changing = (
            model.loading or model.room.waiting or now < model.not_before or self._roster.background(key)
        )
        if changing or any(each.status is not Status.READY for each in states):
            return KeptBy.CHANGE
        accepted = [
            min(request.accepted_at for request in each.in_flight) for each in states if each.in_flight
        ]
        if not accepted:
            return KeptBy.NOTHING
        # A drain takes about as long as the oldest request has been here, and must end in time.
        within = min(each.spec.drain_timeout for each in states) / 2
        return KeptBy.REQUESTS if now - min(accepted) < within else KeptBy.LONG_REQUEST

    def _last_used(self, state: ModelState) -> float:
        """Seconds since the epoch."""
        used = max(state.statistics.last_inference_ms, state.statistics.last_hit_ms) / 1e3
        return used or self._wall_clock() / 1e3 - (trio.current_time() - state.standing.since)

    def _nbytes(self, states: Sequence[ModelState]) -> int:
        return sum(self._residents.sizes.get(pid, 0) for pid in pids_of(states))

    def _all_measured(self, states: Sequence[ModelState]) -> bool:
        return all(pid in self._residents.sizes for pid in pids_of(states))

    def _publish(self) -> None:
        models = self._models.values()

        def standing(*states: SleepState) -> list[str] | None:
            return [str(each.key) for each in models if each.seen in states] or None

        self._ctx.publish(
            asleep=standing(SleepState.ASLEEP),
            falling_asleep=standing(SleepState.FALLING),
            waking=standing(SleepState.WAKING),
            waiting={str(each.key): each.room.waiting for each in models if each.room.waiting} or None,
            loading=[str(each.key) for each in models if each.loading] or None,
            evicting=[str(each.key) for each in models if each.leaving] or None,
            on_demand=[str(each.key) for each in models] or None,
        )

    # -- what is done ----------------------------------------------------------------------------------------

    def _carry_out(self, decided: Plan, newcomers: Sequence[Newcomer], nursery: trio.Nursery) -> None:
        expected = {each.key: each.expected for each in newcomers}
        waking = {each.key: each.has for each in newcomers if each.has is not None}
        for key, why in decided.refuse.items():
            if key in waking:
                for sleeper in self._residents.sleepers(key):
                    sleeper.refuse(why)
            else:
                self._models[key].room.refuse(why)
        for key, newcomer in decided.sleep.items():
            self._sleepers.put_to_sleep(self._models[key], newcomer)
        for key, newcomer in decided.evict.items():
            self._models[key].leaving = True
            nursery.start_soon(self._evict, self._models[key], newcomer)
        for key in decided.start:
            if key in waking:
                self._sleepers.wake(self._models[key], waking[key] + expected[key])
            else:
                self._start_load(self._models[key], expected[key], nursery)

    def _start_load(self, model: OnDemand, reserved: int, nursery: trio.Nursery) -> None:
        model.loading, model.reserved = True, reserved
        nursery.start_soon(self._load, model)

    async def _load(self, model: OnDemand) -> None:
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

    async def _evict(self, model: OnDemand, newcomer: ModelKey | None) -> None:
        freed = self._residents.resident(model.key)
        try:
            evicted = await self._catalog.evict(model.key)
        except (TritiumError, SupervisionError) as error:
            self._log(Event.MODEL_UNLOADING, level="warning", model=str(model.key), error=str(error))
            evicted = False
        if evicted:
            model.evictions += 1
            self._log(
                Event.MODEL_EVICTED, model=str(model.key), reason=why_freed(newcomer), freed_bytes=freed
            )
        else:
            model.not_before = trio.current_time() + NOT_EVICTED_SECONDS
        model.leaving = False
        self._residents.changed.ring()

    async def _look_at_files(self, model: OnDemand) -> None:
        specs = model.specs
        files = [
            (
                sum([await self._memory.of_files(each) for each in spec.directories]),
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
            if resident.hold in {KeptBy.REQUESTS, KeptBy.LONG_REQUEST}:
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
        pids = {pid for key in keys for pid in pids_of(self._residents.states(key))}
        before = {key: standing_of(self._residents.sleepers(key)) for key in self._models}
        if self._residents.gpu_budgets:
            self._residents.on_gpus = await self._memory.of_gpus(pids)
        self._residents.sizes = await self._memory.of_processes(pids)
        for key, model in self._models.items():
            serving = list(self._roster.serving(key).values())
            whole = serving and not self._roster.background(key) and self._all_measured(serving)
            ready = whole and not model.loading and all(each.status is Status.READY for each in serving)
            if ready and before[key] is standing_of(self._residents.sleepers(key)):
                self._sleepers.measured(model, before[key], self._nbytes(serving))
                if before[key] is SleepState.AWAKE:
                    model.on_gpus = self._residents.of_gpus(serving)
        found = {str(key): self._residents.resident(key) for key in keys}
        self._ctx.publish(
            budget=self._residents.budget,
            resident=sum(found.values()),
            models={name: nbytes for name, nbytes in found.items() if nbytes} or None,
            gpus={
                str(gpu): {"budget": budget, "resident": sum(self._residents.on_gpus.get(gpu, {}).values())}
                for gpu, budget in self._residents.gpu_budgets.items()
            }
            or None,
        )
        self._residents.changed.ring()


def _turn_ends(state: ModelState) -> float:
    """Return when the turn of a model in steady use ends: since it was loaded, or has woken."""
    loaded = state.standing.since + turn(state.standing.load_seconds)
    sleeper = state.sleeper
    return loaded if sleeper is None else max(loaded, sleeper.awake_since + turn(sleeper.wake_seconds))
