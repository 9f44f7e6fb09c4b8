"""From a finished trace to the spans that OpenTelemetry is told of. Pure.

Contract, observability.md section 3.3. `queue` and what is below `compute` are ours::

InferRequest                  the frontend's moments are its events
└─ <model>                    a request to a model
   ├─ queue                   each wait for a worker
   ├─ compute                 each execution by a worker: several where one died, or the model asked for more
   └─ <model>                 a step of an ensemble, or a call; of a call, under the execution that made it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

from actors.values.tracing import spans
from actors.values.tracing.traces import FinishedTrace, TracedExecution, TracedRequest
from actors.wire.propagation import execution_id, own_id, wait_id
from engine.observability.spans.records import Attribute, SpanRecord, TraceRecord

ROOT: Final = "InferRequest"
QUEUE: Final = "queue"
COMPUTE: Final = "compute"
CALL: Final = "call"
_START: Final = "_START"
_END: Final = "_END"
STEP: Final = "step"


def planned(trace: FinishedTrace) -> TraceRecord:
    """Return the spans of a trace, each behind its parent."""
    made = list(_Plan(trace).spans())
    _widen(made)
    context = trace.context
    return TraceRecord(
        trace_id=trace.w3c_id,
        spans=made,
        remote=context is not None,
        state="" if context is None else context.state,
    )


def _widen(made: Sequence[SpanRecord]) -> None:
    """Have executions last as long as what is below them.

    A worker tells how long it took, and not when it began. So that is known only roughly.
    """
    executions = {span.span_id: span for span in made if span.name == COMPUTE}
    for span in made:
        above = executions.get(span.parent_id)
        if above is not None:
            above.start_ns = min(above.start_ns, span.start_ns)
            above.end_ns = max(above.end_ns, span.end_ns)


class _Plan:
    def __init__(self, trace: FinishedTrace) -> None:
        self._trace = trace
        self._by_id = {request.id: request for request in trace.requests}
        self._composed = {request.parent_id for request in trace.requests if request.relation == STEP}

    def spans(self) -> Iterator[SpanRecord]:
        trace = self._trace
        first = trace.requests[0]
        every = [*trace.moments, *first.moments]
        attributes: dict[str, Attribute] = {"tritium.spans_left_out": trace.unkept} if trace.unkept else {}
        yield SpanRecord(
            name=ROOT,
            span_id=trace.w3c_span,
            parent_id=0 if trace.context is None else trace.context.span_id,
            start_ns=min(moment.ns for moment in every),
            end_ns=max(moment.ns for moment in every),
            attributes=attributes,
            events=[(moment.name, moment.ns) for moment in trace.moments],
            error=first.error,
        )
        for request in trace.requests:
            yield from self._request(request)

    def _request(self, request: TracedRequest) -> Iterator[SpanRecord]:
        start = request.moments[0].ns
        end = max(moment.ns for moment in request.moments)
        yield SpanRecord(
            name=request.model_name,
            span_id=request.w3c_id,
            parent_id=self._parent(request, start),
            start_ns=start,
            end_ns=end,
            attributes=_attributes(request),
            events=[(moment.name, moment.ns) for moment in request.moments],
            error=request.error,
        )
        yield from _waits(request, end, composed=request.id in self._composed)
        moments, own = _own(request)
        for attempt, (number, execution) in enumerate(_begun(request), start=1):
            yield _execution(request, execution, number, attempt, end, moments.get(number, ()))
        yield from own

    def _parent(self, request: TracedRequest, start: int) -> int:
        """Return the span that a request is a child of: of a call, the execution that made it."""
        if request.w3c_parent:
            return request.w3c_parent
        parent = self._by_id.get(request.parent_id)
        if parent is None:
            return self._trace.w3c_span
        if request.relation == CALL:
            for number in range(len(parent.executions) - 1, -1, -1):
                if parent.executions[number].dispatched_ns <= start:
                    return execution_id(parent.w3c_id, number)
        return parent.w3c_id


def _attributes(request: TracedRequest) -> dict[str, Attribute]:
    told: dict[str, Attribute] = {
        "triton.model_name": request.model_name,
        "triton.model_version": request.model_version,
        "triton.trace_id": request.id,
        "triton.trace_parent_id": request.parent_id,
    }
    if request.request_id:
        told["triton.request_id"] = request.request_id
    if request.relation:
        told["tritium.relation"] = request.relation
    if request.correlation_id:
        # An id may have 64 bits, of which an attribute holds 63.
        told["tritium.correlation_id"] = str(request.correlation_id)
    if request.rows:
        told["tritium.rows"] = request.rows
    attempts = sum(1 for _ in _begun(request))
    if attempts > 1:
        told["tritium.attempts"] = attempts
    if request.parts > 1:
        told["tritium.responses"] = request.parts
    return told


def _waits(request: TracedRequest, end: int, *, composed: bool) -> Iterator[SpanRecord]:
    """Yield the times in which the request waited for a worker: before each execution, or in vain."""
    since = next((moment.ns for moment in request.moments if moment.name == spans.QUEUE_START), None)
    if since is None:
        return  # no model has accepted it
    waits = not composed
    for number, execution in _begun(request):
        yield _wait(request, number, since, execution.dispatched_ns)
        since, waits = execution.ended_ns or end, execution.outcome != spans.FINISHED
    if waits and request.error:
        yield _wait(request, len(request.executions), since, end)


def _begun(request: TracedRequest) -> Iterator[tuple[int, TracedExecution]]:
    """Yield executions with their numbers. What was taken back had not begun: its request waited on."""
    return (
        (number, execution)
        for number, execution in enumerate(request.executions)
        if execution.outcome != spans.TAKEN_BACK
    )


def _wait(request: TracedRequest, number: int, since: int, until: int) -> SpanRecord:
    return SpanRecord(
        name=QUEUE,
        span_id=wait_id(request.w3c_id, number),
        parent_id=request.w3c_id,
        start_ns=since,
        end_ns=max(since, until),
    )


def _execution(
    request: TracedRequest,
    execution: TracedExecution,
    number: int,
    attempt: int,
    end: int,
    more: Sequence[tuple[str, int]],
) -> SpanRecord:
    attributes: dict[str, Attribute] = {
        "tritium.instance": execution.instance,
        "tritium.pid": execution.pid,
        "tritium.batch": execution.batch,
        "tritium.batch_requests": execution.requests,
        "tritium.batch_rows": execution.rows,
        "tritium.outcome": execution.outcome,
    }
    if attempt > 1:
        attributes["tritium.attempt"] = attempt
    start = execution.dispatched_ns if execution.started_ns is None else execution.started_ns
    return SpanRecord(
        name=COMPUTE,
        span_id=execution_id(request.w3c_id, number),
        parent_id=request.w3c_id,
        start_ns=start,
        end_ns=max(start, end if execution.ended_ns is None else execution.ended_ns),
        attributes=attributes,
        events=sorted([*_moments_of(execution), *more], key=itemgetter(1)),
        error=(execution.reason or spans.DIED) if execution.outcome == spans.DIED else "",
    )


def _moments_of(execution: TracedExecution) -> Sequence[tuple[str, int]]:
    known: list[tuple[str, int | None]] = [
        (spans.COMPUTE_START, execution.started_ns),
        (spans.COMPUTE_INPUT_END, execution.input_end_ns),
        (spans.COMPUTE_OUTPUT_START, execution.output_start_ns),
        (spans.COMPUTE_END if execution.outcome == spans.FINISHED else spans.WORKER_DIED, execution.ended_ns),
    ]
    return [(name, at) for name, at in known if at is not None]


def _own(request: TracedRequest) -> tuple[Mapping[int, Sequence[tuple[str, int]]], Sequence[SpanRecord]]:
    """Return the activities of a model's own that are events, by execution, and its spans.

    `<NAME>_START` and the `<NAME>_END` that follows it make a span, as they do in Triton.
    """
    events: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    made: list[SpanRecord] = []
    begun: dict[tuple[int, str], int] = {}
    for each in request.own:
        parent = execution_id(request.w3c_id, each.execution)
        # A worker may say anything.
        earliest = request.executions[each.execution].dispatched_ns if request.executions else 0
        start_ns, end_ns = max(earliest, each.start_ns), max(earliest, each.end_ns)
        if each.id:
            made.append(
                SpanRecord(
                    name=each.name,
                    span_id=each.id,
                    parent_id=each.parent_id or parent,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    attributes=each.attributes,
                    error=each.error,
                )
            )
            continue
        name, start = each.name.removesuffix(_END), begun.get((each.execution, each.name.removesuffix(_END)))
        if each.name.endswith(_START):
            begun[each.execution, each.name.removesuffix(_START)] = start_ns
        elif each.name.endswith(_END) and start is not None:
            del begun[each.execution, name]
            own = own_id(request.w3c_id, len(made))
            made.append(
                SpanRecord(
                    name=name,
                    span_id=own,
                    parent_id=parent,
                    start_ns=start,
                    end_ns=max(start, start_ns),
                    events=[(f"{name}{_START}", start), (each.name, start_ns)],
                )
            )
        else:
            events[each.execution].append((each.name, start_ns))
    for (execution, name), start in begun.items():
        events[execution].append((f"{name}{_START}", start))
    return events, made
