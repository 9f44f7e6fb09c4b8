"""Traces of a real server, read from the real file, by clients of both protocols.

Contract: observability.md section 3, http.md section 5.1, grpc.md section 6.
"""

import json
import threading
import time
import urllib.request
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.operators import serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = request.inputs()[0]
            for _ in range(2):
                call = pb_utils.InferenceRequest(
                    model_name="double", inputs=[pb_utils.Tensor("X", tensor.as_numpy())],
                    requested_output_names=["Y"],
                )
                tensor = call.exec().output_tensors()[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor.as_numpy())]))
        return responses
"""

TOTAL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.Tensor("Y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""

COUNTDOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = request.inputs()[0].as_numpy()
            for number in range(int(values.ravel()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full_like(values, number))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

FRAGILE = """
import os, signal
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        if not os.path.exists(@MARK@):
            open(@MARK@, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        tensors = [pb_utils.Tensor("Y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""

PORTS = """
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
STEP = """
step {{ model_name: "double" model_version: -1
  input_map {{ key: "X" value: "{}" }} output_map {{ key: "Y" value: "{}" }} }}
"""


def write_models(folder: Path) -> None:
    python = 'backend: "python"' + PORTS
    write_model(folder)
    write_model(folder, "caller", code=CALLER, config=python)
    write_model(
        folder,
        "total",
        code=TOTAL,
        config=python + "sequence_batching { max_sequence_idle_microseconds: 60000000 }",
    )
    write_model(
        folder,
        "countdown",
        code=COUNTDOWN,
        config=python + "model_transaction_policy { decoupled: true }",
    )
    write_model(
        folder,
        "fragile",
        code=FRAGILE.replace("@MARK@", repr(str(folder.parent / "died"))),
        config=python + 'parameters { key: "tritium.retry" value { string_value: "always" } }',
    )
    (folder / "twice" / "1").mkdir(parents=True)
    (folder / "twice" / "config.pbtxt").write_text(
        'platform: "ensemble"'
        + PORTS
        + f"ensemble_scheduling {{ {STEP.format('X', 'half')} {STEP.format('half', 'Y')} }}"
    )


class Span:
    """The objects of one request in a trace file."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.moments: list[tuple[str, int]] = []
        self.tensors: list[tuple[str, dict[str, str]]] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.moments]


def read_traces(path: Path) -> list[list[Span]]:
    """Return the traces in a file: each the spans of its requests, the client's first.

    None where the server is writing to it.
    """
    traces: list[list[Span]] = []
    try:
        objects = json.loads(path.read_text())
    except json.JSONDecodeError:
        return []
    for each in objects:
        if "model_name" in each:
            if "parent_id" not in each:
                traces.append([])
            traces[-1].append(Span(each))
        else:
            span = traces[-1][-1]
            assert each["id"] == span.header["id"], "objects of one request stand together"
            for stamp in each.get("timestamps", ()):
                span.moments.append((stamp["name"], stamp["ns"]))
            if "tensor" in each:
                span.tensors.append((each["activity"], each["tensor"]))
    return traces


class Traced:
    """A server that traces every request, and the file that it writes."""

    def __init__(self, served, path: Path) -> None:
        self.served = served
        self.path = path
        self.addresses = {
            tritonclient.http: served.address(),
            tritonclient.grpc: served.address("GRPCInferenceService"),
        }

    def client(self, module):
        return module.InferenceServerClient(self.addresses[module])

    def infer(self, module, model, request_id, values=(1, 2), **options):
        with self.client(module) as client:
            answer = client.infer(model, inputs(module, values), request_id=request_id, **options)
            return answer.as_numpy("Y").tolist()

    def trace(self, request_id: str) -> list[Span]:
        """Wait for the trace of a request."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for path in self.path.parent.glob(self.path.name + "*"):
                for trace in read_traces(path):
                    if trace[0].header.get("request_id") == request_id:
                        return trace
            threading.Event().wait(0.02)
        raise AssertionError(f"no trace of {request_id}:\n{self.served.said}")


def inputs(module, values):
    given = module.InferInput("X", [len(values)], "FP32")
    given.set_data_from_numpy(np.array(values, np.float32))
    return [given]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    write_models(folder / "models")
    path = folder / "trace.json"
    flags = [f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    with serving(folder, f"--model-repository={folder / 'models'}", "--server-timing=true", *flags) as served:
        served.wait_ready()
        yield Traced(served, path)


BOTH = pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
COMPUTED = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
CORE = ["REQUEST_START", "QUEUE_START", *COMPUTED, "REQUEST_END"]
FRONTEND = {
    tritonclient.http: ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
    tritonclient.grpc: ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
}


def around(module, core):
    """The timestamps of a client's request, in order."""
    begin, end = FRONTEND[module][:2], FRONTEND[module][2:]
    return [*begin, *core, "INFER_RESPONSE_COMPLETE", *end]


def in_order(span):
    times = [ns for _, ns in span.moments]
    assert times == sorted(times)
    return span.names


@BOTH
def test_a_plain_request_has_tritons_timestamps(traced, module):
    name = f"plain-{module.__name__}"
    before = time.monotonic_ns()
    assert traced.infer(module, "double", name) == [2, 4]
    (span,) = traced.trace(name)
    assert span.header | {"id": 0} == {
        "id": 0,
        "model_name": "double",
        "model_version": 1,
        "request_id": name,
    }
    assert in_order(span) == around(module, CORE)
    assert before < span.moments[0][1] < span.moments[-1][1] < time.monotonic_ns(), "the steady clock"


def test_a_request_off_the_direct_path_is_traced_alike(traced):
    with traced.client(tritonclient.http) as client:
        given = inputs(tritonclient.http, (1, 2))
        client.infer("double", given, request_id="folded", request_compression_algorithm="gzip")
    (span,) = traced.trace("folded")
    assert in_order(span) == around(tritonclient.http, CORE)


def test_generate_is_traced(traced):
    body = json.dumps({"X": [1, 2], "id": "generated"}).encode()
    url = f"http://{traced.addresses[tritonclient.http]}/v2/models/double/generate"
    with urllib.request.urlopen(url, body, timeout=30) as answer:
        assert json.loads(answer.read())["Y"] == [2, 4]
    (span,) = traced.trace("generated")
    assert in_order(span) == around(tritonclient.http, CORE)


@BOTH
def test_the_steps_of_an_ensemble_are_children(traced, module):
    name = f"ensemble-{module.__name__}"
    assert traced.infer(module, "twice", name) == [4, 8]
    whole, *steps = traced.trace(name)
    assert in_order(whole) == around(module, ["REQUEST_START", "QUEUE_START", "REQUEST_END"])
    assert [step.header["model_name"] for step in steps] == ["double", "double"]
    assert {step.header["parent_id"] for step in steps} == {whole.header["id"]}
    assert [in_order(step) for step in steps] == [CORE, CORE]
    assert steps[0].moments[-1][1] <= steps[1].moments[0][1], "one after the other"


@BOTH
def test_the_calls_of_a_model_are_children(traced, module):
    name = f"calls-{module.__name__}"
    assert traced.infer(module, "caller", name) == [4, 8]
    whole, *calls = traced.trace(name)
    assert whole.header["model_name"] == "caller"
    assert in_order(whole) == around(module, CORE)
    assert [call.header["model_name"] for call in calls] == ["double", "double"]
    assert {call.header["parent_id"] for call in calls} == {whole.header["id"]}
    began, ended = (dict(whole.moments)[each] for each in ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"))
    for call in calls:
        assert in_order(call) == CORE
        assert began <= call.moments[0][1] <= call.moments[-1][1] <= ended, "within its computation"


@BOTH
def test_each_request_of_a_sequence_has_a_trace(traced, module):
    for number, flags in enumerate(({"sequence_start": True}, {}, {"sequence_end": True})):
        name = f"sequence-{module.__name__}-{number}"
        traced.infer(module, "total", name, sequence_id=77, **flags)
        (span,) = traced.trace(name)
        assert in_order(span) == around(module, CORE)


def test_a_decoupled_answer_is_one_trace_from_its_first_to_its_last_part(traced):
    told: Queue[Any] = Queue()
    with traced.client(tritonclient.grpc) as client:
        client.start_stream(callback=lambda result, error: told.put((result, error)))
        given = inputs(tritonclient.grpc, (3,))
        client.async_stream_infer("countdown", given, request_id="parts", enable_empty_final_response=True)
        parts: list[Any] = []
        while not parts or not parts[-1].get_response().parameters["triton_final_response"].bool_param:
            result, error = told.get(timeout=30)
            assert error is None
            parts.append(result)
        client.stop_stream()
    assert len(parts) == 4
    (span,) = traced.trace("parts")
    times = dict(span.moments)
    assert set(span.names) == set(around(tritonclient.grpc, CORE))
    assert len(span.names) == len(set(span.names)), "responses beyond the first have no timestamps"
    assert times["QUEUE_START"] <= times["COMPUTE_START"] <= times["COMPUTE_OUTPUT_START"]
    assert times["COMPUTE_OUTPUT_START"] <= times["INFER_RESPONSE_COMPLETE"] <= times["GRPC_SEND_START"]
    assert times["COMPUTE_OUTPUT_START"] <= times["COMPUTE_END"] <= times["REQUEST_END"]
    assert times["REQUEST_END"] <= times["GRPC_SEND_END"]


def test_a_retried_request_tells_of_the_death_and_of_the_run_that_answered(traced):
    assert traced.infer(tritonclient.http, "fragile", "again", (5,)) == [5]
    (span,) = traced.trace("again")
    assert sorted(span.names) == sorted([*around(tritonclient.http, CORE), "WORKER_DIED"])
    times = dict(span.moments)
    assert times["QUEUE_START"] < times["WORKER_DIED"] < times["COMPUTE_START"]


@BOTH
def test_a_refused_request_has_a_short_trace(traced, module):
    name = f"refused-{module.__name__}"
    given = inputs(module, (1, 2))
    with traced.client(module) as client, pytest.raises(InferenceServerException):
        client.infer("double", [*given, *given], request_id=name)
    (span,) = traced.trace(name)
    assert sorted(span.names) == sorted(around(module, ["REQUEST_START", "REQUEST_END"]))


def told(module, settings):
    """Return the settings as both clients would have them."""
    if module is tritonclient.http:
        return settings
    lists = {key: list(each["value"]) for key, each in settings["settings"].items()}
    return {key: each if key == "trace_level" else each[0] for key, each in lists.items()}


@BOTH
def test_clients_read_and_change_the_settings_of_a_model(traced, module):
    options = {"as_json": True} if module is tritonclient.grpc else {}
    with traced.client(module) as client:
        first = told(module, client.get_trace_settings(**options))
        assert first == {
            "trace_level": ["TIMESTAMPS"],
            "trace_rate": "1",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": str(traced.path),
            "trace_mode": "triton",
        }
        changed = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": "1"}
        after = told(module, client.update_trace_settings("caller", changed, **options))
        assert after == first | changed
        name = f"tensors-{module.__name__}"
        traced.infer(module, "caller", name)
        traced.infer(module, "caller", f"untraced-{module.__name__}")
        assert told(module, client.get_trace_settings("caller", **options))["trace_count"] == "0"
        cleared = dict.fromkeys(changed)
        assert told(module, client.update_trace_settings("caller", cleared, **options)) == first
        assert told(module, client.get_trace_settings(**options)) == first
        with pytest.raises(InferenceServerException, match="Unable to parse 'trace_rate', got: fast"):
            client.update_trace_settings(settings={"trace_rate": "fast"})
    whole, *calls = traced.trace(name)
    alone = [read_traces(each) for each in traced.path.parent.glob(traced.path.name + ".*")]
    assert name in [trace[0].header["request_id"] for (trace,) in alone], "its count was exhausted"
    assert whole.tensors == [
        ("TENSOR_QUEUE_INPUT", {"name": "X", "data": "1,2", "shape": "2", "dtype": "FP32"}),
        ("TENSOR_BACKEND_INPUT", {"name": "X", "data": "1,2", "shape": "2", "dtype": "FP32"}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "Y", "data": "4,8", "shape": "2", "dtype": "FP32"}),
    ]
    assert [call.tensors[-1][1]["data"] for call in calls] == ["2,4", "4,8"]


def test_traces_are_counted_and_the_extension_is_listed(traced):
    traced.infer(tritonclient.http, "double", "counted")
    traced.trace("counted")
    status, _, body = traced.served.get("/metrics", service="Metrics Service")
    assert status == 200
    counts = dict(
        line.rsplit(" ", 1) for line in body.decode().splitlines() if line.startswith("tritium_traces")
    )
    assert int(counts["tritium_traces_sampled_total"]) >= int(counts["tritium_traces_written_total"]) > 0
    assert counts['tritium_traces_lost_total{reason="queue"}'] == "0"
    _, _, metadata = traced.served.get("/v2")
    assert "trace" in json.loads(metadata)["extensions"]


def lost_traces(served):
    """Return how many traces could not be written, and how many were sampled."""
    _, _, body = served.get("/metrics", service="Metrics Service")
    counts = dict(
        line.rsplit(" ", 1) for line in body.decode().splitlines() if line.startswith("tritium_traces")
    )
    return (
        int(counts['tritium_traces_lost_total{reason="sink"}']),
        int(counts["tritium_traces_sampled_total"]),
    )


def test_a_full_disk_costs_traces_one_line_of_the_log_and_no_request(tmp_path):
    write_model(tmp_path / "models")
    flags = ["triton,file=/dev/full", "rate=1", "level=TIMESTAMPS", "level=TENSORS"]
    configured = [f"--trace-config={each}" for each in flags]
    with serving(tmp_path / "run", f"--model-repository={tmp_path / 'models'}", *configured) as served:
        served.wait_ready()
        traced = Traced(served, tmp_path / "none")
        for module in (tritonclient.http, tritonclient.grpc):
            for number in range(10):
                assert traced.infer(module, "double", str(number)) == [2, 4]
        deadline = time.monotonic() + 60
        while lost_traces(served) != (20, 20) and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        assert lost_traces(served) == (20, 20)
        served.signal()
        assert served.wait() == 0
    assert served.said.count("traces_lost") == 1
    assert "No space left on device" in served.said


def test_the_file_is_whole_after_the_end_and_a_log_frequency_makes_several(tmp_path):
    write_model(tmp_path / "models")
    path = tmp_path / "t.json"
    flags = [f"--trace-file={path}", "--trace-rate=1", "--trace-level=TIMESTAMPS", "--trace-log-frequency=2"]
    with serving(tmp_path / "run", f"--model-repository={tmp_path / 'models'}", *flags) as served:
        served.wait_ready()
        traced = Traced(served, path)
        for number in range(3):
            traced.infer(tritonclient.grpc, "double", f"r{number}")
        served.signal()
        assert served.wait() == 0
    files = [path.with_name(f"t.json.{number}") for number in range(2)]
    ids = [[trace[0].header["request_id"] for trace in read_traces(each)] for each in files]
    assert ids == [["r0", "r1"], ["r2"]]
    assert not path.exists()
