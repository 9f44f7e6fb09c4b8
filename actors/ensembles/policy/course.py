"""The way from an ensemble's inputs to some of its outputs. Pure. Contract, scheduling.md section 7."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.wiring import Wiring

ANSWER: Final = -1
"""The number of the answer, which is a consumer too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """The properties of a step's model that the data flow needs."""

    # In the order that suits the model best; inputs that are not named here come last.
    inputs: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()  # inputs that it can run without
    decoupled: bool = False

    def place(self, name: str) -> int:
        """Return where an input stands in its order."""
        return self.inputs.index(name) if name in self.inputs else len(self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A step of a course, or its answer (number `ANSWER`), as a consumer and writer of tensors."""

    number: int  # of the step in the configuration
    # The consumer's name, the ensemble's tensor, whether it is needed.
    inputs: tuple[tuple[str, str, bool], ...]
    # By the model's name: the ensemble tensors that a consumer needs.
    outputs: Mapping[str, str]
    depth: int  # of the iterations it runs in
    decoupled: bool = False


class Course:
    """The way from an ensemble's inputs to some of its outputs."""

    __slots__ = (
        "after",
        "answer",
        "consumers",
        "decoupled",
        "fed",
        "lasting",
        "sources",
        "steps",
        "uses",
        "writers",
    )

    def __init__(self, wiring: Wiring, requested: Sequence[str], models: Mapping[int, StepModel]) -> None:
        needed = set(requested)
        for number in models:
            needed.update(wiring.steps[number].input_map.values())
        depths = _depths(wiring, models)
        self.steps: dict[int, Consumer] = {}
        for number, model in models.items():
            step = wiring.steps[number]
            self.steps[number] = Consumer(
                number=number,
                inputs=tuple(
                    (name, step.input_map[name], name not in model.optional)
                    for name in sorted(step.input_map, key=model.place)
                ),
                outputs={name: tensor for name, tensor in step.output_map.items() if tensor in needed},
                depth=max((depths[tensor] for tensor in step.input_map.values()), default=0),
                decoupled=model.decoupled,
            )
        self.answer = Consumer(
            number=ANSWER,
            inputs=tuple((name, name, False) for name in requested),
            outputs={},
            depth=max((depths[name] for name in requested), default=0),
        )
        consumers: dict[str, list[Consumer]] = {}
        for consumer in (*self.steps.values(), self.answer):
            for tensor in dict.fromkeys(tensor for _, tensor, _ in consumer.inputs):
                consumers.setdefault(tensor, []).append(consumer)
        self.consumers: Mapping[str, Sequence[Consumer]] = consumers
        self.uses = {tensor: len(found) for tensor, found in consumers.items()}
        """How often a value of each tensor is consumed, unless it is `lasting`."""
        self.lasting = frozenset(
            tensor
            for tensor, found in consumers.items()
            if any(consumer.depth > depths[tensor] for consumer in found)
        )
        """Tensors whose values are consumed in any number of iterations."""
        written = {tensor for step in self.steps.values() for tensor in step.outputs.values()}
        self.sources = tuple(tensor for tensor in consumers if tensor not in written)
        """Tensors that come from the client."""
        self.decoupled = any(step.decoupled for step in self.steps.values())
        """Whether there may be any number of answers."""
        self.fed = self._readers(self.sources)
        """The consumers of the client's tensors."""
        self.after = {number: self._readers(step.outputs.values()) for number, step in self.steps.items()}
        """The consumers of each step's tensors."""
        self.writers = Counter(
            consumer.number for readers in (self.fed, *self.after.values()) for consumer in readers
        )
        """How many writers (the client and steps) each consumer has tensors from, by its number."""

    def _readers(self, tensors: Iterable[str]) -> tuple[Consumer, ...]:
        found = {each.number: each for tensor in tensors for each in self.consumers.get(tensor, ())}
        return tuple(found.values())


def _depths(wiring: Wiring, models: Mapping[int, StepModel]) -> dict[str, int]:
    """Return each tensor's depth; configurations that come here have no circles."""
    depths: dict[str, int] = {}

    def depth(tensor: str) -> int:
        if tensor not in depths:
            writer = wiring.writer(tensor)
            if writer is None or writer[0] not in models:
                depths[tensor] = 0
            else:
                step = wiring.steps[writer[0]]
                deepest = max((depth(each) for each in step.input_map.values()), default=0)
                depths[tensor] = deepest + models[writer[0]].decoupled
        return depths[tensor]

    for number in models:
        for tensor in (*wiring.steps[number].input_map.values(), *wiring.steps[number].output_map.values()):
            depth(tensor)
    return _Depths(depths)


class _Depths(dict[str, int]):
    """Depths by tensor; an input that no step uses lies at 0."""

    def __missing__(self, tensor: str) -> int:
        return 0
