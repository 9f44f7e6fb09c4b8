"""The steps of an ensemble that wait for room in the queues of other models."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from actors.ensembles.steps import Step
from actors.values.errors import Internal, TritiumError
from actors.values.requests import ServedModel


class Line:
    """The steps that wait for room in the queue of one model."""

    __slots__ = ("attended", "model", "steps")

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.steps: OrderedDict[Step, None] = OrderedDict()
        self.attended = False  # a task works it off


class Lines:
    """A line for each model without room. One task for each line submits its steps in order."""

    def __init__(self, ring: Callable[[], object]) -> None:
        """`ring` wakes the scheduler, which sees to it that every line has its task."""
        self._ring = ring
        self.waiting: dict[int, Line] = {}  # by the identity of the model that has no room

    def __bool__(self) -> bool:
        """Whether there is a line."""
        return bool(self.waiting)

    def has(self, model: ServedModel) -> bool:
        """Whether steps wait for room at `model`."""
        return id(model) in self.waiting

    def wait(self, step: Step) -> None:
        """There is no room for `step` at its model: submit it in its turn when there is."""
        line = self.waiting.get(id(step.model))
        if line is None:
            line = self.waiting[id(step.model)] = Line(step.model)
            self._ring()
        line.steps[step] = None

    def leave(self, step: Step) -> bool:
        """Take `step` out of its line. False where it is in none, or its turn has come."""
        line = self.waiting.get(id(step.model))
        if line is None or step.submitting or step not in line.steps:
            return False
        del line.steps[step]
        return True

    def unattended(self) -> Sequence[Line]:
        """Return the lines without a task that works them off."""
        return [line for line in self.waiting.values() if not line.attended]

    def abandon(self) -> None:
        """The tasks that worked off the lines have ended."""
        for line in self.waiting.values():
            line.attended = False

    async def work_off(self, line: Line) -> None:
        """Submit the steps of a line in order, each when its model has room for it.

        Returns when none is left.
        """
        while line.steps:
            step = next(iter(line.steps))
            step.submitting = True
            try:
                await step.submit()
            except TritiumError as error:
                del line.steps[step]
                step.put(error, final=True)
            except Exception:
                del line.steps[step]
                step.put(
                    Internal(f"{step.request.prefix}could not be submitted to '{line.model.spec.name}'"),
                    final=True,
                )
                raise
            else:
                del line.steps[step]
                step.accepted()
        del self.waiting[id(line.model)]
        self._ring()
