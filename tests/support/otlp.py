"""An OpenTelemetry collector on loopback: takes OTLP over HTTP, and decodes the real messages."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.support.answering import answering

PATIENCE = 60.0
"""Seconds in which spans come, on the busiest machine."""


@dataclass(frozen=True)
class Span:
    """One span as it came; ids in hex digits."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    attributes: dict[str, object]
    events: list[tuple[str, int]]
    failed: str | None
    state: str
    scope: str
    resource: dict[str, object]

    @property
    def event_names(self) -> list[str]:
        return [name for name, _ in self.events]


SERVER = SpanMessage.SPAN_KIND_SERVER


class Collector:
    """What has come so far. `url` is what `opentelemetry,url=` takes."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.posted = 0
        self.status = 200
        self._spans: list[Span] = []
        self._news = threading.Condition()
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        """Answer no request until `let_go`."""
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def answer(self, asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        body = asked.rfile.read(int(asked.headers["Content-Length"]))
        with self._news:
            self.posted += 1
            self._news.notify_all()
        self._open.wait(PATIENCE)
        if asked.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportTraceServiceRequest.FromString(body)
        with self._news:
            self.paths.append(asked.path)
            if self.status == 200:
                self._spans += _spans_in(message)
            self._news.notify_all()
        return self.status, ExportTraceServiceResponse().SerializeToString()

    def wait_posted(self, count: int = 1) -> None:
        """Return once there were so many posts."""
        with self._news:
            assert self._news.wait_for(lambda: self.posted >= count, PATIENCE), f"posted {self.posted} times"

    def wait(self, whether: Callable[[list[Span]], bool]) -> list[Span]:
        """Return the spans that have come, once they are what is wanted."""
        with self._news:
            came = self._news.wait_for(lambda: whether(self._spans), PATIENCE)
            assert came, f"after {PATIENCE} s: {[span.name for span in self._spans]}"
            return list(self._spans)

    def trace(self, trace_id: str, *, spans: int) -> list[Span]:
        """Return the spans of one trace, once there are so many of them. More fail."""
        every = self.wait(lambda came: sum(span.trace_id == trace_id for span in came) >= spans)
        found = [span for span in every if span.trace_id == trace_id]
        assert len(found) == spans, tree_of(found)
        return found

    def spans(self) -> list[Span]:
        with self._news:
            return list(self._spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""
    collector = Collector()
    with answering(collector.answer) as url:
        collector.url = f"{url}/v1/traces"
        try:
            yield collector
        finally:
            collector.let_go()


def tree_of(spans: list[Span]) -> list[object]:
    """Return the names of spans as a tree, siblings by their start: `["root", ["child", ["leaf"]]]`."""
    known = {span.span_id for span in spans}

    def under(parent: str) -> list[object]:
        children = sorted((span for span in spans if span.parent_id == parent), key=lambda span: span.start)
        return [[child.name, *under(child.span_id)] for child in children]

    tops = {span.parent_id for span in spans if span.parent_id not in known}
    return [branch for top in sorted(tops) for branch in under(top)]


def _spans_in(message: ExportTraceServiceRequest) -> list[Span]:
    return [
        _span(span, scoped.scope.name, _attributes(group.resource.attributes))
        for group in message.resource_spans
        for scoped in group.scope_spans
        for span in scoped.spans
    ]


def _span(message: SpanMessage, scope: str, resource: dict[str, object]) -> Span:
    failed = message.status.message if message.status.code == Status.STATUS_CODE_ERROR else None
    return Span(
        name=message.name,
        trace_id=message.trace_id.hex(),
        span_id=message.span_id.hex(),
        parent_id=message.parent_span_id.hex(),
        kind=message.kind,
        start=message.start_time_unix_nano,
        end=message.end_time_unix_nano,
        attributes=_attributes(message.attributes),
        events=[(event.name, event.time_unix_nano) for event in message.events],
        failed=failed,
        state=message.trace_state,
        scope=scope,
        resource=resource,
    )


def _attributes(pairs) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
