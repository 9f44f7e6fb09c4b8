"""One request on its way through an ensemble: its data flow, its steps and its answer.

Passive, and without a task of its own. When a step's answer is put, it runs the data flow
(`actors.ensembles.policy.flow`) and submits what can run next. Answers that come in the meantime are handled
afterwards, by the same loop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import trio

from actors.ensembles.answer import EnsembleAnswer
from actors.ensembles.lines import Lines
from actors.ensembles.loans import Loan, Loans, Piece, Value, claimed
from actors.ensembles.plan import Plan
from actors.ensembles.policy.flow import Run
from actors.ensembles.policy.gates import Gates
from actors.ensembles.policy.places import place_of
from actors.ensembles.policy.straight_flow import AnyFlow, flow_along
from actors.ensembles.steps import Step, StepOwner
from actors.serving.model import ModelState
from actors.values.errors import Cancelled, Internal, TritiumError
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import Ensemble
from actors.values.tensors import Tensor


class Ensembling(Protocol):
    """What a composed request needs of its ensemble (`actors.ensembles.ensemble`)."""

    state: ModelState
    lines: Lines
    clock: Callable[[], float]
    """The time on trio's clock."""

    def wait_at_gate(self, step: Step) -> None:
        """`step` waits for its gate: submit it anyway when that has taken too long."""

    def leave_gate(self, step: Step) -> None:
        """It no longer waits."""

    def lend(self, loan: Loan) -> None:
        """Look after `loan`, whose response views a worker's slot."""

    def finished(self, request: InferRequest) -> None:
        """`request` is over."""

    def broke(self, bug: Exception) -> None:
        """A request met a bug, and was answered. The supervised actor has to fail with that bug."""


