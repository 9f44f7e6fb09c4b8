"""What operators ask of the repository API in one simulation, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from chaos.simulation.plan import LENGTH, Fault, Order, Wire
from chaos.simulation.world.models import MODELS

ATTEMPTS: Final = 2  # at a load, where there is explicit model control

Step = Order | Fault


def draw_orders(random: Random, models: Sequence[str]) -> tuple[list[Order], list[Fault]]:
    """Return what is asked, and what is done to the repository and to workers to get the right outcome."""
    drawing = _Drawing(random)
    orders: list[Order] = []
    faults: list[Fault] = []
    for _ in range(random.randint(2, 6)):
        [act] = random.choices(tuple(drawing.acts), tuple(drawing.acts.values()))
        # Requests come mostly at whole seconds, and should be under way.
        busy = random.randint(1, int(LENGTH) - 1) + random.uniform(0.002, 0.04)
        at = round(busy if random.random() < 0.5 else random.uniform(0.2, LENGTH - 1), 3)
        for step in act(at, random.choice(models)):
            if isinstance(step, Order):
                orders.append(step)
            else:
                faults.append(step)
    return sorted(orders, key=lambda each: each.at), faults


class _Drawing:
    """Acts of one or more orders. `acts` has them with their weights."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.acts: Mapping[Callable[[float, str], Iterator[Step]], int] = {
            self._reload: 3,
            self._absence: 3,
            self._departure: 1,
            self._failure: 2,
            self._clash: 3,
            self._interruption: 3,
        }

    def _reload(self, at: float, model: str) -> Iterator[Step]:
        """New content, or the same, is loaded beside what serves."""
        if self._random.random() < 0.8:
            yield self._change(at, model)
        yield self._load(at, model)

    def _absence(self, at: float, model: str) -> Iterator[Step]:
        """A model is gone for a while."""
        yield self._unload(at, model)
        yield self._load(at + self._random.choice((0.0, 0.02, 0.3, 2.0)), model)

    def _departure(self, at: float, model: str) -> Iterator[Step]:
        yield self._unload(at, model)

    def _failure(self, at: float, model: str) -> Iterator[Step]:
        """A load of new content fails; some models try until one is left, or none."""
        if MODELS[model].kind != "ensemble":
            yield self._change(at, model)
            detail = self._random.choice(("refuse", "die"))
            for _ in range(self._random.randint(1, 2 * ATTEMPTS)):
                yield Fault(at=at, what="trouble", model=model, detail=detail)
        if self._random.random() < 0.3:
            yield self._unload(at, model)
        yield self._load(at + 0.001, model)

    def _clash(self, at: float, model: str) -> Iterator[Step]:
        """Two loads and an unload at once."""
        yield self._change(at, model)
        for order in (self._load, self._unload, self._load):
            yield order(at + self._random.choice((0.001, 0.001, 0.02)), model)

    def _interruption(self, at: float, model: str) -> Iterator[Step]:
        """What is being loaded is unloaded."""
        yield self._change(at, model)
        if self._random.random() < 0.3:
            yield Fault(at=at, what="trouble", model=model, detail="dawdle")
        yield self._load(at + 0.001, model)
        yield self._unload(at + round(self._random.uniform(0.002, 0.3), 3), model)
        if self._random.random() < 0.7:
            yield self._load(at + self._random.choice((0.3, 1.0)), model)

    def _change(self, at: float, model: str) -> Fault:
        return Fault(
            at=at,
            what=self._random.choice(("touch", "touch", "version")),
            model=model,
            seed=self._random.randint(0, 10**6),
        )

    def _load(self, at: float, model: str) -> Order:
        return Order(at=round(at, 3), what="load", model=model, wire=self._wire())

    def _unload(self, at: float, model: str) -> Order:
        dependents = bool(MODELS[model].steps) and self._random.random() < 0.5
        return Order(at=round(at, 3), what="unload", model=model, wire=self._wire(), dependents=dependents)

    def _wire(self) -> Wire:
        return self._random.choice(("core", "http", "grpc"))
