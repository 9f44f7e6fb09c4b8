"""The data flow of an ensemble: which steps can run, and what is answered. Pure.

Contract, scheduling.md section 7.

Theory of operation. A `Wiring` holds the steps of an ensemble's configuration. For a set of requested
outputs, and the known properties of the composing models, it makes a `Course`: the steps that contribute to
those outputs, each tensor's consumers, and how deep each tensor lies. A `Flow` is one request on its way
along a course: values come in, `Run`s and answers come out.

*Iterations.* Every response of a decoupled step begins an iteration of its own for all steps after it. An
iteration is a tuple of ordinals: () is the request itself, (2,) the third response of a decoupled step, (2,
0) the first response that a decoupled step further down gave for that. A tensor's *depth* is the length of
its iterations. A value is seen in its own iteration and in all that descend from it, so values of different
depths meet where they belong together.

*The answer* is a consumer like a step: it is complete when every requested output has a value in one
iteration. Answers leave in the order of their iterations, whatever order steps end in.

*Null.* If a step was asked for an output and did not give it, that output is null. So is an optional input
that the client left out. The answer leaves a null value out, and a step whose model takes it as optional runs
without it. A step that needs it never runs. Then the outputs of that step have no value, not even null, which
is a deadlock in the end.

*Errors.* After the first error nothing new is run. The flow is over when every run has ended, and not before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from actors.values.errors import InvalidArgument, TritiumError
from actors.values.specs import Ensemble

Value = TypeVar("Value")

Iteration = tuple[int, ...]

ROOT: Final[Iteration] = ()
ANSWER: Final = -1
"""The number of the answer, which is a consumer too."""

_DEADLOCK: Final = (
    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
)


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


class Wiring:
    """The steps of an ensemble's configuration, and how their tensors connect them."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.steps = ensemble.steps
        self._written_by = {
            tensor: number for number, step in enumerate(self.steps) for tensor in step.output_map.values()
        }

    def writer(self, tensor: str) -> tuple[int, str] | None:
        """Return the step that writes `tensor`, and its model's name for it; None for an ensemble's input."""
        number = self._written_by.get(tensor)
        if number is None:
            return None
        written = self.steps[number].output_map
        return number, next(output for output, name in written.items() if name == tensor)

    def contributing(self, requested: Iterable[str]) -> tuple[int, ...]:
        """Return the numbers of the steps that `requested` outputs depend on, ascending."""
        found: set[int] = set()
        open_tensors = list(requested)
        while open_tensors:
            number = self._written_by.get(open_tensors.pop())
            if number is not None and number not in found:
                found.add(number)
                open_tensors += self.steps[number].input_map.values()
        return tuple(sorted(found))

    def course(self, requested: Sequence[str], models: Mapping[int, StepModel]) -> Course:
        """Return the course to `requested` outputs; `models` has the contributing steps by number."""
        return Course(self, requested, models)


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


class Run(Generic[Value]):
    """One execution of one step. Equality is identity."""

    __slots__ = ("inputs", "iteration", "step")

    def __init__(self, step: Consumer, iteration: Iteration, inputs: Mapping[str, Value]) -> None:
        self.step = step
        self.iteration = iteration
        self.inputs = inputs  # by the model's name; null ones are left out

    def __repr__(self) -> str:
        return f"<Run of step {self.step.number} in iteration {self.iteration}>"


