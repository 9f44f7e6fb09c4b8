"""Traces of a real server, as an OpenTelemetry collector gets them: the exact trees, from both protocols."""

import http.client
import json
import re
import secrets
import socket
import threading
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from queue import Queue
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.support.flavours import Addresses, process, write_onnx_model
from tests.support.otlp import PATIENCE, SERVER, Collector, Span, collecting, tree_of
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's, while it is imported
    import tritonclient.grpc as grpc_client

pytestmark = [pytest.mark.system, pytest.mark.slow]

PORTS = """
backend: "python"
max_batch_size: {rows}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

# Calls `twice` as often as X says: within a span of its own, and with the context of its request.
CALLER = """
import json
import numpy as np
import tritium
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            calls = [
                pb_utils.InferenceRequest(model_name="twice", requested_output_names=["Y"], inputs=[x]),
                pb_utils.InferenceRequest(
                    model_name="twice", requested_output_names=["Y"], inputs=[x], trace=request.trace()
                ),
            ]
            with tritium.span("asking", calls=2):
                calls[0].exec()
            answer = calls[1].exec()
            y = answer.output_tensors()[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y.as_numpy())]))
        return responses
"""

# Says in its answer what context it was given, and tells of activities as Triton's backends do.
CONTEXT = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            trace = request.trace()
            trace.report_activity("LOOK_UP_START")
            trace.report_activity("CACHE_MISS")
            trace.report_activity("LOOK_UP_END")
            text = json.dumps(trace.get_context())
            told = pb_utils.Tensor("TOLD", np.array([text.encode()], object))
            responses.append(pb_utils.InferenceResponse([told]))
        return responses
"""
CONTEXT_CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

COUNTDOWN = """
import numpy as np
import tritium
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            with tritium.span("counting"):
                for number in range(int(values.ravel()[0]), 0, -1):
                    y = pb_utils.Tensor("Y", np.full_like(values, number))
                    sender.send(pb_utils.InferenceResponse([y]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# Dies the first time that it is asked.
MORTAL = """
import os, pathlib
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.died = pathlib.Path(args["model_repository"]) / "died"

    def execute(self, requests):
        if not self.died.exists():
            self.died.touch()
            os._exit(3)
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())])]
"""

TOTAL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.total = 0
    def execute(self, requests):
        responses = []
        for request in requests:
            self.total += pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.total)]))
        return responses
"""

# Written for Tritium: a function whose spans say what they are, and fail.
AUTHORED = """
import tritium
from tritium import FP32, Array

@tritium.model(max_batch_size=4, output="Y")
def authored(X: FP32[Array, 1]) -> FP32[Array, 1]:
    with tritium.span("outer", size=1, what="text") as span:
        span.set("late", True)
        try:
            with tritium.span("inner"):
                raise ValueError("on purpose")
        except ValueError:
            pass
    return X
"""

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "twice" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } },
  { model_name: "caller" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
] }
"""

ONCE = [["queue"], ["compute"]]
TWICE = ["twice", *ONCE]


def write_twice(folder: Path) -> None:
    write_onnx_model(
        folder,
        "twice",
        nodes=[("Add", ["X", "X"], "Y")],
        inputs=[("X", TensorProto.FLOAT, [1])],
        outputs=[("Y", TensorProto.FLOAT, [1])],
    )


def write_models(folder: Path) -> None:
    write_twice(folder)
    sequences = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    decoupled = "model_transaction_policy { decoupled: true }"
    retry = 'parameters { key: "tritium.retry" value { string_value: "always" } }'
    for name, code, rows, more in (
        ("caller", CALLER, 8, ""),
        ("countdown", COUNTDOWN, 0, decoupled),
        ("mortal", MORTAL, 8, retry),
        ("total", TOTAL, 8, sequences),
    ):
        write(folder, name, code, PORTS.format(rows=rows) + more)
    write(folder, "context", CONTEXT, CONTEXT_CONFIG)
    write(folder, "authored", AUTHORED, 'backend: "python"')
    write(folder, "pipeline", None, ENSEMBLE)


def write(folder: Path, name: str, code: str | None, config: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(dedent(config))
    if code is not None:
        (folder / name / "1" / "model.py").write_text(dedent(code))


def until(condition: Callable[[], bool]) -> None:
    """Return once it holds, which another process brings about."""
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(PATIENCE / 1000)
    raise AssertionError("it never held")


@dataclass
class Answer:
    """An answer over HTTP."""

    status: int
    headers: Message
    content: bytes


@dataclass
class Traced:
    """A server and its collector."""

    collector: Collector
    addresses: Addresses
    said: Path

    def post(self, model: str, *, x: float = 1.0, shape=(1, 1), headers=None, **more):
        """Ask over HTTP; return the status, the headers and the document."""
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": list(shape), "data": [x]}], **more}
        answer = self.send(model, "infer", body, headers)
        return answer.status, answer.headers, json.loads(answer.content)

    def send(self, model: str, endpoint: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.addresses.http, timeout=PATIENCE)
        try:
            connection.request("POST", f"/v2/models/{model}/{endpoint}", json.dumps(body), headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def grpc(self, model: str, *, x: float = 1.0, shape=(1, 1), headers=None, **more):
        with grpc_client.InferenceServerClient(self.addresses.grpc) as client:
            asked = inputs(grpc_client, X=np.full(shape, x, np.float32))
            return client.infer(model, asked, headers=headers, **more)

    def of_request(self, request_id: str, *, spans: int) -> list[Span]:
        """Return the spans of the trace of which one request has this id."""

        def found(every: list[Span]) -> Span | None:
            named = (span for span in every if span.attributes.get("triton.request_id") == request_id)
            return next(named, None)

        every = self.collector.wait(lambda every: found(every) is not None)
        span = found(every)
        assert span is not None
        return self.collector.trace(span.trace_id, spans=spans)

    def log_of(self, request_id: str) -> str:
        """Return the log's line about a request, once it is written."""

        def lines() -> list[str]:
            every = self.said.read_text().splitlines()
            return [each for each in every if "request_completed" in each and request_id in each]

        until(lambda: len(lines()) == 1)
        return lines()[0]


