"""A traced request on its way: the requests to models that it consists of, and what was noted of each.

A frontend asks the `Tracer` whether a request is traced. If so, the request gets a span
(`InferRequest.span`). Frontends, serving, ensembles and calls note on it what happens, and when. Steps of
ensembles and calls of models get child spans. When the frontend has sent the answer and all spans have ended,
the trace goes to its `TraceBook`, and nothing changes it any more. `actors.values.tracing.traces` makes a
value of it.

Times are seconds on trio's clock, given by the caller. A request that is not traced has no span: to note
something on it costs one truth test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from actors.values.errors import TritiumError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.values.datatypes import DataType
    from actors.values.tensors import Tensor

# Activities of frontends, in the words of Triton's trace files (contract, observability.md section 3.2).
HTTP_RECV_START: Final = "HTTP_RECV_START"
HTTP_RECV_END: Final = "HTTP_RECV_END"
HTTP_SEND_START: Final = "HTTP_SEND_START"
HTTP_SEND_END: Final = "HTTP_SEND_END"
GRPC_WAITREAD_START: Final = "GRPC_WAITREAD_START"
GRPC_WAITREAD_END: Final = "GRPC_WAITREAD_END"
GRPC_SEND_START: Final = "GRPC_SEND_START"
GRPC_SEND_END: Final = "GRPC_SEND_END"
RESPONSE_COMPLETE: Final = "INFER_RESPONSE_COMPLETE"

# Activities of requests to models.
REQUEST_START: Final = "REQUEST_START"
QUEUE_START: Final = "QUEUE_START"
REQUEST_END: Final = "REQUEST_END"
COMPUTE_START: Final = "COMPUTE_START"
COMPUTE_INPUT_END: Final = "COMPUTE_INPUT_END"
COMPUTE_OUTPUT_START: Final = "COMPUTE_OUTPUT_START"
COMPUTE_END: Final = "COMPUTE_END"
# Ours: no answer from the model was needed; a worker died under the request.
CACHE_HIT: Final = "CACHE_HIT"
WORKER_DIED: Final = "WORKER_DIED"

QUEUE_INPUT: Final = "TENSOR_QUEUE_INPUT"
BACKEND_INPUT: Final = "TENSOR_BACKEND_INPUT"
BACKEND_OUTPUT: Final = "TENSOR_BACKEND_OUTPUT"

MOST_SPANS: Final = 1024
"""Spans of one trace. A model may make any number of calls: those beyond are counted, and have no span."""

MOST_NOTES: Final = 1024
"""Moments, tensors or executions that one span keeps. What is beyond is not kept."""

MOST_TENSOR_BYTES: Final = 1024 * 1024
"""Bytes of tensors that one trace keeps. Copying them holds the loop."""

MOST_OWN: Final = 1024
"""Spans and activities of one trace that models have made themselves."""

FINISHED: Final = "finished"
DIED: Final = "died"
TAKEN_BACK: Final = "taken back"


class TraceContext:
    """The W3C context that a client sent with a request (`traceparent`, `tracestate`): valid."""

    __slots__ = ("flags", "span_id", "state", "trace_id")

    def __init__(self, trace_id: int, span_id: int, flags: int, state: str = "") -> None:
        self.trace_id = trace_id  # 128 bits
        self.span_id = span_id  # 64 bits
        self.flags = flags
        self.state = state


class Traced(Protocol):
    """As much as a span takes of a request (`actors.values.requests.InferRequest`)."""

    model_name: str
    id: str
    correlation_id: int | str
    rows: int
    inputs: Sequence[Tensor]
    extra: Sequence[Tensor]
    span: Span | None


class OwnSpan:
    """A span that a model made itself, while it executed a request for the `execution`th time, from 0.

    An activity has no end and no id: it is one moment. Times are nanoseconds of the steady clock. `parent_id`
    is another span of the model's, or 0.
    """

    __slots__ = ("attributes", "end_ns", "error", "execution", "id", "name", "parent_id", "start_ns")

    def __init__(
        self,
        execution: int,
        name: str,
        start_ns: int,
        end_ns: int = -1,
        id: int = 0,  # noqa: A002  # as `Span` has it
        parent_id: int = 0,
        attributes: Mapping[str, str | int | float | bool] | None = None,
        error: str = "",
    ) -> None:
        self.execution = execution
        self.name = name
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.id = id
        self.parent_id = parent_id
        self.attributes = attributes or {}
        self.error = error


def traceparent(trace_id: int, span_id: int) -> str:
    """Return the W3C field that names a span. It says that the span is sampled."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


