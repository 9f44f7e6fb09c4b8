"""What a worker is told of a trace, what it names in return, and the ids that follow from a request's own."""

import pytest

from actors.values.requests import InferRequest
from actors.values.tracing.spans import DIED, MOST_OWN, Execution, OwnSpan, TraceContext
from actors.wire.gathering import default_metadata
from actors.wire.propagation import execution_id, ids_in, next_execution, own_id, wait_id
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort
from tests.support.traced import Book

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


@pytest.fixture
def book():
    return Book()


def traced(book, **options):
    request = InferRequest(model_name="m", reply=NoPort(), accepted_at=0.0)
    book.trace(**options).open(request, 0.0)
    return request


def executed(request):
    request.span.dispatched(Execution(0.0, instance="m_0", pid=1, batch=1, requests=1, rows=1), request)


def test_a_worker_is_told_of_the_execution_that_begins(book):
    """Each has a name of its own, in the trace of the client."""
    request = traced(book, exported=True, context=TraceContext(TRACE, SPAN, 1, "rojo=1"))
    first = next_execution(request.span)
    executed(request)
    request.span.execution.outcome = DIED
    second = next_execution(request.span)
    assert [each[1] for each in (first, second)] == ["rojo=1"] * 2
    assert [ids_in(each[0]) for each in (first, second)] == [
        (TRACE, execution_id(request.span.w3c_id, number)) for number in (0, 1)
    ]
    assert first != second


def test_a_batch_that_is_prepared_after_it_was_handed_over_names_the_execution_that_waits_for_that(book):
    request = traced(book, exported=True)
    executed(request)
    (parent,) = next_execution(request.span)
    assert ids_in(parent)[1] == execution_id(request.span.w3c_id, 0)


def test_without_a_state_there_is_none_to_tell(book):
    request = traced(book, exported=True)
    (parent,) = next_execution(request.span)
    assert ids_in(parent)[0] == request.span.trace.w3c_id


def test_of_a_trace_that_no_other_program_sees_there_is_nothing_to_tell(book):
    """But that the request is traced."""
    assert next_execution(traced(book).span) == []


def test_the_metadata_of_a_request_has_it(book):
    spec = make_spec()
    request = traced(book, exported=True)
    assert default_metadata(request, spec)["trace"] == next_execution(request.span)
    request.span = None
    assert "trace" not in default_metadata(request, spec)


@pytest.mark.parametrize("text", ["", "nonsense", f"00-{TRACE:032x}-{SPAN:016x}-01-more", "00-" + "a" * 4000])
def test_what_names_no_span_is_none(text):
    assert ids_in(text) == (0, 0)


@pytest.mark.parametrize("span", [1, SPAN, 2**64 - 1])
def test_ids_of_one_request_differ(span):
    """And none is 0, which would mean that there is no span."""
    ids = [span]
    for number in range(1000):
        ids += [execution_id(span, number), wait_id(span, number), own_id(span, number)]
    assert len(set(ids)) == len(ids)
    assert all(0 < each < 2**64 for each in ids)


def test_the_trace_itself_has_a_name(book):
    trace = traced(book, exported=True).span.trace
    assert ids_in(trace.traceparent) == (trace.w3c_id, trace.w3c_span)


def test_a_trace_keeps_so_many_spans_of_models(book):
    """Those beyond are counted, and so are those that come too late."""
    request = traced(book)
    for _ in range(MOST_OWN + 2):
        request.span.tell(OwnSpan(0, "work", 1, 2, 3))
    assert len(request.span.own) == MOST_OWN
    assert request.span.trace.unkept == 2
    request.span.end(1.0)
    request.span.trace.sent(1.0)
    (finished,) = book.finished
    assert (len(finished.requests[0].own), finished.unkept) == (MOST_OWN, 2)
    request.span.tell(OwnSpan(0, "late", 1))
    assert request.span.trace.unkept == 3