@contextmanager
def serving(folder: Path, *flags: str, rate: int = 1, **environ: str) -> Iterator[Traced]:
    """Run a server over the models in `folder`, and its collector."""
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        said = folder.parent / f"{folder.name}.txt"
        command = [
            "engine",
            "serve",
            "--trace-config=mode=opentelemetry",
            "--trace-config=level=TIMESTAMPS",
            f"--trace-config=rate={rate}",
            f"--trace-config=opentelemetry,url={collector.url}",
            "--trace-config=opentelemetry,bsp_schedule_delay=20",
            *flags,
        ]
        addresses = stack.enter_context(process(*command, said=said, **environ)(folder))
        yield Traced(collector, addresses, said)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    resource = "--trace-config=opentelemetry,resource=test.key=value"
    with serving(folder, resource, "--server-timing=true", "--log-requests=true") as opened:
        yield opened


def parent() -> tuple[str, str, dict[str, str]]:
    """Return a client's context: trace id, span id, headers."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, {"traceparent": f"00-{trace}-{span}-01", "tracestate": "rojo=1"}


def named(spans: list[Span], name: str) -> list[Span]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start)


def within(spans: list[Span]) -> bool:
    """Whether each span lies within its parent, as far as that is here."""
    known = {span.span_id: span for span in spans}
    return all(
        known[span.parent_id].start <= span.start <= span.end <= known[span.parent_id].end
        for span in spans
        if span.parent_id in known
    )


def test_a_plain_request_over_http(traced):
    assert traced.post("twice", id="plain-http")[0] == 200
    spans = traced.of_request("plain-http", spans=4)
    assert tree_of(spans) == [["InferRequest", TWICE]]
    assert within(spans)
    (root,) = named(spans, "InferRequest")
    assert root.parent_id == ""
    assert root.event_names == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert {span.kind for span in spans} == {SERVER}
    assert root.resource["service.name"] == "triton-inference-server"
    assert root.resource["test.key"] == "value"
    assert root.scope == "triton-server"
    (model,) = named(spans, "twice")
    assert model.event_names == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert model.attributes["triton.model_name"] == "twice"
    assert model.attributes["triton.model_version"] == 1
    assert model.attributes["triton.trace_parent_id"] == 0
    (compute,) = named(spans, "compute")
    assert compute.event_names == [
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    assert compute.attributes["tritium.instance"] == "twice_0_0"


def test_a_plain_request_over_grpc(traced):
    traced.grpc("twice", request_id="plain-grpc")
    spans = traced.of_request("plain-grpc", spans=4)
    assert tree_of(spans) == [["InferRequest", TWICE]]
    assert within(spans)
    (root,) = named(spans, "InferRequest")
    assert root.event_names == [
        "GRPC_WAITREAD_START",
        "GRPC_WAITREAD_END",
        "INFER_RESPONSE_COMPLETE",
        "GRPC_SEND_START",
        "GRPC_SEND_END",
    ]


@pytest.mark.parametrize("ask", [Traced.post, Traced.grpc])
def test_a_clients_span_is_the_parent(traced, ask):
    trace, span, headers = parent()
    ask(traced, "twice", headers=headers)
    spans = traced.collector.trace(trace, spans=4)
    assert tree_of(spans) == [["InferRequest", TWICE]]
    (root,) = named(spans, "InferRequest")
    assert root.parent_id == span
    assert {span.state for span in spans} == {"rojo=1"}


@pytest.mark.parametrize("ask", [Traced.post, Traced.grpc])
@pytest.mark.parametrize("bad", ["nonsense", f"00-{'0' * 32}-{'1' * 16}-01", "00-" + "a" * 4000])
def test_a_context_that_is_none_is_ignored(traced, ask, bad):
    """The request is served, and its trace is one of the server's own."""
    name = secrets.token_hex(4)
    ask(
        traced,
        "twice",
        headers={"traceparent": bad},
        **({"id": name} if ask is Traced.post else {"request_id": name}),
    )
    spans = traced.of_request(name, spans=4)
    assert named(spans, "InferRequest")[0].parent_id == ""