class ComposedRequest(StepOwner):
    """One request to an ensemble, from its queue to its answer."""

    __slots__ = (
        "_answer",
        "_arrivals",
        "_busy",
        "_decoupled",
        "_flow",
        "_gates",
        "_loans",
        "_over",
        "_owner",
        "_plan",
        "_state",
        "_steps",
        "request",
    )

    def __init__(self, owner: Ensembling, request: InferRequest, plan: Plan, *, now: float) -> None:
        """The versions that run the steps of `plan` stay pinned until the request is over."""
        self.request = request
        self._owner = owner
        self._state = owner.state
        self._plan = plan
        self._flow: AnyFlow[Value] = flow_along(plan.course)
        self._gates: Gates | None = None
        self._decoupled = plan.course.decoupled
        if self._decoupled:
            scheduling = owner.state.spec.scheduling
            limit = scheduling.max_inflight_requests if isinstance(scheduling, Ensemble) else 0
            self._gates = Gates(limit) if limit else None
        self._steps: dict[Run[Value], Step] = {}  # the steps that have not ended
        self._loans: Loans | None = None  # if memory was lent
        self._arrivals: deque[tuple[Step, InferResponse | TritiumError, bool]] = deque()
        self._busy = False
        self._over = False
        self._answer = EnsembleAnswer(owner.state, request, plan, began=now)
        plan.begin()

    @property
    def steps(self) -> Iterable[Step]:
        """The steps that have begun, and have not had their final answer."""
        return self._steps.values()

    # -- what happens ----------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Run the steps that can run with the request's inputs."""
        entry = self._plan.entry
        given: dict[str, Value] = {}
        for tensor in self.request.inputs:
            given[tensor.name] = entry.of(tensor) if entry.reshapes else tensor
        self._work(lambda: self._launch(self._flow.begin(given), now))

    def arrived(self, step: Step, part: InferResponse | TritiumError, *, final: bool) -> None:
        """A step's model has given a part of its answer."""
        if self._over or step.ended:
            if isinstance(part, InferResponse):
                part.release()
            return
        if self._busy:
            self._arrivals.append((step, part, final))
            return
        # As `_work` does, on the path of every answer.
        self._busy = True
        try:
            self._take(step, part, final)
            if self._decoupled or self._arrivals or not self._flow.running:
                self._work_off()
        except Exception as bug:  # noqa: BLE001
            self._abandon(bug)
        finally:
            self._busy = False

    def taken(self, loan: Loan, step: Step) -> None:
        """The step's model has accepted it.

        The decoupled model that gave its input may go on once the client has read enough.
        """
        if not self._over:
            self._answer.hold(loan)
        loan.drop(step)

    def cancel(self) -> None:
        """The client has gone: start no more steps, and cancel those that run.

        The request is answered when they have ended.
        """
        if not self._over:
            self._flow.stop(Cancelled(""))
            self._work(self._call_off)

    def resume(self, step: Step) -> None:
        """Submit a step that waited for its gate too long."""
        gates = self._gates
        if gates is not None and not step.ended and gates.give_up(step.run.step.number, step):
            self._work(lambda: self._pass(step, self._owner.clock()))

    def _work(self, first: Callable[[], object]) -> None:
        """Do `first`, and then the work that has come in the meantime.

        A bug fails this request only.
        """
        # It was called from within: the outer call goes on with the work that has come.
        if self._busy:
            first()
            return
        self._busy = True
        try:
            first()
            self._work_off()
        except Exception as bug:  # noqa: BLE001
            # The bug belongs to the supervised child: the scheduler fails with it in its next turn.
            self._abandon(bug)
        finally:
            self._busy = False

    def _work_off(self) -> None:
        """Tell the client what has come of the work so far, and take the answers that have come meanwhile."""
        # Without decoupled steps there is nothing to tell before the end.
        if self._decoupled or not self._flow.running:
            self._tell()
        while self._arrivals:
            self._take(*self._arrivals.popleft())
            if self._decoupled or not self._flow.running:
                self._tell()

    # -- steps -----------------------------------------------------------------------------------------------

    def _launch(self, runs: Iterable[Run[Value]], now: float) -> None:
        for run in runs:
            step = self._step(run, now)
            if self._gates is None or self._gates.enter(run.step.number, step):
                self._pass(step, now)
            else:
                self._owner.wait_at_gate(step)

    def _pass(self, step: Step, now: float) -> None:
        """Submit a step whose gate is open."""
        step.passed = True
        if self._gates is not None:
            self._owner.leave_gate(step)
        lines = self._owner.lines
        if lines.waiting and lines.has(step.plan.model):
            lines.wait(step)
            return
        try:
            # A pinned version takes it even while it is retiring.
            state = step.plan.state
            if state is None:
                step.plan.model.submit_nowait(step.request)
            else:
                in_company = len(self._state.in_flight) > 1
                state.intake.submit_nowait(step.request, pinned=True, in_company=in_company, now=now)
        except trio.WouldBlock:
            lines.wait(step)
        except TritiumError as error:
            self._arrivals.append((step, error, True))
        else:
            if step.loans:
                step.accepted()

    def _step(self, run: Run[Value], now: float) -> Step:
        """Return a step with the request that is given to its model."""
        plan, whole = self._plan.steps[run.step.number], self.request
        step = Step(self, run, plan)
        correlation_id, flags = whole.correlation_id, whole.flags
        fit, usual = plan.fit, plan.fit.usual
        inputs: list[Tensor] = []
        lent = False
        for name, value in run.inputs.items():
            if isinstance(value, Piece):
                given, loan = value.tensor, value.loan
                if value.sequence is not None:
                    correlation_id, flags = step.sequence = value.sequence
            else:
                given, loan = value, None
            if loan is not None:
                lent = True
                if not plan.by_reference and not loan.streamed:
                    loan.copy()
            if usual.get(name) != len(given.shape):
                tensor = fit.of(given, name)
            elif loan is None and name == given.name:
                tensor = given
            else:
                tensor = given.renamed(name, given.shape)
            inputs.append(tensor)
            if loan is not None:
                loan.view(tensor, given)
        if lent:
            step.loans = claimed(run.inputs.values(), step, step.waits)
        request = step.request = InferRequest(
            model_name=plan.spec.name,
            requested_version=plan.version,
            id=whole.id,
            inputs=inputs,
            requested_outputs=plan.outputs,
            parameters=whole.parameters,
            priority=whole.priority,
            timeout=whole.timeout,
            correlation_id=correlation_id,
            flags=flags,
            deadline=whole.deadline,
            reply=step,
            accepted_at=now,
        )
        request.device_outputs = plan.device_outputs
        if whole.caller is not None or whole.synthetic or whole.tenant or whole.affinity:
            request.inherit((whole,))
        if whole.span is not None:
            whole.span.child(request, step.relation, now)
        self._steps[run] = step
        return step

    def _take(self, step: Step, part: InferResponse | TritiumError, final: bool) -> None:
        if step.ended:
            if isinstance(part, InferResponse):
                part.release()
            return
        if isinstance(part, TritiumError):
            self._flow.failed(step.run, part, final=final)
            runs: Sequence[Run[Value]] = ()
        else:
            if part.timing is not None:
                self._answer.spent(part.timing)
            pieces = self._pieces(step, part)
            empty = final and step.run.step.decoupled and not part.outputs
            runs = self._flow.received(step.run, pieces, final=final, empty=empty)
        if final:
            if step.request.span is not None:
                step.request.span.refused(part, self._owner.clock())
            del self._steps[step.run]
            step.end()
            if self._gates is not None and step.passed:
                self._leave(step, self._gates)
        if self._flow.error is None:
            if runs:
                self._launch(runs, self._owner.clock())
        else:
            self._call_off()

    def _pieces(self, step: Step, part: InferResponse) -> dict[str, Value]:
        """Return a response's tensors by the model's names, and track the memory that they view."""
        wanted = step.run.step.outputs
        sequence = step.sequence
        if part.parameters:
            sequence = place_of(part.parameters, sequence, self.request)
        loan = self._loan(step, part) if part.leased else None
        pieces: dict[str, Value] = {}
        plain = loan is None and sequence is None
        for tensor in part.outputs:
            if tensor.name in wanted:
                pieces[tensor.name] = tensor if plain else Piece(tensor, loan, sequence)
        return pieces

    def _loan(self, step: Step, part: InferResponse) -> Loan | None:
        """Borrow the memory that a response's tensors view. None where nothing of it is needed."""
        wanted = step.run.step.outputs
        tensors = [wanted[tensor.name] for tensor in part.outputs if tensor.name in wanted]
        if not tensors or self._flow.error is not None:
            part.release()
            return None
        course = self._plan.course
        lasting = any(tensor in course.lasting for tensor in tensors)
        uses = math.inf if lasting else sum(course.uses[tensor] for tensor in tensors)
        loan = Loan(part, uses, streamed=step.run.step.decoupled)
        if self._loans is None:
            self._loans = Loans()
        self._loans.add(loan)
        if lasting and not loan.streamed:
            loan.copy()
        elif not loan.streamed:
            self._owner.lend(loan)
        return loan

    def _leave(self, step: Step, gates: Gates) -> None:
        """A step that had passed its gate has ended: let the next one pass."""
        following = gates.ended(step.run.step.number)
        if isinstance(following, Step):
            self._pass(following, self._owner.clock())

    def _call_off(self) -> None:
        """Cancel all steps that run."""
        for step in list(self._steps.values()):
            gates = self._gates
            waits = gates is not None and gates.withdraw(step.run.step.number, step)
            if waits:
                self._owner.leave_gate(step)
            if waits or self._owner.lines.leave(step):
                self._arrivals.append((step, Cancelled(""), True))
            elif not step.request.cancelled:
                step.model.cancel(step.request)

    # -- the end ---------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Give the client what is complete, and the end if there is one."""
        if self._over:
            return
        flow, answer = self._flow, self._answer
        complete = flow.take_answers()
        if flow.running:
            for values in complete:
                answer.give(values, final=False)
            return
        if flow.error is not None or not complete:
            of_a_step = flow.error is not None
            error = flow.ending(self.request.prefix)
            if error is not None:
                self._finish()
                answer.fail(error, of_a_step=of_a_step)
                return
        for values in complete[:-1]:
            answer.give(values, final=False)
        if complete:
            answer.give(complete[-1], final=True)
        else:
            answer.end()
        self._finish()

    def _finish(self) -> None:
        """Release everything that was held for the request."""
        self._over = True
        if self._decoupled:
            self._answer.let_go()
        if self._loans is not None:
            self._loans.forsake()
        self._plan.end()
        self._owner.finished(self.request)

    def _abandon(self, bug: Exception) -> None:
        """Answer with INTERNAL, and let go of all steps and loans."""
        if self._over:
            self._owner.broke(bug)
            return
        steps = list(self._steps.values())
        for step in steps:
            step.ended = True
            if step.request.span is not None:
                step.request.span.refused(None, self._owner.clock())
            self._owner.leave_gate(step)
            if not self._owner.lines.leave(step):
                step.model.cancel(step.request)
            for loan in step.loans:
                loan.drop(step)
        self._finish()
        self._answer.fail(
            Internal("the server made a mistake with this request, and the log of the server has what it was")
        )
        self._owner.broke(bug)
