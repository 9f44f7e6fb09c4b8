"""What happens in one simulation: requests, faults and changes of the repository.

All of it is drawn from a seed before anything runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from chaos.simulation import languages
from chaos.simulation.orders import draw_orders
from chaos.simulation.plan import LENGTH, Fault, Look, Order, Request, Scenario, Watched, Wire
from chaos.simulation.world.models import MODELS, Model

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
    "recycler.look",
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
    "metrics.scrape",
    "http.accept",
    "http.connection",
    "grpc.accept",
    "grpc.connection",
)
"""The fault points that are passed in a simulation."""

OF_ORDERS: Final = ("catalog.lanes", "lane.operation", "deployment.apply", "deployment.retirement")
"""The fault points that are passed when an operator asks for a load or an unload."""

_PASSED_BY: Final = {
    "batcher.turn": ("batching",),
    "sequencer.turn": ("oldest",),
    "ensemble.turn": ("once", "echo", "pipeline"),
    "cache.find": ("cached",),
    "cache.insert": ("cached",),
    "limiter.ask": ("limited",),
    "recycler.look": ("echo",),
}


def scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(f"scenario {seed}")
    own = [name for name in MODELS if name not in ("pipeline", languages.MODEL)]
    chosen = random.sample(own, random.randint(3, 5))
    if random.random() < 0.4:
        chosen += [name for name in ("once", "echo", "pipeline") if name not in chosen]
    # Each in turn, so that a hundred seeds visit all of them.
    point = CRASHES[seed % len(CRASHES)]
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
    orders: list[Order] = []
    # What is drawn beside the rest has a generator of its own, so that the rest stays what it was.
    control = Random(f"control {seed}")
    explicit = control.random() < 0.35 and not _watches(point)
    startup = [name for name in chosen if control.random() < 0.9] if explicit else None
    if explicit:
        orders, more = draw_orders(control, chosen)
        faults = [
            replace(each, detail=control.choice(OF_ORDERS)) if _watches(each.detail) else each
            for each in faults
        ]
        faults += more
        if control.random() < 0.5:
            at = round(control.choice(orders).at - 0.001, 3)
            faults.append(Fault(at=at, what="crash", detail=control.choice(OF_ORDERS)))
    told, more = languages.draw(seed)
    faults = sorted([*faults, *more], key=lambda each: each.at)
    streams = Random(f"streams {seed}")
    requests = [_streamed(streams, [each])[0] for each in requests]
    sequences = [_streamed(streams, each) for each in sequences]
    tellers = [languages.MODEL] if told else []
    return Scenario(
        seed=seed,
        models=[*chosen, *tellers],
        requests=sorted([*requests, *told], key=lambda each: each.at),
        sequences=sequences,
        faults=faults,
        startup=None if startup is None else [*startup, *tellers],
        orders=orders,
        looks=_looks(Random(f"looks {seed}"), chosen),
        recycle=_ceilings(Random(f"wear {seed}"), chosen, certain="echo" if point == "recycler.look" else ""),
    )


def _ceilings(random: Random, models: Sequence[str], *, certain: str) -> dict[str, str]:
    """Return `tritium.recycle` of some models, by name; a `certain` model is always among them."""
    found = {}
    for name in models:
        wears = random.random() < 0.25 or name == certain
        requests, seconds = random.randint(2, 12), round(random.uniform(1.0, 5.0), 1)
        each = random.choice(
            ({"requests": requests}, {"seconds": seconds}, {"requests": requests, "seconds": seconds})
        )
        if wears and MODELS[name].kind not in ("sequence", "ensemble"):
            found[name] = json.dumps(each)
    return found


def _streamed(random: Random, requests: list[Request]) -> list[Request]:
    """Return the requests, or the same as they are sent on one stream."""
    by_core = MODELS[requests[0].model].kind == "decoupled"
    if random.random() < 0.5 and requests[0].wire == ("core" if by_core else "grpc"):
        return [replace(each, wire="stream") for each in requests]
    return requests


def _looks(random: Random, models: Sequence[str]) -> list[Look]:
    looks = []
    for _ in range(random.randint(4, 10)):
        what: Watched = random.choice(("metrics", "metrics", "live", "ready", "statistics", "index", "model"))
        looks.append(
            Look(
                at=round(random.uniform(0, LENGTH), 3),
                what=what,
                wire="http" if what == "metrics" else random.choice(("http", "grpc")),
                model=random.choice(models) if what == "model" else "",
            )
        )
    return sorted(looks, key=lambda each: each.at)


def _watches(point: str) -> bool:
    """Whether the point is passed only if the server polls its repository."""
    return point.startswith("watcher.")


def _request(random: Random, n: int, model: Model) -> Request:
    rows = random.randint(1, model.rows)
    # Some requests come at the same moment: batches form then, and orders differ.
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
