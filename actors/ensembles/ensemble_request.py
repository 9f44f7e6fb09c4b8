"""One request on its way through an ensemble: its steps, their reply ports, and the memory that they use.

Passive, and without a task of its own. When a step's answer is put, it runs the data flow
(`actors.ensembles.policy.ensembles`) and submits what can run next. Answers that come in the meantime are handled
afterwards, by the same loop.

Memory. Tensors go from step to step by reference. A response whose outputs view a slot of a worker is lent
while its consumers execute; see `Loan` for when it is copied instead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from actors.ensembles.ensemble_plan import Plan, StepPlan
from actors.ensembles.policy.ensembles import Gates, Run
from actors.ensembles.policy.straight_flow import AnyFlow, flow_along
from actors.serving.model import ModelState
from actors.serving.statistics import FailureReason
from actors.values.errors import Cancelled, Internal, TritiumError, Unavailable
from actors.values.interfaces import ServedModel
from actors.values.requests import (
    FLAG_SEQUENCE_END,
    FLAG_SEQUENCE_START,
    InferRequest,
    InferResponse,
    Parameter,
)
from actors.values.specs import Ensemble, ModelSpec
from actors.values.tensors import Tensor
from actors.wire.frames import WINDOW_PARTS

_NO_TIME: Final = (0, 0, 0, 0)
_SEQUENCE_KEYS: Final = ("sequence_id", "sequence_start", "sequence_end")
_MAX_INT64: Final = 2**63 - 1
# Correlation ids are unsigned, integer parameters of a response are not.
_TO_UNSIGNED: Final = 2**64
# Loans that have ended are removed when there are more than this.
_LOANS_KEPT: Final = 32

UNREAD_PARTS: Final = WINDOW_PARTS
"""Unread parts of one answer at which the decoupled models that it comes from wait for the client to read."""

Sequence_ = tuple[int | str, int]
"""A correlation id, and the flags that go with it."""


class Loan:
    """A step's response that views memory of another owner, until no consumer needs its tensors.

    The response of a decoupled model is in memory of the server, and its release lets the model go on. It is
    released when the models of the consuming steps have accepted them, or later where the client has many
    parts to read first.

    Any other response lies in a slot of the worker that made it. Such a slot must never wait for room in
    another model's queue, which may wait for slots of its own in turn. So the slot is lent only to steps that
    execute. If a step does not execute after two turns of the loop or later, the response is copied.
    """

    __slots__ = ("_copies", "_response", "_unclaimed", "_users", "streamed", "turns")

    def __init__(self, response: InferResponse, uses: float, *, streamed: bool) -> None:
        """`uses` is the number of consumers; infinite where that is unknown before the request has ended."""
        self.streamed = streamed
        self.turns = 0  # turns of the loop in which it was looked at
        self._response = response
        self._unclaimed = uses
        self._users: dict[object, None] = {}
        # Tensors that view the response's tensors, each with the tensor that it views.
        self._copies: list[tuple[Tensor, Tensor]] = []

    @property
    def open(self) -> bool:
        """Whether the memory is still in use."""
        return self._response.leased

    def claim(self, user: object) -> None:
        """One of the consumers is here."""
        self._unclaimed -= 1
        self._users[user] = None

    def keep_for(self, user: object) -> None:
        """A user that consumes nothing needs the memory as well."""
        if self.open:
            self._users[user] = None

    def view(self, copy: Tensor, source: Tensor) -> None:
        """`copy` reads the data of `source`, one of the response's tensors."""
        if self.open:
            self._copies.append((copy, source))

    def drop(self, user: object) -> None:
        """A consumer no longer needs it."""
        if user in self._users:
            del self._users[user]
            self._settle()

    def forsake(self) -> None:
        """There will be no further consumer."""
        self._unclaimed = 0
        self._settle()

    def _settle(self) -> None:
        if not self._users and self._unclaimed <= 0:
            self._response.release()
            self._copies.clear()

    @property
    def waits(self) -> bool:
        """Whether it is lent, or will be, to a step that does not execute."""
        if self._unclaimed > 0:
            return True
        return any(isinstance(user, Step) and user.waits for user in self._users)

    def copy(self) -> None:
        """Let all consumers read copies, and give the memory back."""
        if self.open:
            for tensor in self._response.outputs:
                tensor.data = bytes(tensor.data)
            for copy, source in self._copies:
                copy.data = source.data
            self._copies.clear()
            self._response.release()