class Execution:
    """One execution of a request by a worker, as a part of a batch.

    Times are None where they are not known.
    """

    __slots__ = (
        "batch",
        "dispatched",
        "ended",
        "input_end",
        "instance",
        "outcome",
        "output_start",
        "pid",
        "reason",
        "requests",
        "rows",
        "started",
    )

    def __init__(
        self, dispatched: float, *, instance: str, pid: int, batch: int, requests: int, rows: int
    ) -> None:
        self.dispatched = dispatched  # when the batch was handed to the instance
        self.instance = instance
        self.pid = pid
        self.batch = batch  # number of the batch, in the life of the worker
        self.requests = requests  # of the batch, and their rows
        self.rows = rows
        self.started: float | None = None
        self.input_end: float | None = None
        self.output_start: float | None = None
        self.ended: float | None = None
        self.outcome = ""  # FINISHED, DIED or TAKEN_BACK, once it is over
        self.reason = ""  # of a death


class KeptTensor:
    """A tensor of a traced request.

    `data` is a copy; None where it was too large, or in a client's region.
    """

    __slots__ = ("activity", "at", "data", "datatype", "name", "shape")

    def __init__(self, activity: str, tensor: Tensor, data: bytes | None, at: float) -> None:
        self.activity = activity
        self.name: str = tensor.name
        self.datatype: DataType = tensor.datatype
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.data = data
        self.at = at


class TraceBook(ABC):
    """Numbers spans, and takes traces that are over."""

    __slots__ = ()

    @abstractmethod
    def next_number(self) -> int:
        """Return the number of the next span: 1, 2 and so on, in the life of the server."""

    @abstractmethod
    def chance(self, bits: int) -> int:
        """Return a random number of `bits` bits that is not 0."""

    @abstractmethod
    def take(self, trace: Trace) -> None:
        """`trace` is over. Must neither raise nor wait."""


class Trace:
    """One request of a client, with all that is done for it. Equality is identity.

    `moments` are the frontend's. `spans` are of requests to models, a parent before its children; the first
    is the client's own request.
    """

    __slots__ = (
        "_book",
        "_left",
        "_open",
        "context",
        "exported",
        "keeps_tensors",
        "moments",
        "over",
        "own_left",
        "setting",
        "spans",
        "unkept",
        "w3c_id",
        "w3c_span",
    )

    def __init__(
        self,
        book: TraceBook,
        setting: object,
        *,
        keeps_tensors: bool = False,
        exported: bool = False,
        context: TraceContext | None = None,
    ) -> None:
        """`setting` is the trace setting that sampled it, which is tracing's own.

        `exported`: other programs get to know its spans by their W3C ids.
        """
        self.setting = setting
        self.keeps_tensors = keeps_tensors
        self.exported = exported
        self.context = context
        # What W3C calls the trace id, and the id of the span around all that the server does.
        self.w3c_id = book.chance(128) if context is None else context.trace_id
        self.w3c_span = book.chance(64)
        self.moments: list[tuple[str, float]] = []
        self.spans: list[Span] = []
        self.unkept = 0  # spans beyond `MOST_SPANS` and `MOST_OWN`
        self.own_left = MOST_OWN
        self.over = False
        self._book = book
        self._open = 1  # spans that have not ended, and the frontend
        self._left = MOST_TENSOR_BYTES

    @property
    def traceparent(self) -> str:
        """The W3C field that names the span around all that the server does."""
        return traceparent(self.w3c_id, self.w3c_span)

    def note(self, activity: str, now: float) -> None:
        """The frontend has come to `activity`."""
        if not self.over and len(self.moments) < MOST_NOTES:
            self.moments.append((activity, now))

    def open(self, request: Traced, now: float, *, parent: Span | None = None, relation: str = "") -> Span:
        """Begin the span of `request`, and put it on the request.

        `relation` is its role for its `parent`: `step` or `call`.
        """
        span = Span(self, self._book.next_number(), self._book.chance(64), request, now, parent, relation)
        self.spans.append(span)
        self._open += 1
        request.span = span
        return span

    def room_for(self, nbytes: int) -> bool:
        """Whether tensors of so many bytes more are kept. If so, they count."""
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True

    def sent(self, now: float, error: str = "") -> None:
        """The frontend is done with the request: it is answered, or its client has left.

        A request that no model has accepted ends with that, perhaps with an `error`.
        """
        if self.spans and not self.spans[0].accepted:
            self.spans[0].end(now, error)
        self.close_one()

    def let_go(self) -> None:
        """Nothing of the trace is needed any more. Its spans refer to it, and it to them."""
        self.spans.clear()

    def close_one(self) -> None:
        """The frontend, or one span, is done."""
        self._open -= 1
        if self._open == 0 and not self.over:
            self.over = True
            self._book.take(self)


