"""Sequences through Triton's clients, against a real server.

The tests cover both strategies, states, iterations and dying workers.
"""

import os
import signal
import time
import warnings
from contextlib import ExitStack
from queue import Queue
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.flavours import PROCESSES
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    import tritonclient.http as http_client
    from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] }
  ]
"""
STATE = """
  state [ {
    input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { name: "begin" data_type: TYPE_FP32 dims: [ 1 ] %s }
  } ]
"""
PORTS = """
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

# Sums by row, like a model that relies on its slot; TOLD is what it has been told.
BY_ROW = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for row, request in enumerate(requests):
            told = {t.name(): t.as_numpy().ravel()[0] for t in request.inputs()}
            if told["READY"]:
                if told["START"]:
                    self.sums[row] = 0.0
                self.sums[row] += told["INPUT"]
            who = told["ID"].decode() if isinstance(told["ID"], bytes) else int(told["ID"])
            text = f"row {row} of {len(requests)}, start {told['START']}, end {told['END']:g}, id {who}"
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUTPUT", np.array([[self.sums.get(row, 0.0)]], np.float32)),
                pb_utils.Tensor("TOLD", np.array([[text]], object)),
            ]))
        return responses
"""
# Sums by its state; TOLD is its process.
BY_STATE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            total = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy() + value
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUTPUT", total),
                pb_utils.Tensor("SUM_OUT", total),
                pb_utils.Tensor("TOLD", np.array([[str(os.getpid())]], object)),
            ]))
        return responses
"""
# Counts down what it is given, one execution a step.
COUNT_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left, self.steps = {}, {}

    def execute(self, requests):
        responses = []
        for request in requests:
            who = pb_utils.get_input_tensor_by_name(request, "ID").as_numpy()[0, 0]
            if pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0, 0]:
                self.left[who] = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0, 0]
                self.steps[who] = 0
            self.left[who] -= 1
            self.steps[who] += 1
            if self.left[who] > 0:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                responses.append(pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT", np.array([[self.steps[who]]], np.float32)),
                    pb_utils.Tensor("TOLD", np.array([[str(who)]], object)),
                ]))
        return responses
