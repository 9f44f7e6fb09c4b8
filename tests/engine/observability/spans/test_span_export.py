"""Spans on their way to a collector: a real one in this process, which decodes the real messages."""

import threading
import time

import pytest

from actors.values.datatypes import DataType
from actors.values.events import Event
from actors.values.requests import InferRequest
from actors.values.tensors import Tensor
from actors.values.tracing.spans import (
    DIED,
    FINISHED,
    HTTP_RECV_END,
    HTTP_RECV_START,
    HTTP_SEND_END,
    HTTP_SEND_START,
    TAKEN_BACK,
    Execution,
    OwnSpan,
    Trace,
    TraceBook,
    TraceContext,
)
from actors.values.tracing.traces import finished
from engine.observability.spans.counts import span_blocks
from engine.observability.spans.options import read_options
from engine.observability.spans.sdk import OtlpSink
from tests.support.logged import Logged
from tests.support.otlp import PATIENCE, SERVER, collecting, tree_of
from tests.support.ports import NoPort

EPOCH = 1_000_000.0
"""Seconds of trio's clock at which the steady clock stood at `BEGAN`."""
BEGAN = time.monotonic_ns()


def ns(at):
    return BEGAN + round((at - EPOCH) * 1e9)


class Book(TraceBook):
    def __init__(self):
        self.over = []
        self._last = 0
        self._ids = 0

    def next_number(self):
        self._last += 1
        return self._last

    def chance(self, bits):
        self._ids += 1
        return self._ids * 0x0123456789ABCDEF % 2**bits

    def take(self, trace):
        self.over.append(finished(trace, ns))


def request(model, **more):
    data = Tensor("INPUT", DataType.FP32, [1], bytes(4))
    return InferRequest(model_name=model, reply=NoPort(), accepted_at=EPOCH, inputs=[data], **more)


def executed(span, asked, at, *, until, outcome=FINISHED, reason=""):
    execution = Execution(at, instance="m_0", pid=7, batch=3, requests=2, rows=5)
    span.dispatched(execution, asked)
    execution.started, execution.input_end = at + 0.001, at + 0.002
    if outcome == FINISHED:
        execution.output_start = until - 0.001
    execution.ended, execution.outcome, execution.reason = until, outcome, reason


def begun(book, model="add", context=None, **more):
    trace = Trace(book, "setting", context=context)
    trace.note(HTTP_RECV_START, EPOCH)
    trace.note(HTTP_RECV_END, EPOCH + 0.01)
    asked = request(model, **more)
    span = trace.open(asked, EPOCH + 0.02)
    span.accept(asked, model, 1, EPOCH + 0.03)
    return trace, span, asked


def ended(trace, span, error=""):
    span.end(EPOCH + 1.0, error)
    trace.note(HTTP_SEND_START, EPOCH + 1.1)
    trace.note(HTTP_SEND_END, EPOCH + 1.2)
    trace.sent(EPOCH + 1.2)


def plain(book=None, context=None):
    book = book or Book()
    trace, span, asked = begun(book, context=context, id="r7")
    executed(span, asked, EPOCH + 0.1, until=EPOCH + 0.9)
    ended(trace, span)
    return book.over[-1]


@pytest.fixture
def collector():
    with collecting() as collector:
        yield collector


def opened(url, *settings, log=None, grace=60.0):
    options = read_options([("url", url), ("bsp_schedule_delay", "5"), *settings], {})
    sink = OtlpSink(options, Logged() if log is None else log, grace=grace)
    return sink, sink.counts


def worker_of(sink):
    """The SDK's thread, which may outlive `close`."""
    return sink._line.processor._batch_processor._worker_thread


def sent(collector, trace):
    """Send one trace; return its spans as they come."""
    sink, _ = opened(collector.url)
    sink.write([trace])
    sink.close()
    return sorted(collector.spans(), key=lambda span: (span.start, -span.end))


def told(counts):
    (block,) = span_blocks(counts)
    return {each.labels.named["outcome"]: each.value for each in block.series}