@pytest.mark.parametrize("ask", [Traced.post, Traced.grpc])
def test_steps_and_calls_are_children(traced, ask):
    """The second step of an ensemble calls a model twice: in its own span, and with its request's context."""
    trace, _, headers = parent()
    ask(traced, "pipeline", headers=headers)
    spans = traced.collector.trace(trace, spans=15)
    assert tree_of(spans) == [
        [
            "InferRequest",
            ["pipeline", TWICE, ["caller", ["queue"], ["compute", ["asking", TWICE], TWICE]]],
        ]
    ]
    assert within(spans)
    (asking,) = named(spans, "asking")
    assert asking.attributes == {"calls": 2}
    relations = [span.attributes.get("tritium.relation") for span in named(spans, "twice")]
    assert relations == ["step", "call", "call"]
    numbers = {
        span.attributes["triton.trace_id"]: span for span in spans if "triton.trace_id" in span.attributes
    }
    (caller,) = named(spans, "caller")
    above = numbers[caller.attributes["triton.trace_parent_id"]]
    assert above.name == "pipeline"


def test_the_context_reaches_the_model_and_its_activities_come_back(traced):
    """What the model passes on to other programs is the span of its execution."""
    trace, _, headers = parent()
    _, _, document = traced.post("context", shape=(1,), headers=headers)
    context = json.loads(json.loads(document["outputs"][0]["data"][0]))
    spans = traced.collector.trace(trace, spans=5)
    assert tree_of(spans) == [["InferRequest", ["context", ["queue"], ["compute", ["LOOK_UP"]]]]]
    (compute,) = named(spans, "compute")
    assert context == {"traceparent": f"00-{trace}-{compute.span_id}-01", "tracestate": "rojo=1"}
    assert "CACHE_MISS" in compute.event_names
    (look_up,) = named(spans, "LOOK_UP")
    assert look_up.event_names == ["LOOK_UP_START", "LOOK_UP_END"]


def test_a_functions_own_spans(traced):
    """They are nested, have attributes, and fail with what was raised in them."""
    trace, _, headers = parent()
    assert traced.post("authored", headers=headers)[0] == 200
    spans = traced.collector.trace(trace, spans=6)
    assert tree_of(spans) == [["InferRequest", ["authored", ["queue"], ["compute", ["outer", ["inner"]]]]]]
    assert within(spans)
    (outer,), (inner,) = named(spans, "outer"), named(spans, "inner")
    assert outer.attributes == {"size": 1, "what": "text", "late": True}
    assert (outer.failed, inner.failed) == (None, "ValueError: on purpose")


def test_each_request_of_a_sequence_has_a_trace(traced):
    traces = []
    for number in range(3):
        trace, _, headers = parent()
        given = {"sequence_id": 7, "sequence_start": number == 0, "sequence_end": number == 2}
        assert traced.post("total", headers=headers, parameters=given)[0] == 200
        traces.append(trace)
    for trace in traces:
        spans = traced.collector.trace(trace, spans=4)
        assert tree_of(spans) == [["InferRequest", ["total", *ONCE]]]
        assert named(spans, "total")[0].attributes["tritium.correlation_id"] == "7"


