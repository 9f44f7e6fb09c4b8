"""The data flow of an ensemble in which no step is decoupled: the common case, and a cheap one. Pure.

There is one iteration and one answer then, and each step answers once. So whether a step can run need not be
looked up. It follows from a count: how many writers of its inputs, the client among them, have not yet given.
Everything else is as in `actors.ensembles.policy.flow`; a test plays both against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from actors.ensembles.policy.course import Consumer, Course
from actors.ensembles.policy.flow import ROOT, Flow, Run, deadlock
from actors.values.errors import TritiumError

Value = TypeVar("Value")


class StraightFlow(Generic[Value]):
    """One request on its way along a course without decoupled steps.

    It is used like `actors.ensembles.policy.flow.Flow`.
    """

    __slots__ = ("_answer", "_awaited", "_course", "_taken", "_values", "error", "running")

    def __init__(self, course: Course) -> None:
        self._course = course
        # By consumer: how many of its writers have not yet given.
        self._awaited = dict(course.writers)
        self._values: dict[str, Value] = {}  # by tensor; null ones are left out
        self.running = 0  # how many have not ended
        self._answer: Mapping[str, Value] | None = None
        self._taken = False
        self.error: TritiumError | None = None

    def begin(self, inputs: Mapping[str, Value]) -> Sequence[Run[Value]]:
        """Start from the ensemble's inputs. See `Flow.begin`."""
        self._values.update(inputs)
        return self._given(self._course.fed)

    def received(
        self, run: Run[Value], outputs: Mapping[str, Value], *, final: bool, empty: bool = False
    ) -> Sequence[Run[Value]]:
        """A run has given its response. See `Flow.received`; a response that is not final is part of it."""
        if self.error is None:
            tensors = run.step.outputs
            for name, value in outputs.items():
                self._values[tensors[name]] = value
        if not final:
            return ()
        self.running -= 1
        return self._given(self._course.after[run.step.number]) if self.error is None else ()

    def _given(self, consumers: Sequence[Consumer]) -> Sequence[Run[Value]]:
        """A writer for `consumers` has given all that it will: return the consumers that can run now."""
        runs = []
        awaited, values = self._awaited, self._values
        for consumer in consumers:
            awaited[consumer.number] -= 1
            if awaited[consumer.number]:
                continue
            inputs: dict[str, Value] = {}
            for name, tensor, needed in consumer.inputs:
                value = values.get(tensor)
                if value is not None:
                    inputs[name] = value
                elif needed:
                    break
            else:
                if consumer is self._course.answer:
                    self._answer = inputs
                else:
                    self.running += 1
                    runs.append(Run(consumer, ROOT, inputs))
        return runs

    def failed(self, run: Run[Value], error: TritiumError, *, final: bool) -> None:
        """A run has given an error. See `Flow.failed`."""
        self.running -= final
        self.stop(error)

    def stop(self, error: TritiumError) -> None:
        """Run nothing new. See `Flow.stop`."""
        if self.error is None:
            self.error = error

    @property
    def over(self) -> bool:
        """Whether nothing runs. See `Flow.over`."""
        return not self.running

    def take_answers(self) -> Sequence[Mapping[str, Value]]:
        """Return the answer, once, when nothing runs any more. See `Flow.take_answers`."""
        if self.running or self._answer is None or self._taken or self.error is not None:
            return ()
        self._taken = True
        return (self._answer,)

    def ending(self, prefix: str) -> TritiumError | None:
        """Return the error that a flow which is over ends with, or None. See `Flow.ending`."""
        if self.error is None and self._answer is None:
            self.error = deadlock(prefix)
        return self.error


AnyFlow = Flow[Value] | StraightFlow[Value]


def flow_along(course: Course) -> AnyFlow[Value]:
    """Return the flow of a request that begins."""
    return Flow(course) if course.decoupled else StraightFlow(course)
