"""The scheduler of an ensemble: it takes queued requests, and has the composing models run their steps.

`Ensembler` is passive and belongs to the ensemble's `ModelState`. The state of a request under way is in its
`ComposedRequest`. Most work is done where it arises. The caller of a lone request submits its first steps;
the code that puts a step's answer submits the steps after it. The actor takes requests that came together,
looks after time and memory, and waits.

Where a model's queue is full, the steps for it stand in a line, and one task for each such model submits them
in order. While there is a line no further request is taken. So the requests that a slow model can't serve
wait in the ensemble's own queue, which has bounds.

The actor holds no state: a restarted one finds requests, lines and gates where they were.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import trio

from actors.ensembles.answer import in_ensemble
from actors.ensembles.composed import ComposedRequest
from actors.ensembles.lines import Lines
from actors.ensembles.loans import Loan
from actors.ensembles.plan import Plan, Plans
from actors.ensembles.steps import Step
from actors.seams import faults
from actors.serving.model import ModelState
from actors.serving.policy.queueing import RequestQueue
from actors.serving.standing import Status
from actors.serving.statistics import FailureReason
from actors.serving.turns import TurnTaker
from actors.supervision.context import ChildContext
from actors.values.errors import Internal, TritiumError
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import Ensemble, EnsembleStep
from actors.values.wiring import Wiring

GATE_PATIENCE: Final = 300.0
"""Longest wait in seconds of a step while `max_inflight_requests` are under way.

Contract: scheduling.md section 7.
"""

STARTED_AT_ONCE: Final = 32
"""Requests taken from the queue in one turn of the loop, each of which costs some 100 µs."""

LOANS_EVERY: Final = 1.0
"""Seconds between two looks at memory that is lent.

