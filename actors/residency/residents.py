"""Every model that takes memory or may be loaded on demand: its waiting room and its measurements. Passive.

The residency actor (`actors.residency.residency`) works on it, and may die at any time. The metric families
are those of models' memory, and of models that are loaded on demand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.residency.dormant import Dormant, WaitingRoom
from actors.residency.policy import Newcomer, asleep, estimate
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.policy.gpus.placing import devices_of
from actors.serving.ports import Sleeper
from actors.serving.routing.router import Router
from actors.values.families import (
    Block,
    Families,
    Family,
    Labels,
    Slice,
    SplitFamily,
    blocks,
    model_labels,
    once,
)
from actors.values.generation.sleeping import SleepState
from actors.values.specs import LanguageServing, ModelKey, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResidency:
    """One model at the moment of a scrape; counters are None for a model that is never loaded on demand."""

    key: ModelKey
    resident: int
    counters: OnDemandCounts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandCounts:
    """What happened to a model that is loaded on demand.

    A wake is a load that requests waited for, counted from the first request to the last.
    """

    waiting: int
    loads: int
    evictions: int
    wakes: int
    wake_seconds: float
    sleep: SleepCounts | None = None  # of a language model whose engines may be put to sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepCounts:
    """What is counted of the sleep of one model."""

    asleep: bool = False  # all of its engines are
    sleeps: int = 0
    awakenings: int = 0
    awakening_seconds: float = 0.0  # from the first request that waited until all engines were awake


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencySample:
    """Memory of models, in bytes, at the moment of a scrape."""

    budget: int
    models: Sequence[ModelResidency]


class OnDemand:
    """What is remembered of a model that is loaded on demand, beside what can be observed."""

    def __init__(self, key: ModelKey, ring: Callable[[], object]) -> None:
        self.key = key
        self.room = WaitingRoom(key, ring)
        self.specs: Sequence[ModelSpec] = ()
        # For each version the bytes of its files and the number of its worker processes.
        self.files: Sequence[tuple[int, int]] | None = None
        self.last: int | None = None  # bytes it took when last measured
        self.least: int | None = None  # bytes it took when first measured after a load
        self.on_gpus: Mapping[int, int] = {}  # bytes it took on each GPU when last measured
        self.fresh = False  # it has not been measured since it was loaded
        self.reserved = 0  # bytes that its load is expected to take
        self.sizing = self.loading = self.leaving = False  # what the actor has under way
        # When to try again to evict it, after an eviction that failed.
        self.not_before = 0.0
        self.loads = self.evictions = 0
        # Of a language model whose engines may be put to sleep:
        self.seen = SleepState.AWAKE  # where the actor saw them last
        self.counted = True  # it has been measured since then
        self.rested: int | None = None  # bytes it took asleep when last measured
        self.freeing: tuple[int, str] | None = None  # what it took before, and why it is put to sleep
        self.wanted_at = 0.0  # since when requests waited for it to wake
        self.sleeps = self.awakenings = 0
        self.awakening_seconds = 0.0

    def respecify(self, specs: Sequence[ModelSpec]) -> None:
        """Take over specs. If the files or the configuration differ, the measurements are void."""
        if _fingerprint(specs) != _fingerprint(self.specs):
            self.files = self.last = self.least = self.rested = None
            self.on_gpus = {}
            self.room.forgive()
        self.specs = specs

    def measured(self, nbytes: int) -> None:
        """The model serves, and takes `nbytes`."""
        self.last = nbytes
        if self.fresh:
            self.fresh, self.least = False, nbytes

    def resting(self, level: int) -> int:
        """Return the bytes that it is thought to take asleep."""
        return asleep(level, self.files or ()) if self.rested is None else self.rested

    def overhead(self) -> float | None:
        """Return the bytes that each of its workers takes beside the files, where both are known."""
        workers = sum(count for _, count in self.files or ())
        if not (workers and self.last and self.files):
            return None
        return max(0.0, (self.last - sum(nbytes * count for nbytes, count in self.files)) / workers)

    def newcomer_on(self, gpu: int) -> Newcomer | None:
        """Return what the plan for a GPU must know to load it; None if it takes nothing there.

        Before it has been measured, each instance is thought to take the bytes of its files, or its limit.
        """
        counts = [devices_of(spec.instances).get(gpu, 0) for spec in self.specs]
        if self.last is not None:
            expected = self.on_gpus.get(gpu, 0)
        else:
            files = [nbytes for nbytes, _ in self.files or ()]
            expected = sum(nbytes * count for nbytes, count in zip(files, counts, strict=False))
        if not (expected or any(counts)):
            return None
        return Newcomer(key=self.key, expected=expected, least=expected)

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

    def __init__(self, router: Router, *, budget: int, on_gpus: Mapping[int, int] | None = None) -> None:
        """`budget` is how many bytes all models together may take; `on_gpus` the same, by GPU."""
        self.gpu_budgets = on_gpus or {}
        self.on_gpus: Mapping[int, Mapping[int, int]] = {}  # the actor's: bytes by GPU, and by process
        self.router = router
        self.roster = router.roster
        self.budget = budget
        self.models: dict[ModelKey, OnDemand] = {}  # the actor's
        self.sizes: Mapping[int, int] = {}  # the actor's: bytes resident, by process
        self.closed = False
        self.changed = Bell()
        self.roster.on_change(self._look)

    def _look(self, key: ModelKey) -> None:
        """A model has changed."""
        for state in self.states(key):
            if state.sleeper is not None:
                state.sleeper.on_change = self.changed.ring
        self.changed.ring()

    def dormant(self, specs: Sequence[ModelSpec]) -> Mapping[int, Dormant]:
        """Return the stand-ins for the versions of a model that is not loaded, for `Router.set_dormant`."""
        model = self.models.get(specs[0].key)
        if model is None:
            model = self.models[specs[0].key] = OnDemand(specs[0].key, self.changed.ring)
            if self.closed:
                model.room.close()
        model.respecify(specs)
        return {spec.version: Dormant(spec, model.room, self.router.resolve) for spec in specs}

    def close(self) -> None:
        """The server stops: answer all requests that wait for a load, and let no more in.

        From now on no model is loaded or evicted, and those that sleep are woken for what they have accepted.
        """
        self.closed = True
        for model in self.models.values():
            model.room.close()
        self.changed.ring()

    def states(self, key: ModelKey) -> list[ModelState]:
        """Return the versions of a model that may take memory: those that serve, load or retire."""
        return [*self.roster.serving(key).values(), *self.roster.background(key)]

    def sleepers(self, key: ModelKey) -> list[Sleeper]:
        """Return what puts the versions of a model that serve to sleep; nothing if any may not be."""
        found = [state.sleeper for state in self.roster.serving(key).values()]
        sleepers = [each for each in found if each is not None and each.level]
        return sleepers if len(sleepers) == len(found) else []

    def waiting(self, key: ModelKey) -> int:
        """Return how many requests wait for a model that sleeps."""
        states = [each for each in self.roster.serving(key).values() if each.sleeper is not None]
        return sum(
            len(each.in_flight)
            for each in states
            if each.sleeper is not None and each.sleeper.wanted_since is not None
        )

    def resident(self, key: ModelKey) -> int:
        """Return the bytes that a model was measured to take."""
        return sum(self.sizes.get(pid, 0) for pid in pids_of(self.states(key)))

    def of_gpus(self, states: Sequence[ModelState]) -> dict[int, int]:
        """Return the bytes that versions were measured to take on each GPU."""
        pids = pids_of(states)
        return {gpu: sum(sizes.get(pid, 0) for pid in pids) for gpu, sizes in self.on_gpus.items()}

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

    def _counters(self, model: OnDemand) -> OnDemandCounts:
        return OnDemandCounts(
            waiting=model.room.waiting + self.waiting(model.key),
            loads=model.loads,
            evictions=model.evictions,
            wakes=model.room.wakes,
            wake_seconds=model.room.wake_seconds,
            sleep=self._sleep_counts(model) if any(map(_may_sleep, model.specs)) else None,
        )

    @staticmethod
    def _sleep_counts(model: OnDemand) -> SleepCounts:
        return SleepCounts(
            asleep=model.seen is SleepState.ASLEEP,
            sleeps=model.sleeps,
            awakenings=model.awakenings,
            awakening_seconds=model.awakening_seconds,
        )


def _may_sleep(spec: ModelSpec) -> bool:
    return isinstance(spec.scheduling, LanguageServing) and spec.scheduling.sleep > 0


def standing_of(sleepers: Sequence[Sleeper]) -> SleepState | None:
    """Return where all versions of a model stand; None where some sleep, and others are awake."""
    states = {each.state for each in sleepers}
    for under_way in (SleepState.FALLING, SleepState.WAKING):
        if under_way in states:
            return under_way
    if len(states) == 1:
        return states.pop()
    return None if states else SleepState.AWAKE


def wanted_since(sleepers: Sequence[Sleeper]) -> float | None:
    """Return since when requests wait for one that sleeps."""
    since = [
        each.wanted_since
        for each in sleepers
        if each.state is SleepState.ASLEEP and each.wanted_since is not None
    ]
    return min(since, default=None)


def pids_of(states: Sequence[ModelState]) -> list[int]:
    """Return the worker processes of `states`.

    The memory of an instance on a thread of the server can't be told from the server's own.
    """
    own = os.getpid()
    found = [each.pid for state in states for each in state.executing.instances]
    found += [pid for state in states for pid in state.helpers()]
    return [pid for pid in found if pid is not None and pid != own]


MODELS: Final[Families[ModelResidency]] = (
    Family(
        "tritium_model_resident_bytes",
        "gauge",
        "Memory that a model's workers have resident, in bytes",
        lambda model: model.resident or None,
    ),
)

WHOLE: Final[Families[ResidencySample]] = (
    Family(
        "tritium_resident_bytes",
        "gauge",
        "Memory that the workers of all models have resident, in bytes",
        lambda sample: sum(model.resident for model in sample.models),
    ),
    Family(
        "tritium_resident_budget_bytes",
        "gauge",
        "Memory that all models together may take before some are evicted, in bytes",
        lambda sample: sample.budget,
    ),
)

ON_DEMAND: Final[Families[OnDemandCounts]] = (
    Family(
        "tritium_model_loads_on_demand_total",
        "counter",
        "Loads that a request brought about",
        lambda counters: counters.loads,
    ),
    Family(
        "tritium_model_evictions_total",
        "counter",
        "How often a model was unloaded to make room for others",
        lambda counters: counters.evictions,
    ),
    Family(
        "tritium_wake_waiting_requests",
        "gauge",
        "Requests that wait for their model to be loaded, or to wake",
        lambda counters: counters.waiting,
    ),
    Family(
        "tritium_model_asleep",
        "gauge",
        "Whether all engines of a language model sleep",
        lambda counters: None if counters.sleep is None else int(counters.sleep.asleep),
    ),
    Family(
        "tritium_model_sleeps_total",
        "counter",
        "How often the engines of a language model were put to sleep",
        lambda counters: None if counters.sleep is None else counters.sleep.sleeps,
    ),
    SplitFamily(
        "tritium_sleeper_wake_seconds",
        "summary",
        "How long sleeping models took to wake, from the first request that waited",
        lambda counters: _awakenings(counters.sleep),
    ),
    SplitFamily(
        "tritium_wake_seconds",
        "summary",
        "How long models took to be loaded on demand, from the first request that waited",
        lambda counters: (
            Slice(counters.wake_seconds, suffix="_sum"),
            Slice(counters.wakes, suffix="_count"),
        ),
    ),
)


def _awakenings(sleep: SleepCounts | None) -> Iterator[Slice]:
    if sleep is not None:
        yield Slice(sleep.awakening_seconds, suffix="_sum")
        yield Slice(sleep.awakenings, suffix="_count")


def residency_blocks(sample: ResidencySample) -> Iterator[Block]:
    """Yield how much memory models take, and what happened to those that are loaded on demand."""
    models = [(Labels(model_labels(each.key.name, each.key.namespace)), each) for each in sample.models]
    yield from blocks(MODELS, models)
    yield from once(WHOLE, sample)
    yield from blocks(ON_DEMAND, [(labels, m.counters) for labels, m in models if m.counters is not None])
