"""Spans of a model's own, as its server is told of them, and where it is told of nothing."""

import json
import time
from textwrap import dedent

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import Unavailable
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.python.backend import PythonBackend
from engine.worker.backends.python.tracing import LONGEST, MOST_ATTRIBUTES, MOST_SPANS, SUBJECT
from engine.worker.backends.testing import LocalRequest, model_info, run
from tests.support.calls_double import LocalCalls, answered

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
HEAD = """
import asyncio
import json
import numpy as np
import tritium
import triton_python_backend_utils as pb_utils
from tritium import FP32, Array

def passed(request):
    x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])

"""
CLASS = "class TritonPythonModel:\n"


class Placed(LocalRequest):
    """A request with a place in batch 7; `traced` says whether the server traces it."""

    def __init__(self, place=0, *, traced=True, context=(PARENT,), **more):
        super().__init__({"X": np.ones((1, 2), np.float32)}, **more)
        self.origin = (7, place)
        self.trace = list(context) if traced else None


@pytest.fixture
def told():
    return []


@pytest.fixture
def model(tmp_path, told):
    """Load a model from source; whatever it tells of spans is kept in `told`."""
    loaded = []

    def load(source, **options):
        (tmp_path / "model.py").write_text(HEAD + dedent(source))

        def echoing(call):
            yield answered(("Y", DataType.FP32, np.ones((1, 2), np.float32)))

        calls = LocalCalls({"callee": echoing}, {SUBJECT: told.append})
        ports = [TensorInfo("X", DataType.FP32, [2])], [TensorInfo("Y", DataType.FP32, [2])]
        info = model_info(
            tmp_path,
            artifact="model.py",
            inputs=ports[0],
            outputs=ports[1],
            max_batch_size=8,
            calls=calls,
            config={
                "max_batch_size": 8,
                "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
                "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
                "model_transaction_policy": {"decoupled": options.get("decoupled", False)},
            },
            **options,
        )
        backend = PythonBackend()
        backend.load(info)
        loaded.append(backend)

        def ask(*requests):
            run(backend, info, requests)
            return requests

        ask.calls = calls  # type: ignore[attr-defined]
        return ask

    yield load
    for backend in loaded:
        backend.unload()


def executing(body, *, coroutine=False):
    head = "    async def execute(self, requests):\n" if coroutine else "    def execute(self, requests):\n"
    return CLASS + head + "\n".join(f"        {line}" for line in dedent(body).strip().splitlines())


ONE = executing("""
with tritium.span("work", size=3):
    return [passed(request) for request in requests]
""")


def test_a_span_of_a_batch_is_of_each_of_its_traced_requests(model, told):
    """One that is not traced has none."""
    ask = model(ONE)
    before = time.monotonic_ns()
    asked = ask(Placed(0), Placed(1, traced=False), Placed(2))
    assert all(request.answer.code is None for request in asked)
    (message,) = told
    assert (message["batch"], message["left_out"]) == (7, 0)
    ((places, name, began, ended, number, parent, attributes, error),) = message["spans"]
    assert (places, name, parent, attributes, error) == ([0, 2], "work", 0, {"size": 3}, "")
    assert before <= began <= ended <= time.monotonic_ns()
    assert 0 < number < 2**64
    assert json.loads(json.dumps(message)) == message


def test_where_nothing_is_traced_nothing_is_told(model, told):
    """The span is there for the code, and does nothing."""
    ask = model(
        executing("""
        with tritium.span("work") as span:
            span.set("name", 1)
            requests[0].trace().report_activity("THING")
            return [passed(request) for request in requests]
        """)
    )
    (request,) = ask(Placed(traced=False))
    assert request.answer.code is None
    assert told == []


def test_spans_nest_and_exceptions_are_their_failures(model, told):
    ask = model(
        executing("""
        with tritium.span("outer"):
            try:
                with tritium.span("inner"):
                    raise ValueError("no")
            except ValueError:
                pass
            with tritium.span("sibling"):
                return [passed(request) for request in requests]
        """)
    )
    ask(Placed())
    inner, sibling, outer = told[0]["spans"]
    assert [span[1] for span in (inner, sibling, outer)] == ["inner", "sibling", "outer"]
    assert inner[5] == sibling[5] == outer[4]
    assert (inner[7], sibling[7]) == ("ValueError: no", "")


def test_what_fails_is_told_of_as_well(model, told):
    """A span that the failure of `execute` ends."""
    ask = model(executing("with tritium.span('work'):\n    raise RuntimeError('broken')"))
    (request,) = ask(Placed())
    assert request.answer.code is not None
    assert told[0]["spans"][0][7] == "RuntimeError: broken"


def test_a_server_that_does_not_answer_costs_no_request(model, told):
    ask = model(ONE)

    def fail(body):
        raise Unavailable("gone")

    ask.calls.subjects[SUBJECT] = fail
    (request,) = ask(Placed())
    assert request.answer.code is None


