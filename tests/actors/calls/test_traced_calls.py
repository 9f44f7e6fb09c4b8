"""The trace of a call that a model makes: whose child it is, and what its callee gets to see of that."""

from typing import Any

import pytest

from actors.calls.call import request_of
from actors.values.requests import InferRequest
from actors.values.tracing.spans import traceparent
from actors.wire.call_fields import read_call
from actors.wire.call_frames import Letter
from actors.wire.frames import CALL
from tests.support.ports import NoPort
from tests.support.traced import Book

FOREIGN = traceparent(99, 77)


@pytest.fixture
def book():
    return Book()


def parent(book=None):
    request = InferRequest(model_name="caller", reply=NoPort(), accepted_at=0.0)
    if book is not None:
        book.trace(exported=True).open(request, 0.0)
    return request


def called(*parents, trace="", parameters=None):
    given: dict[str, Any] = {"model": "callee", "trace": trace}
    letter = Letter(CALL, 1, {**given, "parameters": parameters} if parameters else given)
    port: Any = NoPort()
    return request_of(letter, read_call(letter), port, parents)


async def test_a_call_is_a_child_of_the_span_that_its_model_names(book):
    """Of several requests, of the one whose trace that is; the callee gets its parameters as they were."""
    first, second = parent(book), parent(book)
    named = traceparent(second.span.trace.w3c_id, 77)
    call = called(first, parent(), second, trace=named, parameters={"a": 1})
    assert (call.span.parent, call.span.relation, call.span.w3c_parent) == (second.span, "call", 77)
    assert call.parameters == {"a": 1}
    assert called(second, trace=named).parameters is None


@pytest.mark.parametrize("trace", ["", FOREIGN, "nonsense"])
async def test_else_of_the_first_request_that_is_traced(book, trace):
    """A context of another trace goes on to the callee, as it does where nothing is traced."""
    first, second = parent(book), parent(book)
    call = called(parent(), first, second, trace=trace)
    assert (call.span.parent, call.span.w3c_parent) == (first.span, 0)
    assert call.parameters == ({"traceparent": trace} if trace else None)


async def test_where_nothing_is_traced_the_context_goes_along():
    call = called(parent(), trace=FOREIGN)
    assert call.span is None
    assert call.parameters == {"traceparent": FOREIGN}


async def test_a_call_of_a_trace_that_is_over_has_no_span(book):
    made = parent(book)
    made.span.end(1.0)
    made.span.trace.sent(1.0)
    assert called(made, trace=traceparent(made.span.trace.w3c_id, 77)).span is None
