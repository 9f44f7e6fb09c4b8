"""A traced request from its beginning to the value of its trace."""

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import Unavailable
from actors.values.regions import Region, RegionSlice, RegionTensor
from actors.values.requests import InferRequest
from actors.values.tensors import Tensor
from actors.values.tracing import spans
from actors.values.tracing.spans import Execution
from tests.support.ports import Port
from tests.support.traced import Book, names


def request(**options):
    return InferRequest(model_name="m", reply=Port(), accepted_at=0.0, **options)


@pytest.fixture
def book():
    return Book()


def test_a_trace_is_over_when_the_answer_is_sent_and_all_spans_have_ended(book):
    trace = book.trace()
    whole, step = request(id="r"), request()
    trace.note(spans.HTTP_RECV_START, 0.0)
    span = trace.open(whole, 1.0)
    assert whole.span is span
    assert span.accept(whole, "m", 2, 2.0)
    span.child(step, "step", 3.0)
    assert step.span is not None
    step.span.accept(step, "inner", 4, 4.0)
    span.end(5.0)
    trace.sent(6.0)
    assert book.finished == [], "a step has not ended"
    step.span.end(7.0)
    (value,) = book.finished
    first, second = value.requests
    assert (first.id, first.parent_id, first.relation, first.request_id) == (1, 0, "", "r")
    assert (second.id, second.parent_id, second.relation) == (2, 1, "step")
    assert (first.model_name, first.model_version) == ("m", 2)
    assert (second.model_name, second.model_version) == ("inner", 4)
    assert first.moments == (("REQUEST_START", 1e6), ("QUEUE_START", 2e6), ("REQUEST_END", 5e6))
    assert names(value.moments) == ["HTTP_RECV_START"]


def test_a_request_that_no_model_accepted_ends_with_the_frontends_part(book):
    trace = book.trace()
    trace.open(request(), 1.0)
    trace.sent(2.0, "Unavailable: full")
    (value,) = book.finished
    assert names(value.requests[0].moments) == ["REQUEST_START", "REQUEST_END"]
    assert value.requests[0].error == "Unavailable: full"
    assert value.requests[0].model_version == -1


def test_a_refused_request_tells_why_and_an_accepted_one_waits_for_its_model(book):
    trace = book.trace()
    whole, step = request(), request()
    span = trace.open(whole, 1.0)
    span.accept(whole, "m", 1, 1.0)
    span.child(step, "call", 2.0)
    step.span.refused(Unavailable("full"), 3.0)
    span.refused(Unavailable("gone"), 3.0)
    trace.sent(4.0)
    assert book.finished == [], "the accepted request has not ended"
    span.end(5.0)
    assert [each.error for each in book.finished[0].requests] == ["", "Unavailable: full"]


def test_what_comes_after_the_end_is_dropped(book):
    trace = book.trace()
    whole = request()
    span = trace.open(whole, 1.0)
    span.accept(whole, "m", 1, 1.0)
    span.end(2.0)
    span.end(3.0, "again")
    span.note("LATE", 4.0)
    span.respond([], 4.0, empty=False)
    assert not span.accept(whole, "m", 1, 4.0)
    trace.sent(5.0)
    trace.note("LATE", 6.0)
    late = request()
    span.child(late, "call", 6.0)
    assert late.span is None
    trace.sent(7.0)
    assert len(book.finished) == 1
    assert names(book.finished[0].requests[0].moments) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_a_trace_has_a_bounded_number_of_spans(book, monkeypatch):
    monkeypatch.setattr(spans, "MOST_SPANS", 2)
    trace = book.trace()
    span = trace.open(request(), 0.0)
    calls = [request() for _ in range(4)]
    for call in calls:
        span.child(call, "call", 1.0)
    assert [call.span is not None for call in calls] == [True, False, False, False]
    calls[0].span.end(2.0)
    trace.sent(3.0)
    assert book.finished[0].unkept == 3


def test_a_span_keeps_a_bounded_number_of_moments_and_executions(book, monkeypatch):
    monkeypatch.setattr(spans, "MOST_NOTES", 2)
    trace = book.trace(keeps_tensors=True)
    whole = request(inputs=[Tensor("X", DataType.INT8, (1,), b"1") for _ in range(3)])
    span = trace.open(whole, 0.0)
    for _ in range(3):
        span.note("MORE", 1.0)
        trace.note("MORE", 1.0)
        span.dispatched(Execution(1.0, instance="i", pid=1, batch=1, requests=1, rows=1), whole)
    assert (len(span.moments), len(trace.moments), len(span.executions), len(span.tensors)) == (2, 2, 2, 2)