class Span:
    """One request to a model. What is noted after its end is dropped."""

    __slots__ = (
        "accepted",
        "correlation_id",
        "ended",
        "error",
        "executions",
        "id",
        "model_name",
        "model_version",
        "moments",
        "own",
        "parent",
        "parts",
        "relation",
        "request_id",
        "rows",
        "tensors",
        "trace",
        "w3c_id",
        "w3c_parent",
    )

    def __init__(
        self,
        trace: Trace,
        number: int,
        w3c_id: int,
        request: Traced,
        now: float,
        parent: Span | None,
        relation: str,
    ) -> None:
        self.trace = trace
        self.id = number
        self.w3c_id = w3c_id
        self.parent = parent
        self.relation = relation
        self.model_name = request.model_name
        self.model_version = -1  # until a version has accepted it
        self.request_id = request.id
        self.correlation_id = request.correlation_id
        self.rows = 0
        self.accepted = False
        self.ended = False
        self.error = ""  # `<code>: <message>`, if it was answered with one
        self.parts = 0  # responses
        self.moments: list[tuple[str, float]] = [(REQUEST_START, now)]
        self.executions: list[Execution] = []
        self.tensors: list[KeptTensor] = []
        self.own: list[OwnSpan] = []  # of the model
        self.w3c_parent = 0  # a span that its maker has named; 0: that follows from `parent`

    def child(self, request: Traced, relation: str, now: float) -> None:
        """Begin the span of a `request` that is made on behalf of this one, if it is traced at all."""
        trace = self.trace
        if trace.over:
            return
        if len(trace.spans) >= MOST_SPANS:
            trace.unkept += 1
            return
        trace.open(request, now, parent=self, relation=relation)

    def note(self, activity: str, now: float) -> None:
        """The request has come to `activity`."""
        if not self.ended and len(self.moments) < MOST_NOTES:
            self.moments.append((activity, now))

    def accept(self, request: Traced, name: str, version: int, now: float) -> bool:
        """Version `version` of model `name` has accepted the request, which waits from `now` on.

        False where that is no news.
        """
        if self.accepted or self.ended:
            return False
        self.accepted = True
        self.model_name, self.model_version, self.rows = name, version, request.rows
        self.note(QUEUE_START, now)
        if self.trace.keeps_tensors:
            self.keep(QUEUE_INPUT, request.inputs, now)
        return True

    def hit(self, name: str, version: int, now: float) -> None:
        """Version `version` of model `name` answers from its cache."""
        if not self.ended:
            self.model_name, self.model_version = name, version
            self.note(CACHE_HIT, now)

    def dispatched(self, execution: Execution, request: Traced) -> None:
        """The request was handed to a worker."""
        if self.ended or len(self.executions) >= MOST_NOTES:
            return
        self.executions.append(execution)
        if self.trace.keeps_tensors:
            self.keep(BACKEND_INPUT, (*request.inputs, *request.extra), execution.dispatched)

    def keep(self, activity: str, tensors: Sequence[Tensor], now: float) -> None:
        """Keep copies of `tensors`, as far as there is room."""
        for tensor in tensors:
            if self.ended or len(self.tensors) >= MOST_NOTES:
                return
            # The bytes of one in a client's region are not here.
            here = len(tensor.data) == tensor.nbytes
            data = bytes(tensor.data) if here and self.trace.room_for(tensor.nbytes) else None
            self.tensors.append(KeptTensor(activity, tensor, data, now))

    def respond(self, outputs: Sequence[Tensor], now: float, *, empty: bool) -> None:
        """A response is about to be passed on. An `empty` one only ends the answer."""
        if self.ended:
            return
        self.parts += not empty
        if self.trace.keeps_tensors:
            self.keep(BACKEND_OUTPUT, outputs, now)

    def tell(self, made: OwnSpan) -> None:
        """Its model has made a span, or had an activity."""
        if self.trace.own_left <= 0 or self.trace.over:
            self.trace.unkept += 1
            return
        self.trace.own_left -= 1
        self.own.append(made)

    @property
    def execution(self) -> Execution | None:
        """Its last execution, if that is not over."""
        if self.executions and not self.executions[-1].outcome:
            return self.executions[-1]
        return None

    def refused(self, outcome: object, now: float) -> None:
        """The maker of the request is done with it: end it if no model has accepted it."""
        if not self.accepted:
            self.end(now, told(outcome))

    def end(self, now: float, error: str = "") -> None:
        """The request is answered."""
        if self.ended:
            return
        self.error = error
        self.moments.append((REQUEST_END, now))
        self.ended = True
        self.trace.close_one()


def told(outcome: object) -> str:
    """Return `<code>: <message>` of an error, and nothing for any other outcome."""
    return f"{outcome.code.rendered}: {outcome.message}" if isinstance(outcome, TritiumError) else ""


class Tracer:
    """Decides which requests are traced. This one traces none.

    Frontends ask `begin` only while it is `active`, and look for a client's context only while it
    `reads_context`. Of requests without a context so many as `skip` says are not traced: instead of asking,
    frontends count it down.
    """

    __slots__ = ("active", "reads_context", "skip")

    def __init__(self) -> None:
        self.active = False
        self.reads_context = False
        self.skip = 0

    def begin(self, request: Traced, now: float, *, parent: str = "", state: str = "") -> Span | None:
        """Give `request`, which a client has sent, a span if it is to be traced.

        `parent` and `state` are the fields `traceparent` and `tracestate` that came with it.
        """
        del request, now, parent, state
        return None

    def forget(self, request: Traced) -> None:
        """Let `begin` not have been asked about `request`, which is going to be put once more."""
        del request


NO_TRACER: Final = Tracer()
"""For a server that does not trace."""