"""
STREAM_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            who = request.correlation_id()
            if request.flags() & 1:
                self.left[who] = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0, 0]
            self.left[who] -= 1
            done = self.left[who] <= 0
            request.get_response_sender().send(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[self.left[who]]], np.float32))]),
                pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if done else 0,
            )
            if not done:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""


def write_python(repository, name, source, scheduling, *, more=""):
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(dedent(source))
    config = f'name: "{name}"\nbackend: "python"\n{PORTS}\nsequence_batching {{ {scheduling} }}\n{more}'
    (repository / name / "config.pbtxt").write_text(config)


def write_onnx(repository, name, scheduling):
    """OUTPUT = SUM_OUT = INPUT + SUM_IN × READY; ID comes back as it went in."""
    version = repository / name / "1"
    version.mkdir(parents=True)

    def port(port_name, kind, dims=("N", 1)):
        return helper.make_tensor_value_info(port_name, kind, list(dims))

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["INPUT", "SUM_IN"], ["SUM"]),
            helper.make_node("Mul", ["SUM", "READY"], ["SUM_OUT"]),
            helper.make_node("Identity", ["SUM_OUT"], ["OUTPUT"]),
            helper.make_node("Identity", ["ID"], ["WHO"]),
        ],
        "accumulate",
        [
            port("INPUT", TensorProto.FLOAT),
            port("READY", TensorProto.FLOAT),
            port("ID", TensorProto.UINT64),
            port("SUM_IN", TensorProto.FLOAT),
        ],
        [
            port("OUTPUT", TensorProto.FLOAT),
            port("WHO", TensorProto.UINT64),
            port("SUM_OUT", TensorProto.FLOAT),
        ],
    )
    onnx.save(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]),
        version / "model.onnx",
    )
    (repository / name / "config.pbtxt").write_text(
        f"""
        name: "{name}" backend: "onnxruntime" max_batch_size: 4
        input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
        output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }}, {{ name: "WHO" data_type: TYPE_UINT64 dims: [ 1 ] }} ]
        sequence_batching {{
          control_input [
            {{ name: "READY" control [ {{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] }} ] }},
            {{ name: "ID" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} ] }}
          ]
          {STATE % 'data_file: "five"'}
          {scheduling}
        }}
        """
    )
    files = repository / name / "initial_state"
    files.mkdir()
    (files / "five").write_bytes(np.float32(5).tobytes())


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    numbers, texts = CONTROLS % "TYPE_UINT64", CONTROLS % "TYPE_STRING"
    idle = "max_sequence_idle_microseconds: 20000000"
    write_python(folder, "direct", BY_ROW, f"{numbers} direct {{ }} {idle}")
    write_python(folder, "texts", BY_ROW, f"{texts} direct {{ }} {idle}")
    state = STATE % "zero_data: true"
    write_python(folder, "lost", BY_STATE, f"{state} oldest {{ }} {idle}")
    write_python(folder, "steps", COUNT_DOWN, f"{numbers} iterative_sequence: true oldest {{ }}")
    write_python(
        folder,
        "stream",
        STREAM_DOWN,
        "iterative_sequence: true oldest { }",
        more="model_transaction_policy { decoupled: true }",
    )
    for strategy in ("direct", "oldest"):
        write_onnx(folder, f"onnx_{strategy}", f"{strategy} {{ }} {idle}")
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with PROCESSES["tritium-serve"](repository) as addresses:
        yield addresses


class Caller:
    """One of Triton's clients, with one way to send a step."""

    def __init__(self, stack, addresses, kind):
        self.kind = kind
        self.library = http_client if kind == "http" else grpc_client
        address = addresses.http if kind == "http" else addresses.grpc
        self.client = stack.enter_context(self.library.InferenceServerClient(address))
        self.answers: Queue[Any] = Queue()
        if kind == "stream":
            self.client.start_stream(callback=lambda result, error: self.answers.put((result, error)))
            stack.callback(self.client.stop_stream)

    def step(self, model, sequence, value, *, start=False, end=False, outputs=None):
        given = inputs(self.library, INPUT=np.full((1, 1), value, np.float32))
        options = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
        if outputs:
            options["outputs"] = [self.library.InferRequestedOutput(name) for name in outputs]
        if self.kind != "stream":
            return self.client.infer(model, given, **options)
        self.client.async_stream_infer(model, given, **options)
        result, error = self.answers.get(timeout=30)
        if error is not None:
            raise error
        return result

    def total(self, *args, **options):
        return self.step(*args, **options).as_numpy("OUTPUT").item()


@pytest.fixture(params=["http", "grpc", "stream"])
def caller(request, server):
    with ExitStack() as stack:
        yield Caller(stack, server, request.param)


@pytest.fixture
def http(server):
    with ExitStack() as stack:
        yield Caller(stack, server, "http")


def told(result):
    return result.as_numpy("TOLD").item().decode()


def refused(call, *args, **options):
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **options)
    return caught.value.message()


def test_a_direct_sequence_keeps_its_row_and_is_told_where_it_is(caller):
    first = caller.step("direct", 11, 1, start=True)
    second = caller.step("direct", 12, 10, start=True)
    assert told(first) == "row 0 of 1, start 1, end 0, id 11"
    assert told(second) == "row 1 of 2, start 1, end 0, id 12"
    assert caller.total("direct", 12, 20) == 30
    assert caller.total("direct", 11, 2) == 3
    assert told(caller.step("direct", 12, 0, end=True)) == "row 1 of 2, start 0, end 1, id 12"
    assert told(caller.step("direct", 11, 0, end=True)) == "row 0 of 1, start 0, end 1, id 11"


