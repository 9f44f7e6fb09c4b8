"""What one model version's requests come to: parts and final answers, and their counts. Passive.

Every accepted request is in the in-flight table until its final answer, which this module alone gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from actors.serving.doorbell import Doorbell
from actors.serving.instances.batches import InFlight
from actors.serving.policy.blame import Blame
from actors.serving.policy.ordering import ReorderBuffer
from actors.serving.policy.waiting_line import Sequencing
from actors.serving.ports import Observers, Stage
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.serving.waiting import WaitingCallers
from actors.values.errors import Cancelled, Internal, InvalidArgument, TritiumError, Unavailable
from actors.values.requests import InferRequest, InferResponse, Parameter
from actors.values.specs import DynamicBatching, Ensemble, ModelSpec
from actors.values.tensors import Tensor
from actors.values.tracing.spans import Span, told
from actors.wire.batch_frames import Answer, Result
from actors.wire.gathering import Cut
from actors.wire.parts import Arrived


class Outcome:
    """Answers the requests of one model version."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        statistics: ModelStatistics,
        blame: Blame,
        line: WaitingCallers,
        sequences: Sequencing | None,
        doorbell: Doorbell,
        on_drained: Callable[[], None],
        wall_clock: Callable[[], int],
    ) -> None:
        """`on_drained` is called when no request is left. `wall_clock` gives milliseconds since the epoch."""
        self.in_flight: dict[InferRequest, None] = {}  # in the order of their arrival
        self.stages: tuple[Stage, ...] = ()
        self.observers = Observers()
        preserve = isinstance(spec.scheduling, DynamicBatching) and spec.scheduling.preserve_ordering
        self.ordering: ReorderBuffer[InferResponse | TritiumError] | None = (
            ReorderBuffer() if preserve else None
        )
        self._name, self._version, self._decoupled = spec.name, spec.version, spec.decoupled
        self._composed = isinstance(spec.scheduling, Ensemble)
        self._statistics = statistics
        self._blame = blame
        self._line = line
        self._sequences = sequences
        self._doorbell = doorbell
        self._on_drained = on_drained
        self._wall_clock = wall_clock

    # -- from workers ----------------------------------------------------------------------------------------

    def completed(  # noqa: C901  one straight path
        self, batch: InFlight, result: Result, answers: Sequence[Cut], *, borrowed: bool
    ) -> None:
        """Answer the requests of a finished batch.

        `borrowed` outputs take a lease of the slot for each response.
        """
        now = trio.current_time()
        statistics = self._statistics
        for observer in self.observers.told:
            observer.finished(batch, result)
        if self._sequences is not None:
            answers = [cut for cut in answers if not cut[0].padding]
            if self._sequences.has_states:
                answers = [_collected(self._sequences, *cut) for cut in answers]
        # A worker's clock is believed only as far as it can be true. No duration exceeds the age of the
        # oldest request.
        oldest = batch.requests[0].accepted_at
        if len(batch.requests) > 1:
            oldest = min(request.accepted_at for request in batch.requests)
        limit = int((now - oldest) * 1e9)
        input_ns, infer_ns, output_ns = result.input_ns, result.infer_ns, result.output_ns
        if input_ns > limit or infer_ns > limit or output_ns > limit:
            input_ns, infer_ns, output_ns = (min(each, limit) for each in (input_ns, infer_ns, output_ns))
        compute_ns = input_ns + infer_ns + output_ns
        rows = clients = answered = 0
        totals: list[int] = []  # of clients' requests that are answered
        for request, outputs, answer in answers:
            if not request.synthetic:
                clients += 1
                rows += request.rows
            total_ns = int((now - request.accepted_at) * 1e9)
            if request.fingerprint is not None and not (answer is not None and answer.open):
                self._blame.acquit(request)
            if answer is not None:
                if answer.rescheduled:
                    self._reschedule(request)
                    continue
                if answer.open:  # its answer comes in parts
                    continue
                if answer.code is not None:
                    self.fail(request, TritiumError.of(answer.code, answer.message), FailureReason.BACKEND)
                    continue
            if not request.synthetic:
                answered += request.rows
                totals.append(total_ns)
            queue_ns = total_ns - compute_ns if total_ns > compute_ns else 0
            response = InferResponse(
                model_name=self._name,
                model_version=self._version,
                id=request.id,
                outputs=outputs,
                parameters=None if answer is None else answer.parameters,
                timing=(queue_ns, input_ns, infer_ns, output_ns),
            )
            if request.attempts > 1:
                response.parameters = _with_attempts(request, response.parameters)
            if borrowed:
                self._lend(response, batch, outputs)
            self.respond(request, response, now=now)
        # In the same turn of the loop, so no client can ask for the counts before.
        if totals:
            statistics.batch_succeeded(answered, totals, input_ns, infer_ns, output_ns)
        if clients:
            statistics.batch_executed(rows, input_ns, infer_ns, output_ns, self._wall_clock())

    def _reschedule(self, request: InferRequest) -> None:
        """The model released a request with RESCHEDULE: run it again (contract, section 6.7)."""
        if request.answered:
            return
        if self._sequences is None or not self._sequences.iterative:
            error = InvalidArgument(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not"
                " configured to handle such a flag."
            )
            self.fail(request, error, FailureReason.BACKEND)
        elif request.cancelled:
            self.fail(request, Cancelled(""), FailureReason.CANCELED)
        elif self._sequences.reschedule(request, trio.current_time()):
            self._doorbell.ring()
        else:
            sequence = f"sequence {request.correlation_id!r} of model '{self._name}'"
            why = f"{sequence} has ended with its instance; send it again"
            self.fail(request, Unavailable(request.prefix + why), FailureReason.BACKEND)

    def partial(self, batch: InFlight, arrived: Arrived) -> None:
        """Pass on one part of a decoupled model's answer.

        A message with the end alone, without a response, becomes a final response without outputs. Times are
        the server's: a request computes from the start of its batch to its last part.
        """
        stream, answer = arrived.stream, arrived.answer
        request = stream.request
        total_ns = int((trio.current_time() - request.accepted_at) * 1e9)
        queue_ns = min(total_ns, max(0, int((batch.started_at - request.accepted_at) * 1e9)))
        if arrived.first and not request.synthetic:
            self._statistics.first_part(total_ns)
        for observer in self.observers.told:
            observer.part(batch, request, final=arrived.final)
        if arrived.final and request.fingerprint is not None:
            self._blame.acquit(request)
        if answer is not None and answer.code is not None:
            error = TritiumError.of(answer.code, answer.message)
            if arrived.final:
                self.fail(request, error, FailureReason.BACKEND)
                return
            stream.take_when_dropped(error)
            self.respond(request, error, final=False)
            return
        response = InferResponse(
            model_name=self._name,
            model_version=self._version,
            id=request.id,
            outputs=arrived.outputs,
            parameters=None if answer is None else answer.parameters,
            timing=(queue_ns, 0, total_ns - queue_ns, 0),
        )
        if request.attempts > 1:
            response.parameters = _with_attempts(request, response.parameters)
        if arrived.costs:
            response.on_release(arrived.taken)
        if arrived.final and not request.synthetic:
            infer_ns = total_ns - queue_ns
            self._statistics.succeeded(request.rows, queue_ns, 0, infer_ns, 0, total_ns, streamed=True)
            self._statistics.computed(1, 0, infer_ns, 0)
        self.respond(request, response, final=arrived.final)

    def _lend(self, response: InferResponse, batch: InFlight, outputs: Sequence[Tensor]) -> None:
        # The response may wait for an earlier one, which may need this very slot.
        if self.ordering is not None:
            for tensor in outputs:
                tensor.data = bytes(tensor.data)
            return
        batch.slot.lease()
        response.on_release(batch.slot.release)

    # -- from elsewhere --------------------------------------------------------------------------------------

    def fail(self, request: InferRequest, error: TritiumError, reason: FailureReason) -> None:
        """Answer an accepted request with an error, and count it.

        An ensemble's failures are all counted with the reason OTHER.
        """
        if self._composed:
            reason = FailureReason.OTHER
        if not request.synthetic:
            self._statistics.failed(reason, int((trio.current_time() - request.accepted_at) * 1e9))
        self.respond(request, error)

    def fail_all(self, why: str) -> None:
        """Answer every request that is in flight with UNAVAILABLE."""
        for request in list(self.in_flight):
            self.fail(request, Unavailable(request.prefix + why), FailureReason.OTHER)

    def count_composed(self, request: InferRequest, timing: tuple[int, int, int, int]) -> None:
        """Count a request for which other models were executed; `timing` is as in `InferResponse`."""
        if request.synthetic:
            return
        total_ns = int((trio.current_time() - request.accepted_at) * 1e9)
        self._statistics.succeeded(request.rows, *timing, total_ns, streamed=self._decoupled)
        self._statistics.computed(1, *timing[1:])
        self._statistics.batch_executed(max(1, request.rows), *timing[1:], self._wall_clock())

    def count_hit(self, request: InferRequest, queue_ns: int, lookup_ns: int) -> None:
        """Count a request that is answered from the cache, now."""
        for stage in self.stages:
            stage.cached(request)
        if request.span is not None:
            request.span.hit(self._name, self._version, trio.current_time())
        total_ns = int((trio.current_time() - request.accepted_at) * 1e9)
        self._statistics.cache_hit(queue_ns, lookup_ns, total_ns, self._wall_clock())

    def trace(self, span: Span, request: InferRequest, since: float) -> None:
        """A traced `request` was accepted, and waits since `since`."""
        if span.accept(request, self._name, self._version, since):
            self.observers.traced()

    def _responding(self, span: Span, part: InferResponse | TritiumError, *, final: bool) -> None:
        """A traced request is about to be given `part`."""
        now = trio.current_time()
        if isinstance(part, InferResponse):
            span.respond(part.outputs, now, empty=final and not part.outputs)
        if final:
            if span.accepted and not span.ended:
                self.observers.untraced()
            span.end(now, told(part))

    def respond(
        self,
        request: InferRequest,
        part: InferResponse | TritiumError,
        *,
        final: bool = True,
        now: float = -1.0,
    ) -> None:
        """Give one part of an answer. A part after the final one is counted as a bug and dropped.

        `now`: the time, from a caller that knows it.
        """
        if request.answered:
            self._statistics.reply_violations += not request.padding
            if isinstance(part, InferResponse):
                part.release()
            return
        for stage in self.stages:
            stage.responding(request, part, final=final)
        if request.span is not None:
            self._responding(request.span, part, final=final)
        if not final:
            request.reply.put(part, final=False)
            return
        request.answered = True
        self.in_flight.pop(request, None)
        if self._sequences is not None:
            self._sequences.done(request, now if now >= 0.0 else trio.current_time())
            if not self._doorbell.rung and len(self._sequences.queue):
                self._doorbell.ring()
        # A request that never ran is not in `ordering`, and no other answer waits for its own.
        if self.ordering is None or request not in self.ordering:
            request.reply.put(part, final=True)
        else:
            for member, answer in self.ordering.release(self.ordering.ticket(request), part):
                member.reply.put(answer, final=True)
        if self._line.places:
            self._line.call_next()  # the answered request may have left the queue
        elif not self.in_flight:
            self._on_drained()


def _collected(
    sequences: Sequencing, request: InferRequest, outputs: list[Tensor], answer: Answer | None
) -> Cut:
    """Return what the client gets: no states, or the error of states that can't be kept."""
    failed = answer is not None and answer.code is not None
    try:
        return request, sequences.collect(request, outputs, failed=failed), answer
    except Internal as error:
        return request, [], Answer(code=error.code, message=request.prefix + error.message)


def _with_attempts(request: InferRequest, given: Mapping[str, Parameter] | None) -> Mapping[str, Parameter]:
    return {**(given or {}), "attempts": request.attempts}
