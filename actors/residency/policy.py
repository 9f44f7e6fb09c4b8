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

A model that works is not evicted, unless it would never be idle: under steady traffic it has a *turn* (see
`turn`), after which it may be drained for a newcomer. Draining answers every request that was accepted. A
request that comes later waits for the next load, for which the model is then a newcomer itself. So of two
models that need the same room each serves for at least as long as its load took.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that takes memory. Times are seconds on one clock."""

    key: ModelKey
    nbytes: int
    hold: KeptBy
    last_used: float = -math.inf
    turn_ends: float = -math.inf
    leaving: bool = False  # its eviction is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A model that requests wait for."""

    key: ModelKey
    # Bytes, as last measured, or estimated.
    expected: int
    # What it took when just loaded, or its files. If even that is too much, the newcomer is refused.
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now. A newcomer that is in neither `start` nor `refuse` waits."""

    start: tuple[ModelKey, ...] = ()
    # Each evicted model, and the newcomer that needs its room; None: models have grown.
    evict: dict[ModelKey, ModelKey | None] = field(default_factory=dict)
    # Each refused newcomer, and why.
    refuse: dict[ModelKey, str] = field(default_factory=dict)
    # A newcomer waits for room, so it matters when a model becomes idle.
    waiting: bool = False
    # When a turn ends that a newcomer waits for.
    look_at: float = math.inf


def plan(newcomers: Sequence[Newcomer], residents: Iterable[Resident], *, budget: int, now: float) -> Plan:
    """Decide for `newcomers`, in the order they were asked for. None of them is among the residents."""
    return _Planning(residents, budget, now).decide(newcomers)


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
        self._start: list[ModelKey] = []
        self._evict: dict[ModelKey, ModelKey | None] = {}
        self._refuse: dict[ModelKey, str] = {}
        self._waiting = False
        self._look_at = math.inf

    def decide(self, newcomers: Sequence[Newcomer]) -> Plan:
        if not self._make_room(0, None):
            # It does not suffice, and is better than nothing.
            self._evict_some(self._candidates, None)
        for newcomer in newcomers:
            self._admit(newcomer)
        return Plan(
            start=tuple(self._start),
            evict=self._evict,
            refuse=self._refuse,
            waiting=self._waiting,
            look_at=self._look_at,
        )

    def _admit(self, newcomer: Newcomer) -> None:
        most = self._budget - self._kept
        if newcomer.least > most:
            self._refuse[newcomer.key] = (
                f"does not fit: needs {size(newcomer.least)}, budget {size(self._budget)}, "
                f"pinned {size(self._kept)}"
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

    def _make_room(self, share: int, newcomer: ModelKey | None) -> bool:
        """Evict as many models as `share` bytes need, and none if all of them would not be enough."""
        excess, picked = self._excess(share), []
        for each in self._candidates:
            if excess <= 0:
                break
            picked.append(each)
            excess -= each.nbytes
        if excess > 0:
            return False
        self._evict_some(picked, newcomer)
        return True

    def _evict_some(self, residents: Sequence[Resident], newcomer: ModelKey | None) -> None:
        self._evict.update(dict.fromkeys((each.key for each in residents), newcomer))
        self._promised -= _total(residents)
        self._candidates = self._candidates[len(residents) :]

    def _excess(self, share: int) -> int:
        return self._promised + share - self._budget


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
    overhead = int(fmean(overheads)) if overheads else UNKNOWN_OVERHEAD
    return sum(processes * (nbytes + overhead) for nbytes, processes in files)


def size(nbytes: int) -> str:
    """Return bytes as people read them."""
    power = min(len(_UNITS) - 1, max(0, (max(nbytes, 1).bit_length() - 1) // 10))
    return f"{nbytes} B" if not power else f"{nbytes / 1024**power:.1f} {_UNITS[power]}"
