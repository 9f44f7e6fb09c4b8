"""The data flow of an ensemble: which steps can run, and what is answered. Pure.

Contract, scheduling.md section 7.

Theory of operation. A `Wiring` holds the steps of an ensemble's configuration. A `Course` is made of it for a
set of requested outputs, with the known properties of the composing models: the steps that contribute to
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
from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

from actors.ensembles.policy.course import Consumer, Course
from actors.values.errors import InvalidArgument, TritiumError

Value = TypeVar("Value")

Iteration = tuple[int, ...]

ROOT: Final[Iteration] = ()
_DEADLOCK: Final = (
    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
)


class Run(Generic[Value]):
    """One execution of one step. Equality is identity."""

    __slots__ = ("inputs", "iteration", "step")

    def __init__(self, step: Consumer, iteration: Iteration, inputs: Mapping[str, Value]) -> None:
        self.step = step
        self.iteration = iteration
        self.inputs = inputs  # by the model's name; null ones are left out


class Flow(Generic[Value]):
    """One request on its way.

    Call `begin` first. Each run that comes out is then ended by a final `received` or `failed`.
    """

    __slots__ = ("_answered", "_course", "_pending", "_seen", "_values", "error", "running")

    def __init__(self, course: Course) -> None:
        self._course = course
        self._values: dict[Iteration, dict[str, Value | None]] = {ROOT: {}}
        self._seen: dict[Iteration, set[int]] = {}  # the numbers of consumers that were complete
        self.running: dict[Run[Value], int] = {}  # what has not ended: the number of responses of each
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
        responses = self.running[run]
        if final:
            del self.running[run]
        else:
            self.running[run] = responses + 1
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
            del self.running[run]
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
        return not self.running

    def take_answers(self) -> list[Mapping[str, Value]]:
        """Return each complete answer once, as soon as no earlier one has to come first."""
        if not self._pending:
            return []
        ready = len(self._pending)
        if self.running:
            earliest = min(map(self._earliest, self.running))
            ready = bisect_left(self._pending, earliest, key=_by_iteration)
        taken = [answer for _, answer in self._pending[:ready]]
        del self._pending[:ready]
        self._answered += ready
        return taken

    def _earliest(self, run: Run[Value]) -> Iteration:
        """Return a lower bound of the iterations to which `run` can still add something."""
        return (*run.iteration, self.running[run]) if run.step.decoupled else run.iteration

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
            self.running[run] = 0
            runs.append(run)

    def _forget(self, iteration: Iteration) -> None:
        """Drop the values of an iteration, and of those around it, to which nothing will be added."""
        while iteration:
            length = len(iteration)
            for run in self.running:
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