def test_string_ids_are_sequences_too(caller):
    assert caller.total("texts", "first", 1, start=True) == 1
    assert told(caller.step("texts", "1", 5, start=True)) == "row 1 of 2, start 1, end 0, id 1"
    assert caller.total("texts", "first", 2, end=True) == 3
    assert caller.total("texts", "1", 2, end=True) == 7


def test_the_server_says_that_it_has_sequences(http):
    assert "sequence" in http.client.get_server_metadata()["extensions"]


def test_ids_of_the_wrong_kind_are_refused(http):
    assert refused(http.step, "texts", 5, 1, start=True) == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'UINT64', but model 'texts' expects 'BYTES'"
    )
    assert refused(http.step, "direct", "five", 1, start=True) == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'BYTES', but model 'direct' expects 'UINT64'"
    )


def test_requests_without_a_sequence_are_refused_in_the_contract_s_words(caller):
    assert refused(caller.step, "direct", 99, 1).endswith(
        "inference request for sequence 99 to model 'direct' must specify the START flag on the first request of the"
        " sequence"
    )
    assert refused(caller.step, "direct", 0, 1, start=True).endswith(
        "inference request to model 'direct' must specify a non-zero or non-empty correlation ID"
    )


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_an_onnx_model_s_state_goes_from_request_to_request(caller, strategy):
    model = f"onnx_{strategy}"
    assert caller.total(model, 21, 1, start=True) == 6  # it begins with the 5 of its file
    assert caller.total(model, 22, 10, start=True) == 15
    result = caller.step(model, 21, 2)
    assert result.as_numpy("OUTPUT").item() == 8
    assert result.as_numpy("WHO").item() == 21
    assert result.as_numpy("SUM_OUT") is None
    assert caller.step(model, 21, 3, outputs=["WHO"]).as_numpy("OUTPUT") is None
    assert caller.total(model, 21, 0, end=True) == 11
    assert caller.total(model, 22, 0, end=True) == 15
    assert caller.total(model, 21, 1, start=True, end=True) == 6


def test_states_and_controls_are_nothing_that_clients_may_send_or_see(http):
    metadata = http.client.get_model_metadata("onnx_direct")
    assert [each["name"] for each in metadata["inputs"]] == ["INPUT"]
    assert [each["name"] for each in metadata["outputs"]] == ["OUTPUT", "WHO"]
    zero = np.zeros((1, 1), np.float32)
    both = inputs(http_client, INPUT=zero, SUM_IN=zero)
    assert "expected 1 inputs but got 2 inputs" in refused(
        http.client.infer, "onnx_direct", both, sequence_id=1, sequence_start=True
    )


def test_an_iterative_request_is_run_until_it_is_done(caller):
    result = caller.step("steps", 0, 5)
    assert result.as_numpy("OUTPUT").item() == 5
    assert int(told(result)) >= 1


def test_an_iterative_decoupled_request_answers_step_by_step(server):
    with ExitStack() as stack:
        caller = Caller(stack, server, "stream")
        seen = [caller.total("stream", 0, 3)]
        for _ in range(2):
            result, error = caller.answers.get(timeout=30)
            assert error is None
            seen.append(result.as_numpy("OUTPUT").item())
    assert seen == [2, 1, 0]


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def test_a_sequence_ends_with_its_worker(http):
    worker = int(told(http.step("lost", 51, 1, start=True)))
    kill(worker)
    deadline = time.monotonic() + 20
    while True:  # until the death has been noticed, a step may meet it
        message = refused(http.step, "lost", 51, 1)
        if "must specify the START flag" in message or time.monotonic() > deadline:
            break
        assert "has ended: its instance" in message
    assert message == (
        "inference request for sequence 51 to model 'lost' must specify the START flag on the first request of the"
        " sequence"
    )
    assert http.total("lost", 51, 1, start=True, end=True) == 1
