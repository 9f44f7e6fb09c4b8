"""OpenTelemetry's SDK as the sink of spans. This is the one module that imports it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import export as sdk_export
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from actors.tracing.sinks import TraceSink
from actors.values.events import Event, Log
from actors.values.families import Block
from actors.values.tracing.traces import FinishedTrace
from engine.observability.spans.counts import SpanCounts, span_blocks
from engine.observability.spans.options import SpanOptions
from engine.observability.spans.planning import planned
from engine.observability.spans.records import SpanRecord, TraceRecord

TRACER: Final = "triton-server"
"""What names the spans' origin (contract, observability.md section 3.3)."""

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
GRACE: Final = 4.0
"""Seconds in which the last spans are sent when the server ends."""

_QUIET: Final = 60.0  # seconds between two lines of the log about exports that fail


class OtlpSink(TraceSink):
    """Sends spans to a collector by OTLP over HTTP, in batches, on a thread of the SDK's.

    Nothing waits for the collector but the end of the server, for `grace` seconds at most.
    """

    def __init__(self, options: SpanOptions, log: Log, *, grace: float = GRACE) -> None:
        _hear(log)
        self.counts = SpanCounts()
        self._options = options
        self._grace = grace
        self._line: _Line | None = _Line(options, self.counts)

    def write(self, traces: Sequence[FinishedTrace]) -> None:
        """See `TraceSink.write`. Never waits: spans for which there is no room are dropped and counted."""
        if self._line is None:  # what closed it was restarted
            self._line = _Line(self._options, self.counts)
        epoch = time.time_ns() - time.monotonic_ns()
        for trace in traces:
            self._line.send(planned(trace), epoch)

    def blocks(self) -> Iterator[Block]:
        """See `TraceSink.blocks`."""
        return span_blocks(self.counts)

    def close(self) -> None:
        """See `TraceSink.close`. What can't be sent in time is given up."""
        line, self._line = self._line, None
        if line is None:
            return
        last = threading.Thread(target=line.processor.shutdown, name="trace-export", daemon=True)
        last.start()
        last.join(self._grace)
        if last.is_alive():
            line.exporter.shutdown()  # type: ignore[no-untyped-call]


class _Line:
    """The SDK's parts between a trace and the collector."""

    def __init__(self, options: SpanOptions, counts: SpanCounts) -> None:
        room = _Room(options.max_queue_size)
        self.exporter = OTLPSpanExporter(endpoint=options.url or None)
        self.processor = sdk_export.BatchSpanProcessor(
            _Counted(self.exporter, room, counts),
            max_queue_size=options.max_queue_size,
            schedule_delay_millis=options.schedule_delay_ms,
            max_export_batch_size=options.max_export_batch_size,
        )
        self._ids = _GivenIds()
        provider = TracerProvider(
            # The server has sampled already.
            sampler=ALWAYS_ON,
            resource=_resource(options),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(_Bounded(self.processor, room, counts))
        self._tracer = provider.get_tracer(TRACER)

    def send(self, trace: TraceRecord, epoch: int) -> None:
        """Have the spans of `trace` sent soon. `epoch` is the time of the day at the steady clock's 0."""
        state = TraceState.from_header([trace.state]) if trace.state else None
        self._ids.trace_id = trace.trace_id
        for number, span in enumerate(trace.spans):
            context = Context()
            if span.parent_id:
                remote = trace.remote and number == 0
                parent = SpanContext(trace.trace_id, span.parent_id, remote, _SAMPLED, state)
                context = set_span_in_context(NonRecordingSpan(parent), context)
            self._send_span(span, context, epoch)

    def _send_span(self, span: SpanRecord, context: Context, epoch: int) -> None:
        self._ids.span_id = span.span_id
        made = self._tracer.start_span(
            span.name,
            context,
            kind=SpanKind.SERVER,
            attributes=span.attributes,
            start_time=span.start_ns + epoch,
        )
        for name, at in span.events:
            made.add_event(name, timestamp=at + epoch)
        if span.error:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.end_ns + epoch)


class _Room:
    """How many spans wait for the collector. Each number is written by one thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.handed = 0
        self.taken = 0

    @property
    def full(self) -> bool:
        return self.handed - self.taken >= self.most


class _GivenIds(IdGenerator):
    """Gives a span the ids that the request has been known by. They are set before each span."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Bounded(SpanProcessor):
    """Counts the spans that the batches have no room for: the SDK would drop them without a count."""

    def __init__(self, inner: SpanProcessor, room: _Room, counts: SpanCounts) -> None:
        self._inner = inner
        self._room = room
        self._counts = counts

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        if self._room.full:
            self._counts.dropped += 1
            return
        self._room.handed += 1
        self._inner.on_end(span)


class _Counted(sdk_export.SpanExporter):
    """Counts what becomes of exports."""

    def __init__(self, inner: sdk_export.SpanExporter, room: _Room, counts: SpanCounts) -> None:
        self._inner = inner
        self._room = room
        self._counts = counts

    def export(self, spans: Sequence[ReadableSpan]) -> sdk_export.SpanExportResult:
        self._room.taken += len(spans)
        result = sdk_export.SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            if result is sdk_export.SpanExportResult.SUCCESS:
                self._counts.exported += len(spans)
            else:
                self._counts.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def _resource(options: SpanOptions) -> Resource:
    """Return what describes this server to the collector.

    A setting counts before the environment (OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME), and that before the
    contract's default.
    """
    resource = Resource.create(dict(options.resource))
    name = str(resource.attributes.get(SERVICE_NAME, ""))
    if not name or name.startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: options.service_name}))
    return resource


def _hear(log: Log) -> None:
    """Have what the SDK says become lines of the log, and no more of them than are read."""
    logger = logging.getLogger("opentelemetry")
    for known in [each for each in logger.handlers if isinstance(each, _ToLog)]:
        logger.removeHandler(known)
    logger.addHandler(_ToLog(log, time.monotonic))
    logger.propagate = False


class _ToLog(logging.Handler):
    """Tells of a failure, and then of none for a while."""

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._clock = clock
        self._silent_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + _QUIET
            self._log(Event.TRACES_NOT_EXPORTED, level="warning", error=record.getMessage())
