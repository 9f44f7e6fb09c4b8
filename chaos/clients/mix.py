"""What is sent when: the open-loop load as a pure function of its seed.

Users arrive by a Poisson process, whatever the answers to earlier users are. A user of a sequence model comes
with all steps of a sequence. `Step.gap` is the time from one step to the next if answers are quick. A user
never sends a step before the previous step was answered.

Open, closed and partly open load: Schroeder, Wierman and Harchol-Balter, "Open Versus Closed: A Cautionary
Tale", NSDI 2006.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.record.records import Wire

WIRES: Final[Sequence[Wire]] = ("http", "grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The requests to one model.

    `weight` is its share of all *requests*, relative to those of other kinds. Ranges are (least, most), both
    included. Each request draws one of `wires`, `deadlines`, `priorities` and `tenants`, in which a value may
    stand several times.
    """

    model: str
    weight: float = 1.0
    wires: Sequence[Wire] = WIRES
    values: tuple[int, int] = (1, 100_000)
    # Of a decoupled model's answer; such a model is asked by gRPC alone.
    parts: tuple[int, int] | None = None
    steps: tuple[int, int] | None = None  # of a sequence
    # Seconds between its steps; a server drops sequences that idle.
    gap: tuple[float, float] = (0.02, 0.3)
    # Seconds that an answer may take; one of these is drawn.
    deadlines: Sequence[float | None] = (None,)
    # HTTP has no deadline for a whole request, only `timeout` for its time in a queue.
    deadline_wires: Sequence[Wire] = ("grpc",)
    priorities: Sequence[int] = (0,)
    tenants: Sequence[str] = ("",)

    @property
    def mean_steps(self) -> float:
        """How many requests a user of it sends."""
        return sum(self.steps) / 2 if self.steps else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request, before it has a number and a time."""

    model: str
    protocol: Wire
    value: int
    parts: int = 1
    deadline: float | None = None  # seconds from its sending
    priority: int = 0
    tenant: str = ""
    gap: float = 0.0  # seconds from the step before


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A user: one request, or the steps of a sequence."""

    at: float  # seconds from the beginning of the load
    steps: Sequence[Step]
    sequence: bool = False


def arrivals(mix: Sequence[Kind], rate: float, seed: int) -> Iterator[Arrival]:
    """Yield users for ever, in the order of their arrival, at `rate` requests a second in the mean.

    The users are equal for equal arguments.
    """
    draw = random.Random(seed)
    users = [kind.weight / kind.mean_steps for kind in mix]
    users_a_second = rate * sum(users) / sum(kind.weight for kind in mix)
    at = 0.0
    while True:
        at += draw.expovariate(users_a_second)
        yield arrival(draw.choices(mix, users)[0], at, draw)


def arrival(kind: Kind, at: float, draw: random.Random) -> Arrival:
    """Return a user of a kind that arrives at `at`."""
    if kind.steps is None:
        return Arrival(at=at, steps=(_step(kind, draw, first=True),))
    count = draw.randint(*kind.steps)
    return Arrival(at=at, steps=[_step(kind, draw, first=not n) for n in range(count)], sequence=True)


def _step(kind: Kind, draw: random.Random, *, first: bool) -> Step:
    protocol: Wire = "grpc" if kind.parts else draw.choice(kind.wires)
    deadline = draw.choice(kind.deadlines)
    return Step(
        model=kind.model,
        protocol=protocol,
        value=draw.randint(*kind.values),
        parts=draw.randint(*kind.parts) if kind.parts else 1,
        deadline=deadline if protocol in kind.deadline_wires else None,
        priority=draw.choice(kind.priorities),
        tenant=draw.choice(kind.tenants),
        gap=0.0 if first else draw.uniform(*kind.gap),
    )


ORDINARY: Final[Sequence[Kind]] = (
    Kind(model="echo", weight=25, deadlines=(None, None, None, 2.0)),
    Kind(model="add_sub", weight=35, deadlines=(None, None, None, 2.0)),
    Kind(model="slow", weight=15, deadlines=(None, 1.0)),
    Kind(model="batching", weight=35),
    Kind(model="counter", weight=15, steps=(2, 8), values=(1, 1000)),
    Kind(model="pipeline", weight=15),
    Kind(model="stream", weight=10, parts=(1, 6)),
)
"""The load of all phases, over the reference workload."""

EACH_BACKEND: Final = 25.0
"""The weight of the requests to one model of another backend, beside those of `ORDINARY`."""

OVERLOAD: Final[Sequence[Kind]] = (Kind(model="slow"),)
"""The load that is added in the overload phase."""
