"""A finished trace, as sinks get it: a tree of spans, in nanoseconds of the machine's steady clock. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from actors.values.tracing import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from actors.values.datatypes import DataType
    from actors.values.tracing.spans import Execution, KeptTensor, OwnSpan, Span, Trace, TraceContext


class Moment(NamedTuple):
    """What a request came to, and when, in nanoseconds of the steady clock (`CLOCK_MONOTONIC`)."""

    name: str
    ns: int


class TracedTensor(NamedTuple):
    """A tensor of a request, its BYTES as on the wire.

    `data` is None where it was not kept: it is too large, or a client's region has it.
    """

    activity: str
    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: bytes | None
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedExecution:
    """One execution of a request, as a part of a batch of `requests` requests and `rows` rows.

    `outcome` is `finished`, `died` (with a `reason`), or `taken back`: its model had not begun with it. Times
    that are not known are None.
    """

    instance: str
    pid: int
    batch: int
    requests: int
    rows: int
    outcome: str
    reason: str
    dispatched_ns: int
    started_ns: int | None
    input_end_ns: int | None
    output_start_ns: int | None
    ended_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request to a model.

    `parent_id` is 0 for the client's own, and `relation` says what another is for its parent: `step` or
    `call`. `model_version` is -1 if no version has accepted it. `parts` counts the responses. `w3c_id` is the
    id of its span as OpenTelemetry has it.
    """

    id: int
    parent_id: int
    relation: str
    model_name: str
    model_version: int
    request_id: str
    correlation_id: int | str
    rows: int
    error: str
    parts: int
    w3c_id: int
    moments: tuple[Moment, ...]
    executions: tuple[TracedExecution, ...]
    tensors: tuple[TracedTensor, ...]
    own: tuple[OwnSpan, ...] = ()  # of its model
    w3c_parent: int = 0  # a span that its maker has named; 0: that follows from `parent_id`

    @property
    def compute(self) -> TracedExecution | None:
        """The execution that gave the answer, if one did."""
        return next((each for each in reversed(self.executions) if each.outcome == spans.FINISHED), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrace:
    """A client's request with all that was done for it.

    `moments` are the frontend's. A parent stands before its children in `requests`; the first is the client's
    own. `setting` is the trace setting that sampled it. `context` is what the client sent, if that is valid.
    `w3c_id` is the trace id, and `w3c_span` the id of the span around all of it.
    """

    setting: object
    context: TraceContext | None
    w3c_id: int
    w3c_span: int
    moments: tuple[Moment, ...]
    requests: tuple[TracedRequest, ...]
    unkept: int


def finished(trace: Trace, ns: Callable[[float], int]) -> FinishedTrace:
    """Return the value of a trace that is over.

    `ns` turns trio's seconds into the steady clock's nanoseconds.
    """
    return FinishedTrace(
        setting=trace.setting,
        context=trace.context,
        w3c_id=trace.w3c_id,
        w3c_span=trace.w3c_span,
        moments=_moments(trace.moments, ns),
        requests=tuple(_request(span, ns) for span in trace.spans),
        unkept=trace.unkept,
    )


def _moments(noted: Sequence[tuple[str, float]], ns: Callable[[float], int]) -> tuple[Moment, ...]:
    return tuple(Moment(name, ns(at)) for name, at in noted)


def _request(span: Span, ns: Callable[[float], int]) -> TracedRequest:
    return TracedRequest(
        id=span.id,
        parent_id=0 if span.parent is None else span.parent.id,
        relation=span.relation,
        model_name=span.model_name,
        model_version=span.model_version,
        request_id=span.request_id,
        correlation_id=span.correlation_id,
        rows=span.rows,
        error=span.error,
        parts=span.parts,
        w3c_id=span.w3c_id,
        moments=_moments(span.moments, ns),
        executions=tuple(_execution(each, ns) for each in span.executions),
        tensors=tuple(_tensors(span.tensors, ns)),
        own=tuple(span.own),
        w3c_parent=span.w3c_parent,
    )


def _execution(each: Execution, ns: Callable[[float], int]) -> TracedExecution:
    def known(at: float | None) -> int | None:
        return None if at is None else ns(at)

    return TracedExecution(
        instance=each.instance,
        pid=each.pid,
        batch=each.batch,
        requests=each.requests,
        rows=each.rows,
        outcome=each.outcome,
        reason=each.reason,
        dispatched_ns=ns(each.dispatched),
        started_ns=known(each.started),
        input_end_ns=known(each.input_end),
        output_start_ns=known(each.output_start),
        ended_ns=known(each.ended),
    )


def _tensors(kept: Iterable[KeptTensor], ns: Callable[[float], int]) -> Iterable[TracedTensor]:
    for each in kept:
        yield TracedTensor(each.activity, each.name, each.datatype, each.shape, each.data, ns(each.at))