class Piece:
    """A value of an ensemble tensor. `sequence` replaces the request's for the step that consumes it."""

    __slots__ = ("loan", "sequence", "tensor")

    def __init__(self, tensor: Tensor, loan: Loan | None = None, sequence: Sequence_ | None = None) -> None:
        self.tensor = tensor
        self.loan = loan
        self.sequence = sequence


class Step:
    """A run of a step: its request, and the reply port of that."""

    __slots__ = ("_owner", "ended", "loans", "passed", "plan", "request", "run", "sequence", "submitting")
    relation = "step"  # of its request to the ensemble's, in the log

    def __init__(self, owner: ComposedRequest, run: Run[Piece], plan: StepPlan) -> None:
        self._owner = owner
        self.run = run
        self.plan = plan
        self.loans: tuple[Loan, ...] = ()
        self.passed = False  # it has passed its gate
        # A task waits for room for it in its model's queue.
        self.submitting = False
        self.ended = False
        # Its place in a sequence, where that differs from the request's.
        self.sequence: Sequence_ | None = None
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

    def submit_nowait(self, *, in_company: bool) -> None:
        """Submit it, as `ServedModel.submit_nowait` does.

        A pinned version takes it even while it is retiring.
        """
        state = self.plan.state
        if state is not None:
            state.submit_nowait(self.request, pinned=True, in_company=in_company)
        else:
            self.plan.model.submit_nowait(self.request)

    async def submit(self) -> None:
        """Submit it, and wait for room."""
        if self.plan.state is not None:
            await self.plan.state.submit(self.request, pinned=True)
        else:
            await self.plan.model.submit(self.request)

    @property
    def waits(self) -> bool:
        """Whether it does not execute: not yet, or no longer because its worker has died."""
        if not self.request.attempts:
            return True
        return self.plan.state is not None and self.request in self.plan.state.queue

    def accepted(self) -> None:
        """Its model has accepted it: a decoupled model that gave its inputs may go on."""
        for loan in self.loans:
            if loan.streamed:
                self._owner.taken(loan, self)

    def resume(self) -> None:
        """Submit it after all: it has waited for its gate."""
        self._owner.resume(self)