def test_what_is_told_is_bounded(model, told):
    """So many spans, so many attributes, so long texts; what can't be an attribute is told as text."""
    ask = model(
        executing(f"""
        for number in range({MOST_SPANS + 5}):
            with tritium.span("x" * 1000, **{{f"a{{each}}": each for each in range(50)}}):
                pass
        with tritium.span("last"):
            return [passed(request) for request in requests]
        """)
    )
    ask(Placed())
    (message,) = told
    assert len(message["spans"]) == MOST_SPANS
    assert message["left_out"] == 6
    assert len(message["spans"][0][1]) == LONGEST
    assert len(message["spans"][0][6]) == MOST_ATTRIBUTES


def test_attributes_are_texts_numbers_and_truths(model, told):
    ask = model(
        executing("""
        with tritium.span("s", n=np.int64(3), f=np.float32(0.5), b=True, big=2**70, o=[], t="\\udc80", x="é"):
            return [passed(request) for request in requests]
        """)
    )
    ask(Placed())
    attributes = told[0]["spans"][0][6]
    assert attributes == {"n": 3, "f": 0.5, "b": True, "big": str(2**70), "o": "[]", "t": "?", "x": "é"}


def test_activities_are_of_their_request(model, told):
    ask = model(
        executing("""
        requests[1].trace().report_activity("FOUND", 12)
        requests[1].trace().report_activity("NOW")
        return [passed(request) for request in requests]
        """)
    )
    ask(Placed(0), Placed(1))
    first, second = told[0]["spans"]
    assert first == [[1], "FOUND", 12]
    assert second[:2] == [[1], "NOW"]
    assert 12 < second[2] <= time.monotonic_ns()


@pytest.mark.parametrize(
    ("request_made", "context"),
    [
        (Placed(context=(PARENT, "rojo=1")), {"traceparent": PARENT, "tracestate": "rojo=1"}),
        (Placed(context=(PARENT,), parameters={"traceparent": "another"}), {"traceparent": PARENT}),
        (Placed(context=(), parameters={"traceparent": "another"}), None),  # traced, for no other program
        (Placed(traced=False, parameters={"traceparent": PARENT}), {"traceparent": PARENT}),
        (Placed(traced=False), None),
    ],
)
def test_the_context_is_the_servers_or_else_the_clients(model, request_made, context):
    """As `request.trace().get_context()` tells it."""
    ask = model(
        executing("""
        told = [request.trace().get_context() for request in requests]
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(json.dumps(told[0])))]
        """)
    )
    (request,) = ask(request_made)
    said = json.loads(request.answer.message)
    assert (None if said is None else json.loads(said)) == context


CALL = (
    "pb_utils.InferenceRequest(model_name='callee', requested_output_names=['Y'],"
    " inputs=requests[0].inputs(){})"
)


def test_a_call_is_made_in_the_span_that_is_open(model, told):
    """With the request's own context or without; outside of a span it is made in the execution."""
    plain, explicit = CALL.format(""), CALL.format(", trace=requests[0].trace()")
    ask = model(
        executing(f"""
        {plain}.exec()
        with tritium.span("asking"):
            {plain}.exec()
            {explicit}.exec()
        {explicit}.exec()
        return [passed(requests[0])]
        """)
    )
    ask(Placed())
    ((_, _, _, _, number, *_),) = told[0]["spans"]
    within = f"00-{TRACE}-{number:016x}-01"
    assert [sent.trace for sent in ask.calls.sent] == [PARENT, within, within, PARENT]


@pytest.mark.parametrize(
    "source",
    [
        """
        @tritium.model(max_batch_size=8, output="Y")
        async def each(X: FP32[Array, 2], request: tritium.Request) -> FP32[Array, 2]:
            with tritium.span(f"of {request.id}"):
                await asyncio.sleep(0)
                return X
        """,
        """
        @tritium.model(max_batch_size=8, output="Y")
        def each(X: FP32[Array, 2], request: tritium.Request) -> FP32[Array, 2]:
            with tritium.span(f"of {request.id}"):
                return X
        """,
    ],
)
def test_a_function_that_is_called_for_one_request_makes_spans_of_that(model, told, source):
    """Even where the calls for several are under way together."""
    ask = model(dedent(source))
    ask(Placed(0, id="a"), Placed(1, id="b"), Placed(2, id="c", traced=False))
    assert sorted((span[1], span[0]) for span in told[0]["spans"]) == [("of a", [0]), ("of b", [1])]


def test_a_stream_is_told_of_before_its_last_response(model, told):
    """The trace ends with that, so the server must know by then."""
    ask = model(
        """
        from collections.abc import Iterator

        @tritium.model(max_batch_size=8, output="Y")
        def stream(X: FP32[Array, 2]) -> Iterator[FP32[Array, 2]]:
            with tritium.span("streaming"):
                yield X
        """,
        decoupled=True,
    )
    seen = []

    class Watching(Placed):
        def take(self, part):
            super().take(part)
            seen.append(len(told))

    (request,) = ask(Watching())
    assert request.ended.is_set()
    assert [span[1] for span in told[0]["spans"]] == ["streaming"]
    assert seen[0] == 0
    assert len(told) == 1
