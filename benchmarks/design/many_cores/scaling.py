"""From CPU microseconds a request to requests a second on machines with many cores. Pure arithmetic.

A rate has two ceilings, and the lower one holds. Loops that every request passes have a core each: `owners
÷ cost`. All processes together have the machine: `cores ÷ sum of costs`. Protocol processes never hold the
rate down, since there are as many as it takes; uneven shares of connections make that more than their work
needs.

Costs are those measured on two cores (docs/design/many-cores.md). `DEARER` is what a microsecond may
become on more: clocks fall when all cores work, and caches are shared. It is an assumption, as is `FILL`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

DEARER: Final[Mapping[int, float]] = {2: 1.0, 16: 1.15, 64: 1.3}
FILL: Final = 0.85  # of a core that a loop may use before its queue shows in the tail
EVEN: Final = 0.8  # the mean share of connections over the largest, see `spread`


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An arrangement: CPU µs a request in its kinds of processes.

    `owners` loops share the requests out evenly; 0: there are as many as the machine has room for.
    """

    name: str
    protocol: float
    owner: float
    worker: float
    owners: int = 1

    def times(self, factor: float, name: str, *, owners: int | None = None) -> Way:
        """Return the same with dearer, or cheaper, loops."""
        return replace(
            self,
            name=name,
            protocol=self.protocol * factor,
            owner=self.owner * factor,
            owners=self.owners if owners is None else owners,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What so many cores give: requests a second, and how many protocol processes that takes."""

    rate: float
    protocols: int
    bound: str


def plan(way: Way, cores: int, model: float, *, fill: float = FILL, even: float = EVEN) -> Plan:
    """Return what `cores` give if the model itself takes `model` µs of CPU a request.

    Protocol processes have uneven shares: where the fullest is at its limit, the others are not.
    """
    dearer = DEARER[cores]
    room = cores * 1e6 * fill / ((way.protocol / even + way.owner + way.worker + model) * dearer)
    loops = way.owners * 1e6 * fill / (way.owner * dearer) if way.owners else math.inf
    rate = min(room, loops)
    return Plan(
        rate=rate,
        protocols=math.ceil(rate * way.protocol * dearer / 1e6 / fill / even),
        bound="loop" if loops < room else "cores",
    )


def contended(one: float, two: float) -> float:
    """Return the share of a request's time in which threads wait for one another (the law of Amdahl).

    `one` and `two` are the rates of one thread and of two.
    """
    return 2 * one / two - 1


def threads_at_most(share: float) -> float:
    """Return how many times the rate of one thread any number of them gives, at the most."""
    return math.inf if share <= 0 else 1 / share


def spread(counts: Sequence[int]) -> float:
    """Return the mean share over the largest: how well connections are spread out over processes."""
    return sum(counts) / len(counts) / max(counts)


COMPILED: Final = 1 / 1.5
"""What compiling is taken to leave of the loops' costs. In experiments it left 1 / 1.3 to 1 / 1.67."""

_PROXY: Final = 34.8  # µs of a proxy in front, over HTTP

HTTP: Final = Way(name="one process", protocol=0, owner=44.3, worker=1.3)
GRPC: Final = Way(name="one process", protocol=0, owner=16.9, worker=0.8)
HTTP_SPLIT: Final = Way(name="(a) 1 owner", protocol=48.7, owner=13.7, worker=2.5)
GRPC_SPLIT: Final = Way(name="(a) 1 owner", protocol=18.8, owner=11.0, worker=1.2)


def ways(one: Way, split: Way, proxy: float) -> Sequence[Way]:
    """Return all arrangements for one protocol. `proxy` is the cost of a proxy in front; 0: not measured."""
    every = (
        one,
        one.times(COMPILED, "one process, compiled"),
        split,
        split.times(COMPILED, "(a) 1 owner, compiled"),
        split.times(COMPILED, "(a) 4 owners, compiled", owners=4),
        one.times(1, "(b) 8 busy shards, own ports", owners=8),
        replace(one, name="(b) 8 busy shards, proxied", protocol=proxy, owners=8),
        one.times(1, "(b) replicas", owners=0),
    )
    return [way for way in every if way.protocol or "proxied" not in way.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: plans by cores and the model's µs."""

    protocol: str
    way: str
    plans: Mapping[tuple[int, float], Plan]

    @property
    def cells(self) -> Sequence[str]:
        """The line as text: thousands of requests a second, the bound, and protocol processes."""
        return [
            f"{each.rate / 1e3:,.0f} k, {each.bound}" + (f", {each.protocols} pp" if each.protocols else "")
            for each in self.plans.values()
        ]


CORES: Final = (16, 64)
MODELS: Final = (0.0, 500.0)


def table() -> Sequence[Row]:
    """Return every arrangement on every machine."""
    return [
        Row(
            protocol=protocol,
            way=way.name,
            plans={(cores, model): plan(way, cores, model) for cores in CORES for model in MODELS},
        )
        for protocol, every in (
            ("HTTP", ways(HTTP, HTTP_SPLIT, _PROXY)),
            ("gRPC", ways(GRPC, GRPC_SPLIT, 0)),
        )
        for way in every
    ]
