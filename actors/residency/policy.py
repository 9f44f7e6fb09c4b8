"""Which models are in memory: which one is evicted, and when a model that is asked for may be loaded.

The least recently used model is evicted first.

Memory is measured. So a plan is made from what models take now, and from what the model to be loaded took
last time. It is made anew whenever something has changed, from the present state alone. That is why it keeps
two sums apart:

- *promised*: what stays, and the share of every newcomer served so far. A model that is being evicted is not
  in it, or the same need would evict twice.
- *present*: what takes memory at this moment, models that are being evicted included. A load begins once it
  fits beside that.

Newcomers are served in the order in which they were asked for. A newcomer that waits for something that will
be over soon keeps those behind it from taking its place. A newcomer that waits for a long request keeps none
of them back: it could not use the room.

A model whose engines can sleep keeps its processes where that is enough: of all idle models, those are put
to sleep first, the least recently used first. Only if that is not enough are models evicted, sleepers among
them. One that sleeps and is wanted is a newcomer itself, for what waking takes beyond what it has. Nothing
evicts it then, since its requests wait in it. Where nothing is left but such sleepers, each in the way of the
others, the first one is woken all the same.

A model that works is not evicted, unless it would never be idle: under steady traffic it has a *turn* (see
`turn`), after which it may be drained for a newcomer. Draining answers every request that was accepted. A
request that comes later waits for the next load, for which the model is then a newcomer itself. So of two
models that need the same room each serves for at least as long as its load took.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from actors.values.specs import ModelKey

SHORTEST_TURN: Final = 5.0
"""Seconds that a model in steady use keeps its place at least."""

UNKNOWN_OVERHEAD: Final = 64 * 1024 * 1024
"""The estimated memory of a worker beside its model's files, until one has been measured."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class KeptBy(Enum):
    """What keeps a model in memory."""

    # It is idle.
    NOTHING = "nothing"
    # It works, and would be done soon if nothing new were sent to it.
    REQUESTS = "requests"
    # It works on something that a drain might cut short.
    LONG_REQUEST = "long_request"
    # It loads or unloads, or has yet to serve the requests it was loaded for: soon over.
    CHANGE = "change"
    # It is never evicted.
    FOR_GOOD = "for_good"
    # It sleeps, and requests wait for it to wake: it is among the newcomers.
    WANTED = "wanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that takes memory. Times are seconds on one clock."""

    key: ModelKey
    nbytes: int
    hold: KeptBy
    last_used: float = -math.inf
    turn_ends: float = -math.inf
    leaving: bool = False  # its eviction is under way, or what it is about to give up as it falls asleep
    rests: int | None = None  # bytes that it is thought to take asleep; None: it can't be put to sleep, or is

    @property
    def frees(self) -> int:
        """Bytes that it gives back if it is put to sleep."""
        return 0 if self.rests is None else max(0, self.nbytes - self.rests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A model that requests wait for."""

    key: ModelKey
    # Bytes, as last measured, or estimated.
    expected: int
    # What it took when just loaded, or its files. If even that is too much, the newcomer is refused.
    least: int
    # It sleeps, and has so many bytes, which are in neither of the two; None: it is to be loaded.
    has: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now. A newcomer that is in neither `start` nor `refuse` waits."""

    start: tuple[ModelKey, ...] = ()
    # Each evicted model, and the newcomer that needs its room; None: models have grown.
    evict: dict[ModelKey, ModelKey | None] = field(default_factory=dict)
    # Each model that is put to sleep, likewise.
    sleep: dict[ModelKey, ModelKey | None] = field(default_factory=dict)
    # Each refused newcomer, and why.
    refuse: dict[ModelKey, str] = field(default_factory=dict)
    # A newcomer waits for room, so it matters when a model becomes idle.
    waiting: bool = False
    # When a turn ends that a newcomer waits for.
    look_at: float = math.inf


def plan(newcomers: Sequence[Newcomer], residents: Iterable[Resident], *, budget: int, now: float) -> Plan:
    """Decide for `newcomers`, in the order they were asked for.

    Those of them that sleep are among the residents, and no others.
    """
    return _Planning(residents, budget, now).decide(newcomers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A memory that models take, with its budget: the main memory, or that of a GPU."""

    name: str  # as in the reason of a refusal; empty for the main memory
    budget: int
    residents: Sequence[Resident]
    newcomers: Sequence[Newcomer]


def plan_places(places: Sequence[Place], *, now: float) -> Plan:
    """Decide for several memories, of which a model may need more than one.

    A model is started once all that it needs let it, and is refused if one can never have it. A model that
    must leave one of them leaves all: it is one set of processes. In each, newcomers have the same order.
    """
    refused: dict[ModelKey, str] = {}
    while True:
        plans = [_plan_of(place, refused, now) for place in places]
        found = {
            key: f"{why} ({place.name})" if place.name else why
            for place, each in zip(places, plans, strict=True)
            for key, why in each.refuse.items()
        }
        if not found:
            break
        # Without them there may be room for others.
        refused = {**found, **refused}
    needed = {newcomer.key: 0 for place in places for newcomer in place.newcomers}
    granted = dict(needed)
    for place, each in zip(places, plans, strict=True):
        for newcomer in place.newcomers:
            needed[newcomer.key] += 1
        for key in each.start:
            granted[key] += 1
    evict = {key: newcomer for each in plans for key, newcomer in each.evict.items()}
    return Plan(
        start=tuple(key for key, count in granted.items() if count and count == needed[key]),
        evict=evict,
        sleep={key: newcomer for each in plans for key, newcomer in each.sleep.items() if key not in evict},
        refuse=refused,
        waiting=any(each.waiting for each in plans),
        look_at=min(each.look_at for each in plans),
    )


def _plan_of(place: Place, refused: Mapping[ModelKey, str], now: float) -> Plan:
    newcomers = [each for each in place.newcomers if each.key not in refused]
    return plan(newcomers, place.residents, budget=place.budget, now=now)


class _Planning:
    """A plan in the making."""

    def __init__(self, residents: Iterable[Resident], budget: int, now: float) -> None:
        everyone = list(residents)
        staying = [each for each in everyone if not each.leaving]
        self._budget = budget
        self._present = _total(everyone)
        self._promised = _total(staying)
        self._kept = _total(_held(staying, {KeptBy.FOR_GOOD}))
        self._candidates = _in_order_of_eviction(staying, now)
        self._turns = [
            each for each in _held(staying, {KeptBy.REQUESTS}) if each.turn_ends > now and each.nbytes
        ]
        self._soon_free = _total(self._turns) + _total(_held(staying, {KeptBy.CHANGE}))
        lasting = {KeptBy.FOR_GOOD, KeptBy.WANTED, KeptBy.NOTHING}
        self._is_still = all(each.hold in lasting and not each.leaving for each in everyone)
        self._start: list[ModelKey] = []
        self._evict: dict[ModelKey, ModelKey | None] = {}
        self._sleep: dict[ModelKey, ModelKey | None] = {}
        self._refuse: dict[ModelKey, str] = {}
        self._waiting = False
        self._look_at = math.inf

    def decide(self, newcomers: Sequence[Newcomer]) -> Plan:
        if not self._make_room(0, None):
            # It does not suffice, and is better than nothing.
            self._evict_all(None)
        for newcomer in newcomers:
            self._admit(newcomer)
        if self._is_still and not (self._start or self._evict or self._sleep):
            self._untangle([each.key for each in newcomers if each.has is not None])
        return Plan(
            start=tuple(self._start),
            evict=self._evict,
            sleep=self._sleep,
            refuse=self._refuse,
            waiting=self._waiting,
            look_at=self._look_at,
        )

    def _admit(self, newcomer: Newcomer) -> None:
        most = self._budget - self._kept - (newcomer.has or 0)
        if newcomer.least > most:
            self._refuse[newcomer.key] = (
                f"does not fit: needs {size(newcomer.least + (newcomer.has or 0))}, budget"
                f" {size(self._budget)}, pinned {size(self._kept)}"
            )
            return
        # It may have grown beyond the budget the last time. Then it gets all the room there is.
        share = min(newcomer.expected, most)
        if self._make_room(share, newcomer.key):
            self._promised += share
            if self._present + share <= self._budget:
                self._present += share
                self._start.append(newcomer.key)
            return
        self._waiting = True
        self._look_at = min([self._look_at, *(each.turn_ends for each in self._turns)])
        if self._excess(share) <= _total(self._candidates) + self._soon_free:
            self._promised += share
            self._candidates = []

    def _untangle(self, wakers: Sequence[ModelKey]) -> None:
        """Wake a sleeper where sleepers are in each other's way, and nothing would change by itself."""
        for first in [each for each in wakers if each not in self._refuse][:1]:
            if self._candidates:
                self._evict_all(first)
            else:
                self._start.append(first)

    def _make_room(self, share: int, newcomer: ModelKey | None) -> bool:
        """Put to sleep, or evict, as many models as `share` bytes need.

        Nothing happens if all of them would not be enough.
        """
        excess, slept, evicted = self._excess(share), list[Resident](), list[Resident]()
        for group in (KeptBy.NOTHING, KeptBy.REQUESTS):
            excess = _pick(_held(self._candidates, {group}), excess, slept, evicted)
        if excess > 0:
            return False
        for each in reversed(slept.copy()):  # those that were evicted may have been enough
            if excess + each.frees <= 0:
                slept.remove(each)
                excess += each.frees
        self._evict.update(dict.fromkeys((each.key for each in evicted), newcomer))
        self._sleep.update(dict.fromkeys((each.key for each in slept), newcomer))
        self._promised -= _total(evicted) + sum(each.frees for each in slept)
        # What is left of sleepers can be had once they sleep.
        self._soon_free += sum(each.nbytes - each.frees for each in slept)
        self._candidates = [each for each in self._candidates if each not in evicted and each not in slept]
        return True

    def _evict_all(self, newcomer: ModelKey | None) -> None:
        self._evict.update(dict.fromkeys((each.key for each in self._candidates), newcomer))
        self._promised -= _total(self._candidates)
        self._candidates = []

    def _excess(self, share: int) -> int:
        return self._promised + share - self._budget


def _pick(candidates: Sequence[Resident], excess: int, slept: list[Resident], evicted: list[Resident]) -> int:
    """Add those that are to be put to sleep, and those that are to be evicted; return what is still missing.

    Each is in one of the two at most.
    """
    for each in candidates:
        if excess > 0 and each.frees:
            slept.append(each)
            excess -= each.frees
    for each in candidates:
        if excess > 0:
            if each in slept:
                slept.remove(each)
                excess += each.frees
            evicted.append(each)
            excess -= each.nbytes
    return excess


def _in_order_of_eviction(staying: Sequence[Resident], now: float) -> list[Resident]:
    """Return idle models, least recently used first, then those in steady use whose turn is over.

    Of the latter the one that had its turn first is first.
    """
    idle = _held(staying, {KeptBy.NOTHING})
    used = [each for each in _held(staying, {KeptBy.REQUESTS}) if each.turn_ends <= now]
    ordered = [
        *sorted(idle, key=lambda each: (each.last_used, each.key)),
        *sorted(used, key=lambda each: (each.turn_ends, each.key)),
    ]
    # A model that was not measured frees nothing.
    return [each for each in ordered if each.nbytes]


def _held(residents: Iterable[Resident], holds: AbstractSet[KeptBy]) -> list[Resident]:
    return [each for each in residents if each.hold in holds]


def _total(residents: Iterable[Resident]) -> int:
    return sum(each.nbytes for each in residents)


def turn(load_seconds: float) -> float:
    """How long a model in steady use keeps its place.

    That is as long as its load took, so loading takes at worst half of the time.
    """
    return max(SHORTEST_TURN, load_seconds)


def estimate(files: Sequence[tuple[int, int]], overheads: Sequence[float]) -> int:
    """Return the bytes a model is thought to take: for each version, (bytes of its files, worker processes).

    Each worker holds all of the files, and what workers were measured to take beyond their files.
    """
    overhead = int(sum(overheads) / len(overheads)) if overheads else UNKNOWN_OVERHEAD
    return sum(processes * (nbytes + overhead) for nbytes, processes in files)


def asleep(level: int, files: Sequence[tuple[int, int]]) -> int:
    """Return the bytes that a model is thought to take asleep at a level, before that has been measured.

    `files` are those of `estimate`. The guess is low, so that it is tried: what is measured then counts.
    """
    return sum(processes * nbytes for nbytes, processes in files) if level == 1 else 0


def size(nbytes: int) -> str:
    """Return bytes as people read them."""
    power = min(len(_UNITS) - 1, max(0, (max(nbytes, 1).bit_length() - 1) // 10))
    return f"{nbytes} B" if not power else f"{nbytes / 1024**power:.1f} {_UNITS[power]}"