class _Ended:
    """The port of a step that has had its final answer: no further part is expected."""

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Release a part that comes after the end (`actors.values.requests.ReplyPort`)."""
        del final
        if isinstance(part, InferResponse):
            part.release()


_ENDED: Final = _Ended()


class Ensembling(Protocol):
    """What a composed request needs of its ensemble (`actors.ensembles.ensemble`)."""

    state: ModelState

    def wait_in_line(self, step: Step) -> None:
        """There is no room for `step` at its model: submit it in its turn when there is."""

    def has_line(self, model: ServedModel) -> bool:
        """Whether steps wait for room at `model`."""

    def leave_line(self, step: Step) -> bool:
        """Take `step` out of its line. False where it is in none, or its turn has come."""

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


class ComposedRequest:
    """One request to an ensemble, from its queue to its answer."""

    __slots__ = (
        "_arrivals",
        "_began",
        "_busy",
        "_flow",
        "_gates",
        "_held",
        "_loans",
        "_over",
        "_owner",
        "_parts",
        "_plan",
        "_spent",
        "_state",
        "_steps",
        "_sweep_at",
        "_unread",
        "request",
    )

    def __init__(self, owner: Ensembling, request: InferRequest, plan: Plan, *, now: float) -> None:
        """The versions that run the steps of `plan` stay pinned until the request is over."""
        self.request = request
        self._owner = owner
        self._state = owner.state
        self._plan = plan
        self._flow: AnyFlow[Piece] = flow_along(plan.course)
        self._gates: Gates | None = None
        if plan.course.decoupled:
            scheduling = owner.state.spec.scheduling
            limit = scheduling.max_inflight_requests if isinstance(scheduling, Ensemble) else 0
            self._gates = Gates(limit) if limit else None
        self._steps: dict[Run[Piece], Step] = {}  # the steps that have not ended
        self._loans: list[Loan] = []
        self._sweep_at = _LOANS_KEPT
        self._arrivals: deque[tuple[Step, InferResponse | TritiumError, bool]] = deque()
        self._busy = False
        self._over = False
        self._began = now
        self._parts = 0
        self._unread = 0  # parts of the answer that have not been released
        self._held: list[Loan] = []  # loans that wait for those parts to be released
        self._spent = _NO_TIME  # by its steps, as in `InferResponse.timing`
        for state in plan.pinned:
            state.pin()

    @property
    def steps(self) -> Iterable[Step]:
        """The steps that have begun, and have not had their final answer."""
        return self._steps.values()

    # -- what happens ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Run the steps that can run with the request's inputs."""
        entry = self._plan.entry.of
        given = {tensor.name: Piece(entry(tensor)) for tensor in self.request.inputs}
        self._work(lambda: self._launch(self._flow.begin(given)))

    def arrived(self, step: Step, part: InferResponse | TritiumError, *, final: bool) -> None:
        """A step's model has given a part of its answer."""
        if self._over or step.ended:
            if isinstance(part, InferResponse):
                part.release()
            return
        self._arrivals.append((step, part, final))
        if not self._busy:
            self._work()

    def taken(self, loan: Loan, step: Step) -> None:
        """The step's model has accepted it.

        The decoupled model that gave its input may go on once the client has read enough.
        """
        if self._unread >= UNREAD_PARTS and not self._over:
            loan.keep_for(self)
            self._held.append(loan)
        loan.drop(step)

    def _read(self, lent: Iterable[Loan], part: InferResponse) -> None:
        """The client has taken a part of the answer, whose tensors were lent."""
        _drop_all(lent, part)
        self._unread -= 1
        if self._held and self._unread < UNREAD_PARTS // 2:
            self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, []
        for loan in held:
            loan.drop(self)

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
            self._work(lambda: self._pass(step))

    def _work(self, first: _Work | None = None) -> None:
        """Do `first`, and then the work that has come in the meantime.

        A bug fails this request only.
        """
        # It was called from within: the outer call goes on with the work that has come.
        if self._busy:
            if first is not None:
                first()
            return
        self._busy = True
        try:
            if first is not None:
                first()
                self._answer()
            while self._arrivals:
                self._take(*self._arrivals.popleft())
                self._answer()
        except Exception as bug:  # noqa: BLE001
            # The bug belongs to the supervised child: the scheduler fails with it in its next turn.
            self._abandon(bug)
        finally:
            self._busy = False

    # -- steps -----------------------------------------------------------------------------------------------

    def _launch(self, runs: Iterable[Run[Piece]]) -> None:
        for run in runs:
            step = self._step(run)
            if self._gates is None or self._gates.enter(run.step.number, step):
                self._pass(step)
            else:
                self._owner.wait_at_gate(step)

    def _pass(self, step: Step) -> None:
        """Submit a step whose gate is open."""
        step.passed = True
        if self._gates is not None:
            self._owner.leave_gate(step)
        if self._owner.has_line(step.plan.model):
            self._owner.wait_in_line(step)
            return
        try:
            step.submit_nowait(in_company=len(self._state.in_flight) > 1)
        except trio.WouldBlock:
            self._owner.wait_in_line(step)
        except TritiumError as error:
            self._arrivals.append((step, error, True))
        else:
            if step.loans:
                step.accepted()

    def _step(self, run: Run[Piece]) -> Step:
        """Return a step with the request that is given to its model."""
        plan, whole = self._plan.steps[run.step.number], self.request
        step = Step(self, run, plan)
        correlation_id, flags = whole.correlation_id, whole.flags
        fit = plan.fit.of
        inputs: list[Tensor] = []
        lent = False
        for name, piece in run.inputs.items():
            if piece.loan is not None:
                lent = True
                if not plan.by_reference and not piece.loan.streamed:
                    piece.loan.copy()
            tensor = fit(piece.tensor, name)
            inputs.append(tensor)
            if piece.loan is not None:
                piece.loan.view(tensor, piece.tensor)
            if piece.sequence is not None:
                correlation_id, flags = step.sequence = piece.sequence
        if lent:
            step.loans = _claimed(run.inputs.values(), step)
        request = step.request = InferRequest(
            model_name=plan.spec.name,
            requested_version=plan.version,
            id=whole.id,
            inputs=inputs,
            requested_outputs=plan.outputs,
            parameters=whole.parameters,
            priority=whole.priority,
            timeout=whole.timeout,
            deadline=whole.deadline,
            correlation_id=correlation_id,
            flags=flags,
            reply=step,
            accepted_at=trio.current_time(),
        )
        request.synthetic = whole.synthetic
        request.affinity = whole.affinity
        request.tenant = whole.tenant
        self._steps[run] = step
        return step

    def _take(self, step: Step, part: InferResponse | TritiumError, final: bool) -> None:
        if step.ended:
            if isinstance(part, InferResponse):
                part.release()
            return
        if isinstance(part, TritiumError):
            self._flow.failed(step.run, part, final=final)
            runs: Sequence[Run[Piece]] = ()
        else:
            self._count(part)
            pieces = self._pieces(step, part)
            empty = final and step.run.step.decoupled and not part.outputs
            runs = self._flow.received(step.run, pieces, final=final, empty=empty)
        if final:
            self._end(step)
        if self._flow.error is None:
            self._launch(runs)
        else:
            self._call_off()

    def _pieces(self, step: Step, part: InferResponse) -> dict[str, Piece]:
        """Return a response's tensors by the model's names, and track the memory that they view."""
        wanted = step.run.step.outputs
        outputs = [tensor for tensor in part.outputs if tensor.name in wanted]
        if not outputs or self._flow.error is not None:
            part.release()
            return {}
        loan: Loan | None = None
        if part.leased:
            course, tensors = self._plan.course, [wanted[tensor.name] for tensor in outputs]
            lasting = any(tensor in course.lasting for tensor in tensors)
            uses = math.inf if lasting else sum(course.uses[tensor] for tensor in tensors)
            loan = Loan(part, uses, streamed=step.run.step.decoupled)
            if len(self._loans) >= self._sweep_at:
                self._loans = [each for each in self._loans if each.open]
                self._sweep_at = 2 * len(self._loans) + _LOANS_KEPT
            self._loans.append(loan)
            if lasting and not loan.streamed:
                loan.copy()
            elif not loan.streamed:
                self._owner.lend(loan)
        sequence = step.sequence
        if part.parameters:
            sequence = _sequence(part.parameters, sequence, self.request)
        return {tensor.name: Piece(tensor, loan, sequence) for tensor in outputs}

    def _end(self, step: Step) -> None:
        step.ended = True
        # Otherwise the two refer to each other, and only the garbage collector could free them.
        step.request.reply = _ENDED
        del self._steps[step.run]
        for loan in step.loans:
            loan.drop(step)
        if self._gates is not None and step.passed:
            following = self._gates.ended(step.run.step.number)
            if isinstance(following, Step):
                self._pass(following)

    def _call_off(self) -> None:
        """Cancel all steps that run."""
        for step in list(self._steps.values()):
            gates = self._gates
            waits = gates is not None and gates.withdraw(step.run.step.number, step)
            if waits:
                self._owner.leave_gate(step)
            if waits or self._owner.leave_line(step):
                self._arrivals.append((step, Cancelled(""), True))
            elif not step.request.cancelled:
                step.model.cancel(step.request)

    # -- the answer ------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        if self._over:
            return
        flow = self._flow
        answers = flow.take_answers()
        if not flow.over:
            for answer in answers:
                self._respond(answer, final=False)
            return
        of_a_step = flow.error is not None
        error = flow.ending(self.request.prefix)
        if error is not None:
            self._finish()
            self._fail(error, of_a_step=of_a_step)
            return
        for answer in answers[:-1]:
            self._respond(answer, final=False)
        if not self.request.answered:
            self._state.outcome.count_composed(self.request, self._timing())
        if answers:
            self._respond(answers[-1], final=True)
        else:  # a decoupled ensemble ends with an empty final part
            self._state.outcome.respond(self.request, self._response([]))
        self._finish()

    def _respond(self, answer: Mapping[str, Piece], *, final: bool) -> None:
        spec, fit = self._state.spec, self._plan.answers.of
        outputs: list[Tensor] = []
        lent = False
        sequence: Sequence_ | None = None
        for name, piece in answer.items():
            tensor = fit(piece.tensor, name)
            outputs.append(tensor)
            sequence = sequence or piece.sequence
            if piece.loan is not None:
                lent = True
                piece.loan.view(tensor, piece.tensor)
        response = self._response(outputs)
        if outputs:
            response.parameters = _told(sequence or (self.request.correlation_id, self.request.flags))
        held = [loan for loan in _claimed(answer.values(), response) if loan.open] if lent else []
        if self._plan.course.decoupled:
            self._unread += 1
            response.on_release(partial(self._read, held, response))
        elif held:
            response.on_release(partial(_drop_all, held, response))
        self._parts += 1
        if self._parts == 1 and spec.decoupled and not self.request.synthetic:
            total = trio.current_time() - self.request.accepted_at
            self._state.statistics.first_part(int(total * 1e9))
        self._state.outcome.respond(self.request, response, final=final)

    def _response(self, outputs: list[Tensor]) -> InferResponse:
        spec = self._state.spec
        return InferResponse(
            model_name=spec.name,
            model_version=spec.version,
            id=self.request.id,
            outputs=outputs,
            timing=self._timing(),
        )

    def _fail(self, error: TritiumError, *, of_a_step: bool = False) -> None:
        if self.request.answered:
            return
        if of_a_step and not self.request.cancelled:
            # Triton counts the failure of the step in the ensemble too, beside that of the ensemble.
            took = trio.current_time() - self.request.accepted_at
            self._state.statistics.failed(FailureReason.OTHER, int(took * 1e9))
        if self.request.cancelled and isinstance(error, Cancelled):
            told: TritiumError = Cancelled("")
        else:
            told = in_ensemble(self._state.spec, error)
        self._state.outcome.fail(self.request, told, FailureReason.OTHER)

    def _count(self, part: InferResponse) -> None:
        if part.timing is not None:
            queue, before, compute, after = self._spent
            more_queue, more_before, more_compute, more_after = part.timing
            self._spent = (
                queue + more_queue,
                before + more_before,
                compute + more_compute,
                after + more_after,
            )

    def _timing(self) -> tuple[int, int, int, int]:
        queue = int((self._began - self.request.accepted_at) * 1e9)
        return (max(0, queue) + self._spent[0], *self._spent[1:])

    # -- the end ---------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Release everything that was held for the request."""
        self._over = True
        self._let_go()
        for loan in self._loans:
            loan.forsake()
        for state in self._plan.pinned:
            state.unpin()
        self._owner.finished(self.request)

    def _abandon(self, bug: Exception) -> None:
        """Answer with INTERNAL, and let go of all steps and loans."""
        if self._over:
            self._owner.broke(bug)
            return
        steps = list(self._steps.values())
        for step in steps:
            step.ended = True
            self._owner.leave_gate(step)
            if not self._owner.leave_line(step):
                step.model.cancel(step.request)
            for loan in step.loans:
                loan.drop(step)
        self._finish()
        self._fail(
            Internal("the server made a mistake with this request, and the log of the server has what it was")
        )
        self._owner.broke(bug)