class Flow(Generic[Value]):
    """One request on its way.

    Call `begin` first. Each run that comes out is then ended by a final `received` or `failed`.
    """

    __slots__ = ("_answered", "_course", "_pending", "_running", "_seen", "_values", "error")

    def __init__(self, course: Course) -> None:
        self._course = course
        self._values: dict[Iteration, dict[str, Value | None]] = {ROOT: {}}
        self._seen: dict[Iteration, set[int]] = {}  # the numbers of consumers that were complete
        self._running: dict[Run[Value], int] = {}  # the number of responses of each
        self._pending: list[tuple[Iteration, Mapping[str, Value]]] = []  # answers that wait for earlier ones
        self._answered = 0
        self.error: TritiumError | None = None  # the first one; nothing new is run after it

    # -- what happens ----------------------------------------------------------------------------------------

    def begin(self, inputs: Mapping[str, Value]) -> list[Run[Value]]:
        """Start from the ensemble's inputs, and return the runs that can begin.

        Inputs that the client left out are null.
        """
        return self._set(ROOT, {tensor: inputs.get(tensor) for tensor in self._course.sources})

    def received(
        self, run: Run[Value], outputs: Mapping[str, Value], *, final: bool, empty: bool = False
    ) -> list[Run[Value]]:
        """A run has given a response: `outputs` by the model's name. Return the runs that can begin now.

        `empty` marks a final part that only says that there are no more.
        """
        responses = self._running[run]
        if final:
            del self._running[run]
        else:
            self._running[run] = responses + 1
        runs: list[Run[Value]] = []
        iteration = run.iteration
        if self.error is None and not empty:
            if run.step.decoupled:
                iteration = (*iteration, responses)
            values = {tensor: outputs.get(name) for name, tensor in run.step.outputs.items()}
            runs = self._set(iteration, values)
        self._forget(iteration)
        return runs

    def failed(self, run: Run[Value], error: TritiumError, *, final: bool) -> None:
        """A run has given an error: the whole request fails with it, once all runs have ended."""
        if final:
            del self._running[run]
        self.stop(error)

    def stop(self, error: TritiumError) -> None:
        """Run nothing new, and end with `error` unless there was an earlier one."""
        if self.error is None:
            self.error = error
        self._pending.clear()

    # -- what comes of it ------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether nothing runs, so nothing will ever happen again."""
        return not self._running

    @property
    def running(self) -> Iterable[Run[Value]]:
        """Runs that have not ended."""
        return self._running

    def take_answers(self) -> list[Mapping[str, Value]]:
        """Return each complete answer once, as soon as no earlier one has to come first."""
        if not self._pending:
            return []
        ready = len(self._pending)
        if self._running:
            earliest = min(map(self._earliest, self._running))
            ready = bisect_left(self._pending, earliest, key=_by_iteration)
        taken = [answer for _, answer in self._pending[:ready]]
        del self._pending[:ready]
        self._answered += ready
        return taken

    def _earliest(self, run: Run[Value]) -> Iteration:
        """Return a lower bound of the iterations to which `run` can still add something."""
        return (*run.iteration, self._running[run]) if run.step.decoupled else run.iteration

    def ending(self, prefix: str) -> TritiumError | None:
        """Return the error that a flow which is over ends with, or None.

        `prefix` goes before a text of ours. A decoupled ensemble may end without any answer; any other
        ensemble that does is in a deadlock.
        """
        if self.error is None and not self._answered and not self._course.decoupled:
            self.error = deadlock(prefix)
        return self.error

    # -- inside ----------------------------------------------------------------------------------------------

    def _set(self, iteration: Iteration, values: Mapping[str, Value | None]) -> list[Run[Value]]:
        self._values.setdefault(iteration, {}).update(values)
        runs: list[Run[Value]] = []
        by_tensor = self._course.consumers
        consumers = {each.number: each for tensor in values for each in by_tensor.get(tensor, ())}
        for consumer in consumers.values():
            for each in self._iterations(consumer, iteration):
                self._consider(consumer, each, runs)
        return runs

    def _iterations(self, consumer: Consumer, iteration: Iteration) -> Iterator[Iteration]:
        """Yield the known iterations in which `consumer` could see the new values in `iteration`."""
        length = len(iteration)
        if consumer.depth == length:
            yield iteration
        else:
            for known in list(self._values):
                if len(known) == consumer.depth and known[:length] == iteration:
                    yield known

    def _consider(self, consumer: Consumer, iteration: Iteration, runs: list[Run[Value]]) -> None:
        seen = self._seen.setdefault(iteration, set())
        if consumer.number in seen:
            return
        inputs: dict[str, Value] = {}
        for name, tensor, needed in consumer.inputs:
            found, value = self._look_up(tensor, iteration)
            if not found or (value is None and needed):
                return
            if value is not None:
                inputs[name] = value
        seen.add(consumer.number)
        if consumer is self._course.answer:
            insort(self._pending, (iteration, inputs), key=_by_iteration)
        else:
            run = Run(consumer, iteration, inputs)
            self._running[run] = 0
            runs.append(run)

    def _forget(self, iteration: Iteration) -> None:
        """Drop the values of an iteration, and of those around it, to which nothing will be added."""
        while iteration:
            length = len(iteration)
            for run in self._running:
                if run.iteration[:length] == iteration or self._earliest(run) <= iteration:
                    return
            self._values.pop(iteration, None)
            self._seen.pop(iteration, None)
            iteration = iteration[:-1]

    def _look_up(self, tensor: str, iteration: Iteration) -> tuple[bool, Value | None]:
        while True:
            values = self._values.get(iteration)
            if values is not None and tensor in values:
                return True, values[tensor]
            if not iteration:
                return False, None
            iteration = iteration[:-1]