def test_a_plain_request_is_the_contracts_tree(collector):
    """Root, request and computation, with the wait for a worker, as contract section 3.3 has them."""
    spans = sent(collector, plain())
    assert tree_of(spans) == [["InferRequest", ["add", ["queue"], ["compute"]]]]
    root, model, _, compute = spans
    assert {span.kind for span in spans} == {SERVER}
    assert {span.scope for span in spans} == {"triton-server"}
    assert len({span.span_id for span in spans}) == 4
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert root.parent_id == ""
    assert root.event_names == ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]
    assert model.event_names == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert model.attributes == {
        "triton.model_name": "add",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r7",
        "tritium.rows": 1,
    }
    assert compute.event_names == [
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    assert compute.attributes["tritium.batch_requests"] == 2
    assert compute.attributes["tritium.instance"] == "m_0"
    times = [((span.start - root.start) // 1_000_000, (span.end - root.start) // 1_000_000) for span in spans]
    assert times == [(0, 1200), (20, 1000), (30, 100), (101, 900)]
    # The steady clock's time, as a time of the day.
    assert abs(root.start - (time.time_ns() - time.monotonic_ns() + BEGAN)) < 60e9
    assert root.resource["service.name"] == "triton-inference-server"
    assert [span.failed for span in spans] == [None] * 4
    assert collector.paths == ["/v1/traces"]


def test_a_clients_span_is_the_parent(collector):
    """And what its vendors keep with it goes on."""
    spans = sent(collector, plain(context=TraceContext(0xABC, 0xDEF, 1, "rojo=1,congo=2")))
    assert spans[0].parent_id == f"{0xDEF:016x}"
    assert {span.trace_id for span in spans} == {f"{0xABC:032x}"}
    assert {span.state for span in spans} == {"rojo=1,congo=2"}


def test_each_try_is_a_span_and_a_death_is_its_error(collector):
    """A retried request waited twice, and died once."""
    book = Book()
    trace, span, asked = begun(book)
    executed(span, asked, EPOCH + 0.1, until=EPOCH + 0.3, outcome=DIED, reason="signal 11")
    executed(span, asked, EPOCH + 0.5, until=EPOCH + 0.9)
    ended(trace, span)
    spans = sent(collector, book.over[0])
    assert tree_of(spans) == [["InferRequest", ["add", ["queue"], ["compute"], ["queue"], ["compute"]]]]
    first, second = [span for span in spans if span.name == "compute"]
    assert (first.failed, second.failed) == ("signal 11", None)
    assert first.event_names == ["COMPUTE_START", "COMPUTE_INPUT_END", "WORKER_DIED"]
    assert (first.attributes["tritium.outcome"], second.attributes["tritium.attempt"]) == ("died", 2)
    (model,) = [span for span in spans if span.name == "add"]
    assert model.attributes["tritium.attempts"] == 2
    assert model.failed is None


def test_what_was_taken_back_was_one_long_wait(collector):
    """A batch behind another, whose worker died before it began with it."""
    book = Book()
    trace, span, asked = begun(book)
    executed(span, asked, EPOCH + 0.1, until=EPOCH + 0.3, outcome=TAKEN_BACK)
    executed(span, asked, EPOCH + 0.5, until=EPOCH + 0.9)
    ended(trace, span)
    spans = sent(collector, book.over[0])
    assert tree_of(spans) == [["InferRequest", ["add", ["queue"], ["compute"]]]]
    root, model, queue, compute = spans
    assert (queue.end - root.start) // 1_000_000 == 500
    assert "tritium.attempts" not in model.attributes
    assert "tritium.attempt" not in compute.attributes


def test_what_a_model_tells_stands_under_its_execution(collector):
    """Its spans with their own parents; activities as spans if they start and end, else as events."""
    book = Book()
    trace, span, asked = begun(book)
    executed(span, asked, EPOCH + 0.1, until=EPOCH + 0.9)
    span.tell(OwnSpan(0, "inner", ns(EPOCH + 0.3), ns(EPOCH + 0.4), 77, 78, {"size": 3}, "ValueError: no"))
    span.tell(OwnSpan(0, "outer", ns(EPOCH + 0.2), ns(EPOCH + 0.5), 78))
    for name, seconds in (
        ("LOOK_UP_START", 0.6),
        ("FOUND", 0.61),
        ("LOOK_UP_END", 0.7),
        ("LOST_END", 0.71),
        ("OPEN_START", 0.72),
    ):
        span.tell(OwnSpan(0, name, ns(EPOCH + seconds)))
    ended(trace, span)
    spans = sent(collector, book.over[0])
    assert tree_of(spans) == [
        ["InferRequest", ["add", ["queue"], ["compute", ["outer", ["inner"]], ["LOOK_UP"]]]]
    ]
    (compute,) = [span for span in spans if span.name == "compute"]
    assert compute.event_names == [
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "FOUND",
        "LOST_END",
        "OPEN_START",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    (inner,) = [span for span in spans if span.name == "inner"]
    assert (inner.attributes, inner.failed) == ({"size": 3}, "ValueError: no")


def test_an_execution_lasts_as_long_as_what_is_below_it(collector):
    """Its begin is an estimate, and its model's spans are not. None began before it was dispatched."""
    book = Book()
    trace, span, asked = begun(book)
    executed(span, asked, EPOCH + 0.1, until=EPOCH + 0.5)
    span.tell(OwnSpan(0, "long", 5, ns(EPOCH + 0.7), 77))
    ended(trace, span)
    root, _, queue, compute, long = sent(collector, book.over[0])
    assert long.start == compute.start == queue.end
    assert (compute.end - root.start) // 1_000_000 == 700


def test_a_call_is_a_child_of_what_its_maker_has_named(collector):
    """Such as a span of the model's own."""
    book = Book()
    trace, span, asked = begun(book, "caller")
    executed(span, asked, EPOCH + 0.1, until=EPOCH + 0.9)
    span.tell(OwnSpan(0, "asking", ns(EPOCH + 0.2), ns(EPOCH + 0.8), 77))
    call = request("callee")
    span.child(call, "call", EPOCH + 0.3)
    call.span.w3c_parent = 77
    call.span.end(EPOCH + 0.6, "NOT_FOUND: no")
    early = request("early")
    span.child(early, "call", EPOCH + 0.05)
    early.span.end(EPOCH + 0.06, "NOT_FOUND: no")
    ended(trace, span)
    assert tree_of(sent(collector, book.over[0])) == [
        ["InferRequest", ["caller", ["queue"], ["early"], ["compute", ["asking", ["callee"]]]]]
    ]


def test_what_a_trace_has_left_out_is_told(collector):
    """And an answer from a cache has no wait."""
    book = Book()
    trace = Trace(book, "setting")
    trace.note(HTTP_RECV_START, EPOCH)
    asked = request("add", correlation_id=2**63)
    span = trace.open(asked, EPOCH + 0.02)
    span.hit("add", 1, EPOCH + 0.03)
    span.parts = 2
    trace.unkept = 3
    ended(trace, span)
    spans = sent(collector, book.over[0])
    assert tree_of(spans) == [["InferRequest", ["add"]]]
    assert spans[0].attributes == {"tritium.spans_left_out": 3}
    assert spans[1].attributes["tritium.correlation_id"] == str(2**63)
    assert spans[1].attributes["tritium.responses"] == 2
    assert "CACHE_HIT" in spans[1].event_names


def test_steps_stand_under_their_ensemble_and_calls_under_the_execution_that_made_them(collector):
    book = Book()
    trace, span, _ = begun(book, "ensemble")
    step = request("caller")
    span.child(step, "step", EPOCH + 0.1)
    step.span.accept(step, "caller", 4, EPOCH + 0.11)
    executed(step.span, step, EPOCH + 0.2, until=EPOCH + 0.8)
    call = request("callee")
    step.span.child(call, "call", EPOCH + 0.3)
    call.span.accept(call, "callee", 1, EPOCH + 0.31)
    executed(call.span, call, EPOCH + 0.4, until=EPOCH + 0.5)
    call.span.end(EPOCH + 0.6)
    step.span.end(EPOCH + 0.9)
    ended(trace, span)
    assert tree_of(sent(collector, book.over[0])) == [
        [
            "InferRequest",
            ["ensemble", ["caller", ["queue"], ["compute", ["callee", ["queue"], ["compute"]]]]],
        ]
    ]


def test_a_request_that_no_model_took_is_a_failure(collector):
    book = Book()
    trace = Trace(book, "setting")
    trace.note(HTTP_RECV_START, EPOCH)
    span = trace.open(request("add"), EPOCH + 0.02)
    ended(trace, span, "INVALID_ARG: no such input")
    spans = sent(collector, book.over[0])
    assert tree_of(spans) == [["InferRequest", ["add"]]]
    assert [span.failed for span in spans] == ["INVALID_ARG: no such input"] * 2
    assert "tritium.rows" not in spans[1].attributes


def test_a_wait_in_vain_is_told(collector):
    """A request that no worker took ends with an error, and its wait with it."""
    book = Book()
    trace, span, _ = begun(book)
    ended(trace, span, "UNAVAILABLE: Request timeout expired")
    spans = sent(collector, book.over[0])
    assert tree_of(spans) == [["InferRequest", ["add", ["queue"]]]]
    assert [span.failed for span in spans] == ["UNAVAILABLE: Request timeout expired"] * 2 + [None]


def test_the_environment_says_where_to_without_a_setting(collector, monkeypatch):
    """What names a collector for every other program names it for this one; so with the service."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.removesuffix("/v1/traces"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")  # the server samples, by its own settings
    sink, _ = opened("", ("resource", "site=here"))
    sink.write([plain()])
    sink.close()
    assert {(span.resource["service.name"], span.resource["site"]) for span in collector.spans()} == {
        ("mine", "here")
    }


def test_what_was_finished_is_sent_before_the_end(collector):
    """A stop does not wait for the next batch's time."""
    sink, counts = opened(collector.url, ("bsp_schedule_delay", "1000000"))
    sink.write([plain(), plain()])
    sink.close()
    assert len(collector.spans()) == 8
    assert told(counts) == {"exported": 8, "failed": 0, "dropped": 0}


def test_a_slow_collector_costs_spans_that_are_counted(collector):
    """The queue is bounded, the writer goes on, and the end is not put off."""
    collector.hold()
    sink, counts = opened(
        collector.url, ("bsp_max_queue_size", "4"), ("bsp_max_export_batch_size", "4"), grace=0.05
    )
    sink.write([plain()])
    collector.wait_posted()  # and is not answered
    sink.write([plain() for _ in range(3)])
    assert told(counts) == {"exported": 0, "failed": 0, "dropped": 8}
    worker = worker_of(sink)
    sink.close()
    collector.let_go()
    worker.join()


class HeardLog(Logged):
    """Says when the first event came."""

    def __init__(self):
        super().__init__()
        self.heard = threading.Event()

    def __call__(self, event, **keys):
        super().__call__(event, **keys)
        self.heard.set()


def test_a_dead_collector_costs_spans_that_are_counted():
    """No one listens: it is said once, the spans count as failed, and the stop waits for no more tries."""
    log = HeardLog()
    sink, counts = opened("127.0.0.1:9/v1/traces", log=log, grace=0.05)
    sink.write([plain()])
    assert log.heard.wait(PATIENCE)
    worker = worker_of(sink)
    sink.close()
    worker.join()
    assert told(counts) == {"exported": 0, "failed": 4, "dropped": 0}
    (said,) = log.of(Event.TRACES_NOT_EXPORTED)
    assert "refused" in said["error"]


def test_a_collector_that_refuses_is_a_failure(collector):
    """A 400 is not tried again."""
    collector.status = 400
    log = Logged()
    sink, counts = opened(collector.url, log=log)
    sink.write([plain()])
    sink.close()
    assert told(counts) == {"exported": 0, "failed": 4, "dropped": 0}
    assert collector.posted == 1
    assert log.of(Event.TRACES_NOT_EXPORTED)


def test_it_is_opened_again_where_its_writer_was_restarted(collector):
    """A restart of what calls it closes it, and goes on."""
    sink, counts = opened(collector.url)
    sink.write([plain()])
    sink.close()
    sink.close()
    sink.write([plain()])
    sink.close()
    assert told(counts) == {"exported": 8, "failed": 0, "dropped": 0}
