"""Notes on the spans of a batch's requests what becomes of the batch. Passive."""

from __future__ import annotations

import trio

from actors.serving.instances.batches import InFlight
from actors.serving.ports import BatchObserver
from actors.serving.standing import InstanceState
from actors.values.requests import InferRequest
from actors.values.tracing.spans import DIED, FINISHED, TAKEN_BACK, Execution, Span
from actors.wire.batch_frames import Result


class SpanObserver(BatchObserver):
    """Told of the batches of a version while a traced request is in flight. One serves all versions."""

    def dispatched(self, batch: InFlight, instance: InstanceState) -> None:
        """See `BatchObserver.dispatched`."""
        now = trio.current_time()
        real = [request for request in batch.requests if not request.padding]
        rows = sum(request.rows for request in real)
        for request in real:
            if request.span is not None:
                execution = Execution(
                    now,
                    instance=instance.spec.name,
                    pid=instance.pid or 0,
                    batch=batch.id,
                    requests=len(real),
                    rows=rows,
                )
                request.span.dispatched(execution, request)

    def part(self, batch: InFlight, request: InferRequest, *, final: bool) -> None:
        """See `BatchObserver.part`.

        The times of an answer that comes in parts are the server's, as in statistics: its model computes from
        the start of its batch.
        """
        execution = _open(request.span)
        if execution is None:
            return
        now = trio.current_time()
        if execution.started is None:
            execution.started = execution.input_end = _began(batch, execution, now)
        if execution.output_start is None:
            execution.output_start = now
        if final:
            execution.ended, execution.outcome = now, FINISHED

    def finished(self, batch: InFlight, result: Result) -> None:
        """See `BatchObserver.finished`. A worker's durations are believed as far as they can be true."""
        now = trio.current_time()
        answers = result.answers
        for place, request in enumerate(batch.requests):
            execution = _open(request.span)
            if execution is None:
                continue
            if answers is not None and answers[place].open:
                continue  # its answer comes in parts
            execution.ended, execution.outcome = now, FINISHED
            execution.output_start = max(execution.dispatched, now - result.output_ns / 1e9)
            execution.input_end = max(execution.dispatched, execution.output_start - result.infer_ns / 1e9)
            execution.started = max(execution.dispatched, execution.input_end - result.input_ns / 1e9)

    def died(self, batch: InFlight, reason: str) -> None:
        """See `BatchObserver.died`."""
        now = trio.current_time()
        for request in batch.requests:
            execution = _open(request.span)
            if execution is not None:
                if execution.started is None:
                    execution.started = _began(batch, execution, now)
                execution.ended, execution.outcome, execution.reason = now, DIED, reason

    def taken_back(self, batch: InFlight) -> None:
        """See `BatchObserver.taken_back`."""
        now = trio.current_time()
        for request in batch.requests:
            execution = _open(request.span)
            if execution is not None:
                execution.ended, execution.outcome = now, TAKEN_BACK


def _open(span: Span | None) -> Execution | None:
    return None if span is None else span.execution


def _began(batch: InFlight, execution: Execution, now: float) -> float:
    return min(max(execution.dispatched, batch.since), now)
