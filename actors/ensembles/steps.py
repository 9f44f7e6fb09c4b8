"""One run of a step of an ensemble: the request that its model gets, and the reply port of that. Passive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from actors.ensembles.loans import Loan, Value
from actors.ensembles.plan import StepPlan
from actors.ensembles.policy.flow import Run
from actors.ensembles.policy.places import Place
from actors.values.errors import TritiumError
from actors.values.requests import InferRequest, InferResponse, ReplyPort, ServedModel


class StepOwner(ABC):
    """The request to an ensemble that a step belongs to."""

    __slots__ = ()

    request: InferRequest

    @abstractmethod
    def arrived(self, step: Step, part: InferResponse | TritiumError, *, final: bool) -> None:
        """The model of `step` has given a part of its answer. Never raises."""

    @abstractmethod
    def taken(self, loan: Loan, step: Step) -> None:
        """The model of `step` has accepted it, whose input is lent by a decoupled model."""

    @abstractmethod
    def resume(self, step: Step) -> None:
        """Submit `step` after all: it has waited for its gate too long."""


class Step(ReplyPort):
    """A run of a step: its request, and the reply port of that."""

    __slots__ = ("_owner", "ended", "loans", "passed", "plan", "request", "run", "sequence", "submitting")
    relation = "step"  # of its request to the ensemble's, in the log

    def __init__(self, owner: StepOwner, run: Run[Value], plan: StepPlan) -> None:
        self._owner = owner
        self.run = run
        self.plan = plan
        self.loans: tuple[Loan, ...] = ()
        self.passed = False  # it has passed its gate
        # A task waits for room for it in its model's queue.
        self.submitting = False
        self.ended = False
        # Its place in a sequence, where that differs from the request's.
        self.sequence: Place | None = None
        self.request: InferRequest

    @property
    def parent(self) -> InferRequest:
        """The request to the ensemble."""
        return self._owner.request

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take one part (`actors.values.requests.ReplyPort`). Never raises."""
        self._owner.arrived(self, part, final=final)

    @property
    def model(self) -> ServedModel:
        """The model that runs it."""
        return self.plan.model

    async def submit(self) -> None:
        """Submit it, and wait for room. A pinned version takes it even while it is retiring."""
        if self.plan.state is not None:
            await self.plan.state.intake.submit(self.request, pinned=True)
        else:
            await self.plan.model.submit(self.request)

    def waits(self) -> bool:
        """Whether it does not execute: not yet, or no longer because its worker has died."""
        if not self.request.attempts:
            return True
        return self.plan.state is not None and self.request in self.plan.state.queue

    def end(self) -> None:
        """It has had its final answer: no further part is expected."""
        self.ended = True
        # Otherwise the two refer to each other, and only the garbage collector could free them.
        self.request.reply = _ENDED
        for loan in self.loans:
            loan.drop(self)

    def accepted(self) -> None:
        """Its model has accepted it: a decoupled model that gave its inputs may go on."""
        for loan in self.loans:
            if loan.streamed:
                self._owner.taken(loan, self)

    def resume(self) -> None:
        """Submit it after all: it has waited for its gate."""
        self._owner.resume(self)


class _Ended(ReplyPort):
    """The port of a step that has had its final answer: no further part is expected."""

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Release a part that comes after the end (`actors.values.requests.ReplyPort`)."""
        del final
        if isinstance(part, InferResponse):
            part.release()


_ENDED: Final = _Ended()