def test_a_decoupled_request_counts_its_responses(traced):
    trace, _, headers = parent()
    answers: Queue[object] = Queue()
    with grpc_client.InferenceServerClient(traced.addresses.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error or result), headers=headers)
        asked = inputs(grpc_client, X=np.full((1,), 3, np.float32))
        client.async_stream_infer("countdown", asked, enable_empty_final_response=True)
        for _ in range(4):
            assert not isinstance(answers.get(timeout=PATIENCE), Exception)
        client.stop_stream()
    spans = traced.collector.trace(trace, spans=5)
    assert tree_of(spans) == [["InferRequest", ["countdown", ["queue"], ["compute", ["counting"]]]]]
    assert named(spans, "countdown")[0].attributes["tritium.responses"] == 3


@pytest.mark.parametrize(
    ("endpoint", "model", "tree"),
    [
        ("generate", "context", ["context", ["queue"], ["compute", ["LOOK_UP"]]]),
        ("generate_stream", "countdown", ["countdown", ["queue"], ["compute", ["counting"]]]),
    ],
)
def test_generated_answers(traced, endpoint, model, tree):
    """Over the endpoints of the generate extension, in one piece or as events."""
    trace, _, headers = parent()
    answer = traced.send(model, endpoint, {"X": 2.0}, headers)
    assert answer.status == 200
    spans = traced.collector.trace(trace, spans=5)
    assert tree_of(spans) == [["InferRequest", tree]]
    (root,) = named(spans, "InferRequest")
    assert root.event_names[-2:] == ["HTTP_SEND_START", "HTTP_SEND_END"]


def test_a_request_that_killed_its_worker_has_two_executions(traced):
    trace, _, headers = parent()
    assert traced.post("mortal", headers=headers)[0] == 200
    spans = traced.collector.trace(trace, spans=6)
    assert tree_of(spans) == [["InferRequest", ["mortal", *ONCE, *ONCE]]]
    first, second = named(spans, "compute")
    assert first.attributes["tritium.outcome"] == "died"
    assert first.failed == "exit with code 3"
    assert (second.attributes["tritium.outcome"], second.attributes["tritium.attempt"]) == ("finished", 2)


def test_a_refused_request_is_a_failed_trace(traced):
    trace, _, headers = parent()
    status, _, _ = traced.post("twice", shape=(1, 1, 1), headers=headers)
    assert status == 400
    spans = traced.collector.trace(trace, spans=2)
    assert tree_of(spans) == [["InferRequest", ["twice"]]]
    assert all(span.failed for span in spans)


def test_ids_join_the_log_server_timing_and_the_trace(traced):
    trace, _, headers = parent()
    _, told, _ = traced.post("twice", id="joined", headers=headers)
    spans = traced.collector.trace(trace, spans=4)
    (root,) = named(spans, "InferRequest")
    (model,) = named(spans, "twice")
    found = re.search(r'traceparent;desc="([^"]+)"', told["Server-Timing"])
    assert found is not None
    assert found[1] == f"00-{trace}-{root.span_id}-01"
    line = traced.log_of("joined")
    assert f"trace_id={trace}" in line
    assert f"span_id={model.span_id}" in line


@pytest.mark.long
def test_a_collector_that_does_not_answer_costs_spans_and_nothing_else(tmp_path):
    """Requests are served, the spans that have no room are counted, and the server ends as it should.

    Only requests that bring a context are traced here: there is no rate.
    """
    write_twice(tmp_path / "models")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environ = {
        "TRITIUM_ALLOW_METRICS": "true",
        "TRITIUM_METRICS_ADDRESS": "127.0.0.1",
        "TRITIUM_METRICS_PORT": str(port),
    }
    room = [
        f"--trace-config=opentelemetry,bsp_{name}=4" for name in ("max_queue_size", "max_export_batch_size")
    ]
    with serving(tmp_path / "models", *room, rate=0, **environ) as server:
        server.collector.hold()
        assert server.post("twice")[0] == 200
        assert server.post("twice", headers=parent()[2])[0] == 200
        server.collector.wait_posted()
        for _ in range(10):
            assert server.post("twice", headers=parent()[2])[0] == 200
        told = scrape(port)
        assert 'tritium_trace_spans_total{outcome="exported"} 0' in told
        assert "tritium_traces_sampled_total 11" in told
        until(lambda: 'tritium_trace_spans_total{outcome="dropped"} 36' in scrape(port))


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as scraped:
        return str(scraped.read().decode())