def deadlock(prefix: str) -> TritiumError:
    """Return the error of a request whose steps have ended without an answer (contract, section 7)."""
    return InvalidArgument(prefix + _DEADLOCK)


def _by_iteration(pending: tuple[Iteration, object]) -> Iteration:
    return pending[0]


class Gates:
    """How many runs of each step of one request may be on their way at once: `max_inflight_requests`. Pure.

    A run that finds its gate closed waits until one of the same step has ended, or until its patience is
    over.
    """

    __slots__ = ("_limit", "_outside", "_waiting")

    def __init__(self, limit: int) -> None:
        """`limit` of 0 keeps every gate open."""
        self._limit = limit
        self._outside: dict[int, int] = {}  # runs that have passed and not ended, by step
        self._waiting: dict[int, OrderedDict[object, None]] = {}  # by step, in order

    def enter(self, step: int, run: object) -> bool:
        """Whether `run` may go; else it waits here."""
        if self._limit and self._outside.get(step, 0) >= self._limit:
            self._waiting.setdefault(step, OrderedDict())[run] = None
            return False
        self._pass(step)
        return True

    def ended(self, step: int) -> object | None:
        """A run of `step` has ended. Return the one that may go in its place, if one waits."""
        self._outside[step] -= 1
        waiting = self._waiting.get(step)
        if not waiting or self._outside[step] >= self._limit:
            return None
        run = next(iter(waiting))
        del waiting[run]
        self._pass(step)
        return run

    def give_up(self, step: int, run: object) -> bool:
        """The patience of `run` is over, so it goes. False if it went before."""
        if not self.withdraw(step, run):
            return False
        self._pass(step)
        return True

    def withdraw(self, step: int, run: object) -> bool:
        """Take `run` out, because it is not to go any more. False if it does not wait."""
        waiting = self._waiting.get(step)
        if waiting is None or run not in waiting:
            return False
        del waiting[run]
        return True

    def _pass(self, step: int) -> None:
        self._outside[step] = self._outside.get(step, 0) + 1


def fitted(shape: Sequence[int], rank: int, *, batches: bool) -> Sequence[int]:
    """Return a tensor's full shape as it is for a model whose tensor has `rank` dimensions besides the batch.

    A tensor keeps its full shape between models, whether or not they batch (contract, section 7). If it has
    one dimension too few for a batching model, it is a batch of one to that model. If it has one too many for
    a model without batches, a leading 1 is dropped.
    """
    if batches:
        return (1, *shape) if len(shape) == rank else shape
    if len(shape) == rank + 1 and shape[0] == 1:
        return tuple(shape[1:])
    return shape