class _Work(Protocol):
    def __call__(self) -> object: ...


def _claimed(pieces: Iterable[Piece], user: object) -> tuple[Loan, ...]:
    """Have `user` claim the loans of `pieces`, and return those loans."""
    loans: dict[Loan, None] = {}
    for piece in set(pieces):
        if piece.loan is not None:
            piece.loan.claim(user)
            loans[piece.loan] = None
    return tuple(loans)


def _drop_all(loans: Iterable[Loan], user: object) -> None:
    for loan in loans:
        loan.drop(user)


def _sequence(
    parameters: Mapping[str, Parameter], before: Sequence_ | None, request: InferRequest
) -> Sequence_ | None:
    """Return the place in a sequence of a response's tensors; its step had `before` (contract, section 7).

    Where one of the three parameters is given, a flag that is not given is off.
    """
    told = [parameters.get(key) for key in _SEQUENCE_KEYS]
    if all(each is None for each in told):
        return before
    identity, start, end = told
    flags = (FLAG_SEQUENCE_START if start else 0) | (FLAG_SEQUENCE_END if end else 0)
    if isinstance(identity, int | str) and not isinstance(identity, bool):
        return (identity + _TO_UNSIGNED if isinstance(identity, int) and identity < 0 else identity), flags
    return (request.correlation_id if before is None else before[0]), flags


def _told(sequence: Sequence_) -> Mapping[str, Parameter]:
    """Return the parameters of an answer that say which place in a sequence it has.

    Integer parameters are signed.
    """
    identity, flags = sequence
    if isinstance(identity, int) and identity > _MAX_INT64:
        identity -= _TO_UNSIGNED
    values = (identity, bool(flags & FLAG_SEQUENCE_START), bool(flags & FLAG_SEQUENCE_END))
    return dict(zip(_SEQUENCE_KEYS, values, strict=True))


def in_ensemble(spec: ModelSpec, error: TritiumError) -> TritiumError:
    """Return `error` in the form that the client of the ensemble gets (contract, section 7)."""
    text = f"in ensemble '{spec.name}', {error.message}"
    if isinstance(error, Unavailable):
        return Unavailable(text, retry_after=error.retry_after)
    return TritiumError.of(error.code, text)
