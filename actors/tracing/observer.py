"""Notes on the spans of a batch's requests what becomes of the batch. Passive."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from actors.serving.instances.batches import InFlight
from actors.serving.ports import BatchObserver
from actors.serving.standing import InstanceState
from actors.values.requests import InferRequest
from actors.values.tracing.spans import DIED, FINISHED, TAKEN_BACK, Execution, Span
from actors.wire.batch_frames import Result


class SpanObserver(BatchObserver):
    """Told of the batches of a version while a traced request is in flight. One serves all versions.

    A worker says when it began with a batch, and how long each phase took. It is believed as far as that can
    be true; otherwise the phases are taken to have ended when their result came.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`monotonic` returns seconds on the machine's steady clock, by which workers tell the time."""
        self._monotonic = monotonic

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
            execution.started = execution.input_end = self._began(batch, execution, now)
        if execution.output_start is None:
            execution.output_start = now
        if final:
            execution.ended, execution.outcome = now, FINISHED

    def finished(self, batch: InFlight, result: Result) -> None:
        """See `BatchObserver.finished`."""
        now = trio.current_time()
        answers = result.answers
        phases = (result.input_ns / 1e9, result.infer_ns / 1e9, result.output_ns / 1e9)
        for place, request in enumerate(batch.requests):
            execution = _open(request.span)
            if execution is None:
                continue
            if answers is not None and answers[place].open:
                continue  # its answer comes in parts
            execution.outcome = FINISHED
            before, infer, after = phases
            began = self._begun(batch, execution, now)
            if began is not None and began + before + infer + after <= now:
                execution.started = began
                execution.input_end = began + before
                execution.output_start = began + before + infer
                execution.ended = began + before + infer + after
                continue
            execution.ended = now
            execution.output_start = max(execution.dispatched, now - after)
            execution.input_end = max(execution.dispatched, execution.output_start - infer)
            execution.started = max(execution.dispatched, execution.input_end - before)

    def died(self, batch: InFlight, reason: str) -> None:
        """See `BatchObserver.died`."""
        now = trio.current_time()
        for request in batch.requests:
            execution = _open(request.span)
            if execution is not None:
                if execution.started is None:
                    execution.started = self._began(batch, execution, now)
                execution.ended, execution.outcome, execution.reason = now, DIED, reason

    def taken_back(self, batch: InFlight) -> None:
        """See `BatchObserver.taken_back`."""
        now = trio.current_time()
        for request in batch.requests:
            execution = _open(request.span)
            if execution is not None:
                execution.ended, execution.outcome = now, TAKEN_BACK

    def _begun(self, batch: InFlight, execution: Execution, now: float) -> float | None:
        """Return when the worker began with a batch, if it says so and that may be true."""
        told = batch.slot.begun_ns
        if not told:
            return None
        at = told / 1e9 + (now - self._monotonic())
        return at if execution.dispatched <= at <= now else None

    def _began(self, batch: InFlight, execution: Execution, now: float) -> float:
        """Return when the execution of a batch began, as far as that is known."""
        at = self._begun(batch, execution, now)
        return min(max(execution.dispatched, batch.since), now) if at is None else at


def _open(span: Span | None) -> Execution | None:
    return None if span is None else span.execution