A step that executed may wait again, because its worker has died.
"""

Resolve = Callable[[EnsembleStep], ServedModel]
"""From a step to the model that it runs on now; raises TritiumError where there is none."""


class Ensembler(TurnTaker):
    """Runs the requests of one ensemble version. Implements `actors.serving.ports.Composite`."""

    def __init__(self, state: ModelState, resolve: Resolve, changes: Callable[[], int] | None = None) -> None:
        """`changes` counts how often what `resolve` returns may have changed. Without it, all may change."""
        if not isinstance(state.spec.scheduling, Ensemble):
            raise TypeError(f"{state.spec.name} is no ensemble")
        super().__init__(state)
        if not isinstance(state.queue, RequestQueue):
            raise TypeError(f"the requests of ensemble '{state.spec.name}' follow each other")
        self._queue = state.queue
        self._wiring = Wiring(state.spec.scheduling)
        self._resolve = resolve
        # Asked for each step: `trio.current_time` would look the clock up each time.
        self.clock = trio.lowlevel.current_clock().current_time
        self._changes = changes
        self._requests: dict[InferRequest, ComposedRequest] = {}
        self._plans = Plans(state.spec, self._wiring)
        self.lines = Lines(state.doorbell.ring)
        # Each step that waits at a gate, and when its patience is over; in that order.
        self._gated: OrderedDict[Step, float] = OrderedDict()
        self._loans: list[Loan] = []
        self._last: dict[int, ModelState] = {}  # the version that ran each step last
        self._kept: list[ModelState] = []  # pinned for requests that have not begun
        self._keepers = 0
        self._waiting_kept = False  # one `keep` is for the requests in the queue

    @property
    def steps(self) -> Sequence[EnsembleStep]:
        """The steps, as configured."""
        return self._wiring.steps

    # -- actors.serving.ports.Composite ----------------------------------------------------------------------

    def cancel(self, request: InferRequest) -> None:
        """The client has gone: cancel what runs for it. See `actors.serving.ports.Composite`."""
        composed = self._requests.get(request)
        if composed is not None:
            composed.cancel()

    def steps_of(self, request: InferRequest) -> Sequence[tuple[ServedModel, InferRequest]]:
        """Return the models and requests of the steps of `request` that are under way.

        See `actors.serving.ports.Composite`.
        """
        composed = self._requests.get(request)
        return [(step.model, step.request) for step in composed.steps] if composed is not None else []

    def give_up(self) -> None:
        """Cancel everything that runs: its request has been answered. See `Composite`."""
        for composed in list(self._requests.values()):
            composed.cancel()
        self._keepers = 0
        self._waiting_kept = False
        self._release_kept()

    def keep(self) -> None:
        """Pin the models that steps would run on now: even retired, they serve until `let_go`."""
        self._keepers += 1
        if self._keepers > 1:
            return
        for number in range(len(self._wiring.steps)):
            try:
                model = self._resolve(self._wiring.steps[number])
            except TritiumError:
                continue  # a request that needs it will be told why
            if isinstance(model, ModelState):
                model.pin()
                self._kept.append(model)
                self._last[number] = model

    def let_go(self) -> None:
        """End one `keep`."""
        self._keepers = max(0, self._keepers - 1)
        if not self._keepers:
            self._release_kept()

    def _release_kept(self) -> None:
        kept, self._kept = self._kept, []
        for model in kept:
            model.unpin()

    # -- the scheduler's turn --------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """See `TurnTaker.turn`."""
        if faults.points is not None:
            faults.points.passing("ensemble.turn")
        self.answer_door()
        state, queue = self.state, self._queue
        if self._loans:
            self._look_after_loans()
        self._lose_patience(now)
        if self.end_overdue(queue, now) <= now:
            return -math.inf
        started = 0
        while len(queue) and not self.lines and started < STARTED_AT_ONCE:
            for request in queue.take(1):
                self._start(request, now)
            started += 1
        if started:
            state.intake.line.call_next()
        self._keep_for_queued()
        if len(queue) and not self.lines:
            state.doorbell.ring()  # lets other tasks have the loop in between
        patience = next(iter(self._gated.values()), math.inf)
        look_again = now + LOANS_EVERY if self._loans else math.inf
        return min(queue.next_expiry(), patience, look_again)

    def _keep_for_queued(self) -> None:
        """Pin the models that queued requests need.

        Those requests were accepted, so the models must not end before them.
        """
        waits = len(self._queue) > 0
        if waits and not self._waiting_kept:
            self._waiting_kept = True
            self.keep()
        elif self._waiting_kept and not waits:
            self._waiting_kept = False
            self.let_go()

    def _start(self, request: InferRequest, now: float) -> None:
        try:
            composed = ComposedRequest(self, request, self._plan(tuple(request.requested_outputs)), now=now)
        except TritiumError as error:
            self.state.outcome.fail(request, in_ensemble(self.state.spec, error), FailureReason.OTHER)
            return
        except Exception:
            self.state.outcome.fail(
                request, Internal(f"{request.prefix}could not be begun"), FailureReason.OTHER
            )
            raise
        self._requests[request] = composed
        composed.begin(now)

    def _plan(self, wanted: tuple[str, ...]) -> Plan:
        """Return the plan for `wanted`, with the models that run its steps now. Raises TritiumError."""
        if self._changes is not None:
            found = self._plans.found(wanted, self._changes())
            if found is not None:
                return found
        return self._plans.of(
            wanted, {number: self._model(number) for number in self._plans.steps_to(wanted)}
        )

    def _model(self, number: int) -> ServedModel:
        """Return the model that runs a step.

        That is the model that is resolved now. If none is, because it retires with this ensemble, it is the
        version that ran the step last.
        """
        try:
            model = self._resolve(self._wiring.steps[number])
        except TritiumError:
            last = self._last.get(number)
            if last is None or last.status is not Status.UNLOADING:
                raise
            return last
        if isinstance(model, ModelState):
            self._last[number] = model
        return model

    # -- for composed requests -------------------------------------------------------------------------------

    def finished(self, request: InferRequest) -> None:
        """See `actors.ensembles.composed.Ensembling`."""
        self._requests.pop(request, None)

    def broke(self, bug: Exception) -> None:
        """See `actors.ensembles.composed.Ensembling`."""
        self._bug = bug
        self.state.doorbell.ring()

    def lend(self, loan: Loan) -> None:
        """See `actors.ensembles.composed.Ensembling`."""
        self._loans.append(loan)
        self.state.doorbell.ring()

    def _look_after_loans(self) -> None:
        """Copy what was lent to a step that does not execute. Models had a turn of the loop to execute it."""
        loans, self._loans = self._loans, []
        fresh = False
        for loan in loans:
            if not loan.open:
                continue
            loan.turns += 1
            if loan.waits and loan.turns > 1:
                loan.copy()
            else:
                self._loans.append(loan)
                fresh = fresh or loan.turns <= 1
        if fresh:
            self.state.doorbell.ring()

    def wait_at_gate(self, step: Step) -> None:
        """See `actors.ensembles.composed.Ensembling`."""
        self._gated[step] = trio.current_time() + GATE_PATIENCE
        if len(self._gated) == 1:
            self.state.doorbell.ring()

    def leave_gate(self, step: Step) -> None:
        """See `actors.ensembles.composed.Ensembling`."""
        self._gated.pop(step, None)

    def _lose_patience(self, now: float) -> None:
        while self._gated:
            step, until = next(iter(self._gated.items()))
            if until > now:
                return
            del self._gated[step]
            step.resume()


async def run(ctx: ChildContext, state: ModelState, ensembler: Ensembler) -> None:
    """Schedule until asked to stop: the scheduler actor of an ensemble."""
    ctx.started()
    ctx.publish(scheduler="ensemble", steps=len(ensembler.steps))
    try:
        async with trio.open_nursery() as nursery:
            state.doorbell.take_turn = ensembler.turn_at_once
            await _take_turns(ensembler, state, nursery)
    finally:
        state.doorbell.take_turn = None
        ensembler.lines.abandon()


async def _take_turns(ensembler: Ensembler, state: ModelState, nursery: trio.Nursery) -> NoReturn:
    while True:
        wake_at = ensembler.turn(trio.current_time())
        for line in ensembler.lines.unattended():
            line.attended = True
            nursery.start_soon(ensembler.lines.work_off, line)
        with trio.move_on_at(wake_at):
            await state.doorbell.wait()