def test_tensors_are_copied_as_they_pass(book):
    trace = book.trace(keeps_tensors=True)
    data = bytearray(b"\x01\x02")
    whole = request(inputs=[Tensor("X", DataType.UINT8, (2,), memoryview(data))])
    whole.extra = [Tensor("START", DataType.BOOL, (1,), b"\x01")]
    span = trace.open(whole, 0.0)
    span.accept(whole, "m", 1, 1.0)
    span.dispatched(Execution(2.0, instance="i", pid=1, batch=1, requests=1, rows=1), whole)
    data[:] = b"\x09\x09"
    span.respond([Tensor.from_numpy("Y", np.array([7], np.uint8))], 3.0, empty=False)
    span.end(4.0)
    trace.sent(4.0)
    assert [(each.activity, each.name, each.data) for each in book.finished[0].requests[0].tensors] == [
        (spans.QUEUE_INPUT, "X", b"\x01\x02"),
        (spans.BACKEND_INPUT, "X", b"\x01\x02"),
        (spans.BACKEND_INPUT, "START", b"\x01"),
        (spans.BACKEND_OUTPUT, "Y", b"\x07"),
    ]
    assert book.finished[0].requests[0].parts == 1


def test_tensors_that_are_too_long_or_not_here_have_no_data(book, monkeypatch):
    monkeypatch.setattr(spans, "MOST_TENSOR_BYTES", 3)
    trace = book.trace(keeps_tensors=True)
    in_region = RegionTensor("R", DataType.UINT8, (2,), RegionSlice(Region("r", "/r", 0, 8, 3), 0, 2))
    inputs = [
        Tensor("A", DataType.UINT8, (2,), b"12"),
        Tensor("B", DataType.UINT8, (2,), b"34"),
        in_region,
        Tensor("C", DataType.UINT8, (1,), b"5"),
    ]
    whole = request(inputs=inputs)
    span = trace.open(whole, 0.0)
    span.keep(spans.QUEUE_INPUT, inputs, 1.0)
    assert [each.data for each in span.tensors] == [b"12", None, None, b"5"]


def test_without_the_level_no_tensor_is_kept(book):
    trace = book.trace()
    whole = request(inputs=[Tensor("X", DataType.UINT8, (1,), b"1")])
    span = trace.open(whole, 0.0)
    span.accept(whole, "m", 1, 1.0)
    span.dispatched(Execution(2.0, instance="i", pid=1, batch=1, requests=1, rows=1), whole)
    span.respond(whole.inputs, 3.0, empty=False)
    assert span.tensors == []


def test_an_answer_from_the_cache_tells_the_version(book):
    trace = book.trace()
    span = trace.open(request(), 0.0)
    span.hit("m", 5, 1.0)
    span.end(2.0)
    span.hit("m", 6, 3.0)
    trace.sent(3.0)
    (value,) = book.finished
    assert value.requests[0].model_version == 5
    assert "CACHE_HIT" in names(value.requests[0].moments)


def test_an_empty_last_response_is_no_part(book):
    span = book.trace().open(request(), 0.0)
    span.respond([], 1.0, empty=True)
    span.respond([], 1.0, empty=False)
    assert span.parts == 1


def test_the_execution_that_gave_the_answer_is_the_last_that_finished(book):
    trace = book.trace()
    whole = request()
    span = trace.open(whole, 0.0)
    assert span.execution is None
    for outcome in (spans.DIED, spans.FINISHED, spans.TAKEN_BACK):
        execution = Execution(1.0, instance=outcome, pid=1, batch=1, requests=1, rows=1)
        span.dispatched(execution, whole)
        assert span.execution is execution
        execution.outcome = outcome
    assert span.execution is None
    span.end(2.0)
    trace.sent(2.0)
    assert book.finished[0].requests[0].compute.instance == spans.FINISHED


def test_a_client_context_gives_the_trace_its_id(book):
    trace = book.trace(context=spans.TraceContext(5, 6, 1))
    assert trace.w3c_id == 5
    assert 0 < trace.w3c_span < 2**64
    assert 0 < book.trace().w3c_id < 2**128


def test_what_a_trace_consists_of_can_be_let_go_of(book):
    trace = book.trace()
    trace.open(request(), 0.0)
    trace.let_go()
    assert trace.spans == []


def test_a_tracer_that_traces_nothing_is_never_active():
    tracer = spans.NO_TRACER
    assert (tracer.active, tracer.reads_context) == (False, False)
    asked = request()
    assert tracer.begin(asked, 0.0) is None
    tracer.forget(asked)
    assert asked.span is None
