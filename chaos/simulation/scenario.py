"""What happens in one simulation: requests, faults and changes of the repository, all drawn from a seed before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from chaos.simulation.models import MODELS, Model

Wire = Literal["core", "http", "grpc"]

LENGTH: Final = 12.0  # seconds in which requests are sent
MISDEEDS: Final = (
    "segv",
    "killed",
    "oom",
    "exit",
    "close",
    "garbage",
    "garbage_after",
    "wrong_batch",
    "hang",
    "slow",
    "raise",
    "raise_member",
)
POISONS: Final = ("segv", "exit", "oom", "garbage_after")
CRASHES: Final = (
    "batcher.turn",
    "sequencer.turn",
    "ensemble.turn",
    "instance.live",
    "instance.packet",
    "instance.joins",
    "instance.exit",
    "catalog.lanes",
    "lane.operation",
    "deployment.apply",
    "deployment.retirement",
    "watcher.look",
    "watcher.tell",
    "readiness.turn",
    "residency.turn",
    "spares.step",
    "janitor.remove",
    "loop_lag.record",
    "cache.find",
    "cache.insert",
    "limiter.ask",
    "supervisor.decide",
    "supervisor.restart",
    "http.accept",
    "http.connection",
    "grpc.accept",
    "grpc.connection",
)
"""The fault points that are passed in a simulation."""

_PASSED_BY: Final = {
    "batcher.turn": ("batching",),
    "sequencer.turn": ("oldest",),
    "ensemble.turn": ("once", "echo", "pipeline"),
    "cache.find": ("cached",),
    "cache.insert": ("cached",),
    "limiter.ask": ("limited",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a client, or the next of a sequence."""

    id: str
    at: float  # seconds after the beginning; of a sequence's later ones: after the answer before
    model: str
    values: tuple[int, ...]  # one a row
    wire: Wire
    patience: float = 0.0  # seconds after which the client leaves; 0: never
    timeout: float = 0.0  # seconds that it may wait in the queue
    deadline: float = 0.0  # seconds that all of it may take
    priority: int = 0
    poison: str = ""
    raises: bool = False
    sequence: int = 0
    start: bool = False
    end: bool = False
    hold: float = 0.0  # seconds for which the client keeps the answer's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong, or changes. `what` is one of the methods of `chaos.simulation.faults.Faults`."""

    at: float
    what: str
    model: str = ""
    detail: str = ""
    seconds: float = 0.0  # how long it lasts, or how late in an execution it comes
    seed: int = 0  # for choices that depend on what is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation. `sequences` are sent one request after the other; `requests` are not."""

    seed: int
    models: Sequence[str]
    requests: Sequence[Request]
    sequences: Sequence[Sequence[Request]]
    faults: Sequence[Fault]

    def describe(self) -> str:
        """Return it in a few lines."""
        count = len(self.requests) + sum(map(len, self.sequences))
        faults = "\n".join(
            f"  {each.at:7.3f} {each.what} {each.model} {each.detail} {each.seconds:g}"
            for each in self.faults
        )
        return f"seed {self.seed}: {', '.join(self.models)}; {count} requests\n{faults}"


def scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(f"scenario {seed}")
    chosen = random.sample([name for name in MODELS if name != "pipeline"], random.randint(3, 5))
    if random.random() < 0.4:
        chosen += [name for name in ("once", "echo", "pipeline") if name not in chosen]
    point = CRASHES[seed % len(CRASHES)]  # each in turn: a hundred seeds have come by all of them
    chosen += [name for name in _PASSED_BY.get(point, ()) if name not in chosen]
    chosen.sort()
    plain = [name for name in chosen if MODELS[name].kind != "sequence"]
    requests = sorted(
        (
            _request(random, n, MODELS[random.choice(plain)])
            for n in range(random.randint(30, 110) if plain else 0)
        ),
        key=lambda each: each.at,
    )
    sequences = [
        _sequence(random, n, name)
        for n, name in enumerate(
            name for name in chosen if MODELS[name].kind == "sequence" for _ in range(random.randint(3, 7))
        )
    ]
    faults = [_fault(random, chosen) for _ in range(random.randint(0, 6))]
    faults.append(Fault(at=round(random.uniform(0, LENGTH / 2), 3), what="crash", detail=point))
    faults.sort(key=lambda each: each.at)
    return Scenario(seed=seed, models=chosen, requests=requests, sequences=sequences, faults=faults)


def _request(random: Random, n: int, model: Model) -> Request:
    rows = random.randint(1, model.rows)
    # Some come at the same moment: that is when batches form, and when orders differ.
    at = (
        round(random.uniform(0, LENGTH), 3)
        if random.random() < 0.5
        else float(random.randint(0, int(LENGTH)))
    )
    odd = random.random()
    return Request(
        id=f"r{n}",
        at=at,
        model=model.name,
        values=tuple(random.randint(0, 8 if model.cached else 1000) for _ in range(rows)),
        wire="core" if model.kind == "decoupled" else random.choice(("core", "core", "http", "grpc")),
        patience=round(random.uniform(0, 0.2), 3) if odd < 0.1 else 0.0,
        timeout=0.05 if model.prioritised and odd > 0.9 else 0.0,
        deadline=0.3 if 0.1 < odd < 0.15 else 0.0,
        priority=random.randint(0, 3) if model.prioritised else 0,
        poison=random.choice(POISONS)
        if 0.15 < odd < 0.17 and model.kind in ("plain", "batched") and not model.cached
        else "",
        raises=0.17 < odd < 0.2 and model.kind in ("plain", "batched") and not model.cached,
        hold=0.5 if model.wide and odd > 0.7 else 0.0,
    )


def _sequence(random: Random, n: int, model: str) -> list[Request]:
    count = random.randint(1, 6)
    wire: Wire = random.choice(("core", "http", "grpc"))
    begin = round(random.uniform(0, LENGTH), 3)
    return [
        Request(
            id=f"s{n}.{index}",
            at=begin if index == 0 else random.choice((0.0, 0.01, 0.7)),
            model=model,
            values=(random.randint(0, 1000),),
            wire=wire,
            sequence=n + 1,
            start=index == 0,
            end=index == count - 1,
        )
        for index in range(count)
    ]


def _fault(random: Random, models: Sequence[str]) -> Fault:
    at = round(random.uniform(0.5, LENGTH), 3)
    run = [name for name in models if MODELS[name].kind != "ensemble"]
    what = random.choices(
        (
            "misdeed",
            "signal",
            "suspend",
            "trouble",
            "launches",
            "touch",
            "version",
            "broken",
            "remove",
            "disk",
            "crash",
            "kill",
        ),
        (8, 5, 1, 2, 1, 3, 3, 1, 1, 1, 8, 2),
    )[0]
    detail = ""
    if what == "misdeed":
        detail = random.choice(MISDEEDS)
    elif what == "signal":
        detail = random.choice(("9", "11", "15"))
    elif what == "trouble":
        detail = random.choice(("refuse", "die", "dawdle"))
    elif what == "crash":
        detail = random.choice(CRASHES)
    return Fault(
        at=at,
        what=what,
        model=random.choice(run),
        detail=detail,
        seconds=round(random.uniform(0.01, 3.0) if what != "misdeed" else random.choice((0.0, 0.01)), 3),
        seed=random.randint(0, 10**6),
    )
