"""The answer to a request to an ensemble: its parts, how the client reads them, and counts. Passive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import trio

from actors.ensembles.loans import Loan, Piece, Value, claimed, drop_all
from actors.ensembles.plan import Plan
from actors.ensembles.policy.places import Place, parameters_of
from actors.serving.model import ModelState
from actors.serving.statistics import FailureReason
from actors.values.errors import Cancelled, TritiumError, Unavailable
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor

UNREAD_PARTS: Final = 32
"""Unread parts of one answer at which the decoupled models that it comes from wait for the client to read.

A worker may have as many parts of an answer on their way to the server (`actors.wire.frames.WINDOW_PARTS`).
"""


class EnsembleAnswer:
    """The answer to `request`, from its first part to its last."""

    __slots__ = ("_began", "_held", "_parts", "_plan", "_spent", "_state", "_unread", "request")

    def __init__(self, state: ModelState, request: InferRequest, plan: Plan, *, began: float) -> None:
        self.request = request
        self._state = state
        self._plan = plan
        self._began = began
        self._parts = 0
        self._unread = 0  # parts that have not been released
        self._held: list[Loan] = []  # loans that wait for those parts to be released
        self._spent = (0, 0, 0, 0)  # by the steps, as in `InferResponse.timing`

    # -- what the client reads -------------------------------------------------------------------------------

    def hold(self, loan: Loan) -> None:
        """Keep what a decoupled model has lent until the client has read enough: the model waits for it."""
        if self._unread >= UNREAD_PARTS:
            loan.keep_for(self)
            self._held.append(loan)

    def let_go(self) -> None:
        """Let the models go on that wait for the client."""
        held, self._held = self._held, []
        for loan in held:
            loan.drop(self)

    def _read(self, lent: Iterable[Loan], part: InferResponse) -> None:
        """The client has taken a part of the answer, whose tensors were lent."""
        drop_all(lent, part)
        self._unread -= 1
        if self._held and self._unread < UNREAD_PARTS // 2:
            self.let_go()

    # -- parts -----------------------------------------------------------------------------------------------

    def give(self, answer: Mapping[str, Value], *, final: bool) -> None:
        """Give the values of the requested outputs."""
        spec, fit = self._state.spec, self._plan.answers
        outputs: list[Tensor] = []
        lent = False
        place: Place | None = None
        for name, value in answer.items():
            if isinstance(value, Piece):
                given, loan = value.tensor, value.loan
                place = place or value.sequence
            else:
                given, loan = value, None
            if fit.usual.get(name) != len(given.shape):
                tensor = fit.of(given, name)
            elif loan is None and name == given.name:
                tensor = given
            else:
                tensor = given.renamed(name, given.shape)
            outputs.append(tensor)
            if loan is not None:
                lent = True
                loan.view(tensor, given)
        response = self._response(outputs, final=final)
        if outputs:
            response.parameters = parameters_of(place or (self.request.correlation_id, self.request.flags))
        held = [loan for loan in claimed(answer.values(), response) if loan.open] if lent else []
        if self._plan.course.decoupled:
            self._unread += 1
            response.on_release(partial(self._read, held, response))
        elif held:
            response.on_release(partial(drop_all, held, response))
        self._parts += 1
        if self._parts == 1 and spec.decoupled and not self.request.synthetic:
            total = trio.current_time() - self.request.accepted_at
            self._state.statistics.first_part(int(total * 1e9))
        self._state.outcome.respond(self.request, response, final=final)

    def end(self) -> None:
        """End the answer of a decoupled ensemble, with an empty final part."""
        self._state.outcome.respond(self.request, self._response([], final=True))

    def _response(self, outputs: list[Tensor], *, final: bool) -> InferResponse:
        """Return a part of the answer. Count the request if the part is the last one."""
        spec = self._state.spec
        timing = self._timing()
        if final and not self.request.answered:
            self._state.outcome.count_composed(self.request, timing)
        return InferResponse(
            model_name=spec.name,
            model_version=spec.version,
            id=self.request.id,
            outputs=outputs,
            timing=timing,
        )

    def fail(self, error: TritiumError, *, of_a_step: bool = False) -> None:
        """Answer with `error`."""
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

    # -- what is counted -------------------------------------------------------------------------------------

    def spent(self, timing: tuple[int, int, int, int]) -> None:
        """Count the time that a step has spent on a part of its answer, as in `InferResponse.timing`."""
        queue, before, compute, after = self._spent
        more_queue, more_before, more_compute, more_after = timing
        self._spent = queue + more_queue, before + more_before, compute + more_compute, after + more_after

    def _timing(self) -> tuple[int, int, int, int]:
        waited = max(0, int((self._began - self.request.accepted_at) * 1e9))
        queue, before, compute, after = self._spent
        return waited + queue, before, compute, after


def in_ensemble(spec: ModelSpec, error: TritiumError) -> TritiumError:
    """Return `error` in the form that the client of the ensemble gets (contract, section 7)."""
    text = f"in ensemble '{spec.name}', {error.message}"
    if isinstance(error, Unavailable):
        return Unavailable(text, retry_after=error.retry_after)
    return TritiumError.of(error.code, text)
