"""The calls that a worker makes of models: each is the reply port of its request.

A call keeps the parts of its answer that the caller has yet to take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from actors.calls.account import Account
from actors.calls.answers import AnswerSender
from actors.calls.subjects import CallingWorker
from actors.serving.instances.batches import InFlight
from actors.values.errors import Cancelled, TritiumError, Unavailable
from actors.values.requests import InferRequest, InferResponse, ReplyPort, ServedModel, release
from actors.values.tensors import Tensor
from actors.values.tracing.spans import Span
from actors.wire.call_fields import CallFields
from actors.wire.call_frames import Letter
from actors.wire.frames import WINDOW_BYTES, WINDOW_PARTS, FrameError
from actors.wire.propagation import ids_in

CANCELLED_BY_CALLER: Final = "the caller has cancelled this call"
PARENT_CANCELLED: Final = "the request on whose behalf this call was made has been cancelled"

_PART_COST: Final = 1024  # bytes that one part takes beside its tensors, roughly


class WorkerCall(ReplyPort):
    """One call under way, and the reply port of its request."""

    __slots__ = (
        "_account",
        "_answers",
        "_nbytes",
        "_on_end",
        "_parts",
        "_waiting",
        "batch",
        "blocking",
        "book",
        "ended",
        "model",
        "number",
        "parents",
        "request",
        "size",
        "stopped",
    )
    relation = "call"  # of its request to its parent, in the log

    def __init__(
        self,
        number: int,
        model: ServedModel,
        book: CallBook,
        answers: AnswerSender,
        *,
        on_end: Callable[[WorkerCall], None],
        size: int,
        batch: InFlight | None,
        parents: Sequence[InferRequest],
        blocking: bool,
    ) -> None:
        """`on_end` is called before the caller gets the last response."""
        self.number = number
        self.size = size  # bytes of its inputs
        self.model = model
        # The batch whose execution made it, if that is still under way.
        self.batch = batch
        # The requests of that batch on whose behalf it is made: one, or all of them.
        self.parents = parents
        self.blocking = blocking and batch is not None  # the execution can't end before this call does
        self.request: InferRequest  # set until the end
        self.stopped = False  # the caller has asked for an end
        self.ended = False  # the caller has had the last response
        self.book = book
        self._account = book.account
        self._answers = answers
        self._on_end = on_end
        # Parts that were sent and that the caller has not taken.
        self._parts = 0
        self._nbytes = 0
        # Parts that wait for credit; each with whether it is final, and its cost in bytes.
        self._waiting: deque[tuple[InferResponse | TritiumError, bool, int]] = deque()

    @property
    def parent(self) -> InferRequest | None:
        """The request on whose behalf it is made; if that is a whole batch, its first request."""
        return self.parents[0] if self.parents else None

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Pass on one part of the answer, or keep it until the caller has taken more. See `ReplyPort`."""
        if self.stopped and isinstance(part, Cancelled) and not part.message:
            part = Cancelled(CANCELLED_BY_CALLER)
        if final and not self.ended and self.request.span is not None:
            self.request.span.refused(part, trio.current_time())
        if self.ended:
            release(part)
        elif self._waiting or not self._may_send(part, final=final):
            self._keep(part, final=final)
        else:
            self._send(part, final=final)

    def _keep(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Keep a part until there is credit for it.

        A part that holds no lease stays in the server's memory, so it needs room there.
        """
        cost = _PART_COST
        if isinstance(part, InferResponse):
            cost = 0 if part.leased else cost + sum(tensor.nbytes for tensor in part.outputs)
        if not self._account.keep(cost):
            release(part)
            self._break_off(
                Unavailable(f"{self._account.kept} bytes of answers wait for the caller to take them")
            )
            return
        self._waiting.append((part, final, cost))

    def _may_send(self, part: InferResponse | TritiumError, *, final: bool) -> bool:
        if final and (isinstance(part, TritiumError) or not part.outputs):
            return True  # the end costs no credit: there is one of them
        return self._parts < WINDOW_PARTS and self._nbytes < WINDOW_BYTES

    def _send(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        if final:
            self._on_end(self)
            self._end()
        nbytes = self._answers.send(self.number, part, final=final)
        self._parts += 1
        self._nbytes += nbytes

    def credit(self, parts: int, nbytes: int) -> None:
        """The caller has taken so much. Raises FrameError where it had not been given as much."""
        if parts > self._parts or nbytes > self._nbytes:
            raise FrameError(
                f"credit for {parts} parts and {nbytes} bytes of call {self.number}, which has fewer"
            )
        self._parts -= parts
        self._nbytes -= nbytes
        while self._waiting and self._may_send(self._waiting[0][0], final=self._waiting[0][1]):
            part, final, cost = self._waiting.popleft()
            self._account.kept -= cost
            self._send(part, final=final)

    def stop(self) -> None:
        """The caller wants no more. The callee is told, and parts that it still sends are passed on."""
        if not self.ended and not self.stopped and not self.request.answered:
            self.stopped = True
            self.model.cancel(self.request)

    def cancel(self, why: str) -> None:
        """The answer is no longer needed.

        The caller gets the parts that need no credit, then an error, and the callee is told.
        """
        if not self.ended:
            self._break_off(Cancelled(why))

    def _break_off(self, error: TritiumError) -> None:
        self._on_end(self)
        self.drop()
        self._answers.send(self.number, error, final=True)

    def drop(self) -> None:
        """Have the callee stop, without telling the caller."""
        if self.ended:
            return
        request = self.request
        self._end()
        while self._waiting:
            part, _, cost = self._waiting.popleft()
            self._account.kept -= cost
            release(part)
        if not request.answered and not self.stopped:
            self.model.cancel(request)

    def withdraw(self) -> None:
        """The call is not made after all, and the caller and the callee do not know of it."""
        self._end()

    def _end(self) -> None:
        self.ended = True
        if self.request.span is not None:
            self.request.span.refused(None, trio.current_time())
        # The request refers to this call. Its inputs must be freed with their last user, not by the garbage
        # collector.
        del self.request


class CallBook:
    """The calls of one worker that are under way, by whichever of its connections."""

    def __init__(self, caller: CallingWorker, account: Account) -> None:
        self.caller = caller
        self.account = account
        self.blocking: dict[int, list[WorkerCall]] = {}  # by batch: the calls that its execution waits for
        self._calls: dict[WorkerCall, None] = {}

    def began(self, call: WorkerCall) -> None:
        """A call is about to be made."""
        self._calls[call] = None
        self.account.calls += 1
        self.account.nbytes += call.size
        if call.blocking and call.batch is not None:
            self.blocking.setdefault(call.batch.id, []).append(call)

    def ended(self, call: WorkerCall) -> None:
        """A call has had its last response."""
        del self._calls[call]
        self.account.calls -= 1
        self.account.nbytes -= call.size
        if call.blocking and call.batch is not None:
            siblings = self.blocking[call.batch.id]
            siblings.remove(call)
            if not siblings:
                del self.blocking[call.batch.id]

    def cancelled(self, request: InferRequest) -> None:
        """The client of `request` has gone: cancel the calls that are made only on its behalf."""
        for call in [call for call in self._calls if request in call.parents]:
            if unwanted(call.parents):
                call.cancel(PARENT_CANCELLED)


def unwanted(parents: Sequence[InferRequest]) -> bool:
    """Whether the clients of all unanswered requests have gone.

    Where no client has gone, this is False: a call may be made for its effect alone.
    """
    for each in parents:
        if each.cancelled:
            return all(other.cancelled or other.answered for other in parents)
    return False


def request_of(
    letter: Letter, fields: CallFields, call: WorkerCall, parents: Sequence[InferRequest]
) -> InferRequest:
    """Return the request that a letter makes of its callee, with the properties of its `parents`."""
    span, span_id = _caller(parents, fields.trace)
    data = memoryview(letter.data)
    inputs = [
        Tensor(each.name, each.datatype, each.shape, data[each.offset : each.offset + each.nbytes])
        for each in letter.inputs
    ]
    request = InferRequest(
        model_name=fields.model,
        requested_version=fields.version,
        id=fields.id,
        inputs=inputs,
        requested_outputs=fields.requested_outputs,
        # Where the server goes on with the trace, the callee is to see no difference.
        parameters=fields.own_parameters if span_id else fields.parameters,
        priority=fields.priority,
        timeout=fields.timeout,
        correlation_id=fields.correlation_id,
        flags=fields.flags,
        reply=call,
        accepted_at=trio.current_time(),
    )
    if parents:
        request.inherit(parents)
    if span is not None:
        span.child(request, WorkerCall.relation, request.accepted_at)
        if request.span is not None:
            request.span.w3c_parent = span_id
    return request


def _caller(parents: Sequence[InferRequest], named: str) -> tuple[Span | None, int]:
    """Return the span of the parent on whose behalf a call is made, and the W3C id of what it is made in.

    If the model has `named` none of theirs, that is the first one that is traced, and 0.
    """
    spans = [each.span for each in parents if each.span is not None]
    if not spans:
        return None, 0
    trace_id, span_id = ids_in(named)
    for span in spans:
        if span.trace.w3c_id == trace_id:
            return span, span_id
    return spans[0], 0
