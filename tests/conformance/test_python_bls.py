"""Python models that call, load and measure, in a real server.

The contract is python_backend.md, sections 7, 8 and 9. The models `lab*` run the Python that a client sends
them, so that each test shows the code it is about.
"""

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from textwrap import dedent, indent
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from tests.support.flavours import process, write_onnx_model
from tests.support.triton_inputs import inputs

LAB = """
import json, os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

KEPT = {}

def call(model_name, inputs, outputs, **options):
    tensors = [pb_utils.Tensor(name, np.asarray(a, np.float32)) for name, a in inputs.items()]
    return pb_utils.InferenceRequest(model_name=model_name, inputs=tensors, requested_output_names=outputs, **options)

def told(response):
    if response.has_error():
        return {"error": response.error().message(), "code": response.error().code().name}
    return {t.name(): t.as_numpy().tolist() for t in response.output_tensors()}

def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except pb_utils.TritonModelException as error:
        return str(error)
    return "nothing was refused"

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        code = config["parameters"].get("initialize", {}).get("string_value")
        if code:
            exec(code, globals())

    ASYNC def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy().ravel()[0].decode()
            scope = dict(globals(), request=request, model=self)
            exec(code, scope)
            result = AWAIT scope["run"]()
            tensor = pb_utils.Tensor("RESULT", np.array([json.dumps(result).encode()], dtype=object))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""

COUNTDOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

SEEN = []

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for number in range(int(values.ravel()[0]), 0, -1):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full_like(values, number))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

TOTAL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}
    def execute(self, requests):
        responses = []
        for request in requests:
            flags, sequence = request.flags(), request.correlation_id()
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.totals[sequence] = 0
            self.totals[sequence] += pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.totals[sequence])]))
        return responses
"""

MOODY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def is_ready(self):
        return False
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("moody", pb_utils.TritonError.UNSUPPORTED)) for _ in requests]
"""

PAIR = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensor = requests[0].inputs()[0]
        call = pb_utils.InferenceRequest(
            model_name="countdown",
            inputs=[pb_utils.Tensor("X", tensor.as_numpy()[0])],
            requested_output_names=["Y"],
        )
        read = 0
        for response in call.exec(decoupled=True):
            read += not response.has_error()
            if read == 1:
                open(@BEGUN@, "w").close()
        result = pb_utils.Tensor("Y", np.full((1, 1), read if len(requests) == 2 else -1, np.float32))
        return [pb_utils.InferenceResponse([result]) for _ in requests]
"""

GATE = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        open(@TAKEN@, "w").close()
        while not os.path.exists(@GATE@):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

XY = 'input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }'
CODE = 'input { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } output { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] }'


def python_model(
    folder: Path, name: str, code: str, ports: str = XY, *, batch: int = 0, count: int = 1, more: str = ""
) -> None:
    """Write a model of the python backend."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(code)
    (folder / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\n{ports}\ninstance_group {{ kind: KIND_CPU count: {count} }}\n{more}'
    )


def lab(*, coroutine: bool = False) -> str:
    """Return the laboratory's code."""
    return LAB.replace("ASYNC ", "async " if coroutine else "").replace(
        "AWAIT ", "await " if coroutine else ""
    )


def begun(folder: Path) -> Path:
    """Return the file that shows that `pair`, a model of this repository, has begun to read its responses."""
    return folder.parent / f"{folder.name}.begun"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that call, and models to be called."""
    folder = tmp_path_factory.mktemp("repository")
    write_onnx_model(
        folder,
        "add",
        nodes=[("Add", ["A", "B"], "S"), ("Sub", ["A", "B"], "D")],
        inputs=[("A", TensorProto.FLOAT, [4]), ("B", TensorProto.FLOAT, [4])],
        outputs=[("S", TensorProto.FLOAT, [4]), ("D", TensorProto.FLOAT, [4])],
    )
    ports = " ".join(
        f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }}'
        for side, name in (("input", "A"), ("input", "B"), ("output", "OUT"))
    )
    step = (
        'step {{ model_name: "add" model_version: -1 input_map {{ key: "A" value: "{}" }} input_map {{ key: "B" value: "B" }}'
        ' output_map {{ key: "S" value: "{}" }} }}'
    )
    (folder / "twice" / "1").mkdir(parents=True)
    (folder / "twice" / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: 8 {ports} ensemble_scheduling {{ {step.format("A", "half")} {step.format("half", "OUT")} }}'
    )
    python_model(folder, "lab", lab(), CODE)
    python_model(folder, "lab2", lab(), CODE)
    python_model(folder, "lab_async", lab(coroutine=True), CODE)
    python_model(folder, "countdown", COUNTDOWN, more="model_transaction_policy { decoupled: true }")
    python_model(
        folder, "total", TOTAL, more="sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    )
    python_model(folder, "moody", MOODY)
    python_model(folder, "spare", TOTAL)
    python_model(folder, "opened", TOTAL)
    policy = "default_queue_policy { timeout_action: REJECT allow_timeout_override: true default_timeout_microseconds: 60000000 }"
    gate = GATE.replace("@GATE@", repr(str(folder.parent / f"{folder.name}.gate")))
    gate = gate.replace("@TAKEN@", repr(str(folder.parent / f"{folder.name}.taken")))
    python_model(folder, "gate", gate, batch=1, more=f"dynamic_batching {{ {policy} }}")
    delay = "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 20000000 }"
    python_model(folder, "pair", PAIR.replace("@BEGUN@", repr(str(begun(folder)))), batch=2, more=delay)
    python_model(folder, "broken", "raise ValueError('no')")
    return folder


@pytest.fixture(scope="module")
def metrics_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def address(repository: Path, metrics_port: int) -> Iterator[str]:
    """The gRPC address of a server in explicit mode that has loaded every model but `spare` and `opened`."""
    loaded = ("add", "twice", "lab", "lab2", "lab_async", "countdown", "total", "moody", "pair", "gate")
    options = [f"--load-model={name}" for name in loaded]
    environ: dict[str, Any] = {
        "TRITIUM_MODEL_CONTROL_MODE": "explicit",
        "TRITIUM_ALLOW_METRICS": "true",
        "TRITIUM_METRICS_ADDRESS": "127.0.0.1",
        "TRITIUM_METRICS_PORT": str(metrics_port),
        "TRITIUM_STRICT_READINESS": "false",
    }
    with process("engine", "serve", *options, **environ)(repository) as opened:
        yield opened.grpc


class Lab:
    """Runs Python in a model of the server."""

    def __init__(self, address: str) -> None:
        self.client = tritonclient.grpc.InferenceServerClient(address)

    def run(self, code: str, *, model: str = "lab", **options):
        """Run the body of a function in the model, and return what it returns."""
        head = "async def run():\n" if model == "lab_async" else "def run():\n"
        source = head + indent(dedent(code).strip("\n"), "    ")
        given = inputs(tritonclient.grpc, CODE=np.array([source.encode()], dtype=object))
        answer = self.client.infer(model, given, **options)
        return json.loads(answer.as_numpy("RESULT")[0])


@pytest.fixture
def science(address: str) -> Iterator[Lab]:
    """A client of the laboratories."""
    opened = Lab(address)
    yield opened
    opened.client.close()


ONES = "np.ones((1, 4))"
ADD = f"call('add', {{'A': {ONES}, 'B': {ONES} * 2}}, ['S', 'D'])"

# -- section 7: calls


def test_a_model_calls_another(science):
    assert science.run(f"return told({ADD}.exec())") == {"S": [[3.0] * 4], "D": [[-1.0] * 4]}


def test_only_the_outputs_that_are_asked_for_come(science):
    code = f"return told(call('add', {{'A': {ONES}, 'B': {ONES}}}, ['D']).exec())"
    assert science.run(code) == {"D": [[0.0] * 4]}


def test_coroutines_call_at_the_same_time(science):
    code = f"""
        import asyncio
        responses = await asyncio.gather(*({ADD}.async_exec() for _ in range(20)))
        return [told(each)["S"][0][0] for each in responses]
    """
    assert science.run(code, model="lab_async") == [3.0] * 20


def test_an_ensemble_can_be_called(science):
    code = f"return told(call('twice', {{'A': {ONES}, 'B': {ONES} * 2}}, ['OUT']).exec())"
    assert science.run(code) == {"OUT": [[5.0] * 4]}


def test_a_sequence_can_be_called(science):
    code = """
        found = []
        for number, flags in ((1, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START), (2, 0), (3, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)):
            found.append(told(call('total', {'X': [number]}, ['Y'], correlation_id=77, flags=flags).exec())["Y"][0])
        return found
    """
    assert science.run(code) == [1.0, 3.0, 6.0]


def test_a_decoupled_model_gives_an_iterator_whose_last_item_may_be_empty(science):
    code = """
        them = call('countdown', {'X': [3]}, ['Y']).exec(decoupled=True)
        first = [told(each) for each in them]
        return [first, [told(each) for each in them] == first]
    """
    assert science.run(code) == [[{"Y": [3.0]}, {"Y": [2.0]}, {"Y": [1.0]}, {}], True]


def test_so_it_does_to_a_coroutine(science):
    code = """
        them = await call('countdown', {'X': [2]}, ['Y']).async_exec(decoupled=True)
        return [told(each) async for each in them]
    """
    assert science.run(code, model="lab_async") == [{"Y": [2.0]}, {"Y": [1.0]}, {}]


def test_a_model_that_is_not_decoupled_gives_one(science):
    code = f"return [told(each)['S'] for each in {ADD}.exec(decoupled=True)]"
    assert science.run(code) == [[[3.0] * 4]]


def test_a_stream_that_is_longer_than_its_window_waits_for_the_reader(science):
    code = """
        count = 0
        for each in call('countdown', {'X': [5000]}, ['Y']).exec(decoupled=True):
            count += 1
        return count
    """
    assert science.run(code) == 5001


def test_a_stream_is_cancelled(science):
    code = """
        them = call('countdown', {'X': [10_000_000]}, ['Y']).exec(decoupled=True)
        assert told(next(them)) == {'Y': [10_000_000.0]}
        them.cancel()
        rest = [told(each) for each in them]
        return [rest[-1], len(rest) < 1_000_000, all(each["Y"] for each in rest[:-1])]
    """
    assert science.run(code) == [{}, True, True]  # whatever the callee still had to say
    # The callee has noticed: its only instance is free for the next one.
    assert science.run("return len(list(call('countdown', {'X': [1]}, ['Y']).exec(decoupled=True)))") == 2


def test_so_it_is_when_nobody_holds_the_iterator(science):
    code = """
        them = call('countdown', {'X': [10_000_000]}, ['Y']).exec(decoupled=True)
        next(them)
        del them
        return len(list(call('countdown', {'X': [1]}, ['Y']).exec(decoupled=True)))
    """
    assert science.run(code) == 2


BEGIN = "Model {} - Error when running inference: "


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (
            "call('nobody', {}, ['Y'])",
            "NOT_FOUND",
            BEGIN.format("nobody") + "Request for unknown model: 'nobody' is not found",
        ),
        (
            "call('add', {}, ['S'], model_version=9)",
            "NOT_FOUND",
            BEGIN.format("add") + "Request for unknown model: 'add' version 9 is not found",
        ),
        (
            "call('countdown', {'X': [1]}, ['Y'])",
            "UNSUPPORTED",
            BEGIN.format("countdown")
            + "Model countdown is using the decoupled. The current BLS request call doesn't support models using the"
            " decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for"
            " decoupled models.'",
        ),
        ("call('moody', {'X': [1]}, ['Y'])", "UNSUPPORTED", "moody"),
    ],
)
def test_what_goes_wrong_is_in_the_response(science, call, code, message):
    assert science.run(f"return told({call}.exec())") == {"error": message, "code": code}
    assert science.run(f"return told(await {call}.async_exec())", model="lab_async") == {
        "error": message,
        "code": code,
    }


def test_a_request_that_the_callee_does_not_take_is_refused_as_a_clients_is(science):
    told = science.run(f"return told(call('add', {{'A': {ONES}}}, ['S']).exec())")
    assert told["code"] == "INVALID_ARG"
    with pytest.raises(InferenceServerException) as caught:
        science.client.infer("add", inputs(tritonclient.grpc, A=np.ones((1, 4), np.float32)))
    assert told["error"] == caught.value.message()


def test_a_model_that_calls_itself_is_told_instead_of_waiting_for_ever(science):
    told = science.run(
        "return told(pb_utils.InferenceRequest(model_name='lab', inputs=request.inputs(),"
        " requested_output_names=['RESULT']).exec())"
    )
    assert told["code"] == "UNAVAILABLE"
    assert "lab" in told["error"]


def test_calls_nest(science):
    inner = f"def run():\n    return told({ADD}.exec())"
    code = f"""
        code = pb_utils.Tensor("CODE", np.array([{inner!r}.encode()], dtype=object))
        response = pb_utils.InferenceRequest(model_name="lab2", inputs=[code], requested_output_names=["RESULT"]).exec()
        return json.loads(response.output_tensors()[0].as_numpy()[0])
    """
    assert science.run(code) == {"S": [[3.0] * 4], "D": [[-1.0] * 4]}


def test_a_call_counts_in_the_statistics_of_the_callee(science):
    def count() -> int:
        stats = science.client.get_inference_statistics("add", as_json=True)["model_stats"][0]
        return int(stats["inference_stats"].get("success", {}).get("count", 0))

    before = count()
    science.run(f"return [told({ADD}.exec()) for _ in range(3)]")
    assert count() == before + 3


def test_a_large_tensor_goes_and_comes(science):
    code = """
        a = np.arange(4 * 8, dtype=np.float32).reshape(8, 4)
        return told(call('add', {'A': a, 'B': a}, ['S']).exec())["S"] == (a + a).tolist()
    """
    assert science.run(code) is True


def test_a_call_waits_in_its_callees_queue_for_as_long_as_its_timeout(science, repository):
    gate = repository.parent / f"{repository.name}.gate"
    taken = repository.parent / f"{repository.name}.taken"
    code = f"""
        import asyncio, os
        waiting = [call('gate', {{'X': [[1]]}}, ['Y']).async_exec() for _ in range(3)]
        while not os.path.exists({str(taken)!r}):  # calls are sent in no order
            await asyncio.sleep(0.01)
        late = await call('gate', {{'X': [[1]]}}, ['Y'], timeout=50_000).async_exec()
        open({str(gate)!r}, "w").close()
        return [told(late), *map(told, await asyncio.gather(*waiting))]
    """
    late, *others = science.run(code, model="lab_async")
    assert late["code"] == "UNAVAILABLE"
    assert "Request timeout expired" in late["error"]
    assert others == [{"Y": [[1.0]]}] * 3


def test_threads_of_the_models_own_call(science):
    code = f"""
        found = []
        threads = [threading.Thread(target=lambda: found.append(told({ADD}.exec())["S"][0][0])) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return found
    """
    assert science.run(code) == [3.0] * 8


def test_a_client_that_leaves_takes_its_calls_along(address):
    """The only instance of `lab2` waits for a stream without an end; when its client leaves, it is free."""
    science = Lab(address)
    source = "def run():\n    return [told(e) for e in call('countdown', {'X': [100_000_000]}, ['Y']).exec(decoupled=True)][-1:]"
    code = inputs(tritonclient.grpc, CODE=np.array([source.encode()], dtype=object))
    answers: Queue[object] = Queue()
    begun = science.client.async_infer("lab2", code, lambda result, error: answers.put(error))
    assert science.run("return 1") == 1  # the server has taken what came before
    begun.cancel()
    assert "CANCELLED" in str(answers.get(timeout=20)).upper()
    assert science.run("return 2", model="lab2", client_timeout=20) == 2
    science.client.close()


def test_a_deadline_goes_along_with_calls(science):
    source = (
        "return told([e for e in call('countdown', {'X': [100_000_000]}, ['Y']).exec(decoupled=True)][-1])"
    )
    with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
        science.run(source, model="lab2", client_timeout=0.5)
    assert science.run("return 2", model="lab2", client_timeout=20) == 2


def pair(science: Lab, number: int, answers: Queue[object], **options):
    """Ask `pair`, whose two requests in a batch make one call, to count down from a number."""
    given = inputs(tritonclient.grpc, X=np.array([[number]], np.float32))

    def answered(result, error) -> None:
        answers.put(error if result is None else result.as_numpy("Y").item())

    return science.client.async_infer("pair", given, answered, **options)


def wait_for(path: Path) -> None:
    """Wait until a model has written a file, and remove it."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"nobody has written {path}"
        time.sleep(0.005)
    path.unlink()


def test_a_call_for_a_whole_batch_goes_on_for_the_last_of_its_clients(science, repository):
    hasty: Queue[Any] = Queue()
    patient: Queue[Any] = Queue()
    leaves = pair(science, 20_000, hasty)
    pair(science, 20_000, patient)
    wait_for(begun(repository))
    leaves.cancel()
    assert isinstance(hasty.get(timeout=20), InferenceServerException)
    assert patient.get(timeout=60) == 20_001


def test_and_ends_when_all_have_gone(science, repository):
    answers: Queue[Any] = Queue()
    leaving = [pair(science, 100_000_000, answers) for _ in range(2)]
    wait_for(begun(repository))
    for each in leaving:
        each.cancel()
    for _ in leaving:
        assert isinstance(answers.get(timeout=20), InferenceServerException)
    for _ in range(2):
        pair(science, 3, answers)
    assert [answers.get(timeout=60) for _ in range(2)] == [4, 4]


# -- section 8: loading models

WRAPPED = "Failed to process the request for model 'lab_0_0', message: "


def test_a_model_loads_asks_after_and_unloads_another(science):
    code = """
        found = [refused(pb_utils.is_model_ready, "spare")]
        pb_utils.load_model("spare")
        found += [pb_utils.is_model_ready("spare"), pb_utils.is_model_ready("spare", "1")]
        pb_utils.unload_model("spare")
        return [*found, refused(pb_utils.is_model_ready, "spare")]
    """
    unknown, ready, ready_1, gone = science.run(code)
    prefix = f"Failed to check model readiness: {WRAPPED}"
    assert unknown == f"{prefix}Request for unknown model: 'spare' is not found"
    assert (ready, ready_1) == (True, True)
    assert gone.startswith(f"{prefix}Request for unknown model: 'spare' has no available versions")


def test_readiness_is_the_models_own_word_too(science):
    assert science.run("return pb_utils.is_model_ready('moody')") is False


def test_a_model_may_ask_after_itself(science):
    assert science.run("return pb_utils.is_model_ready('lab')") is True


def test_a_version_must_be_a_number(science):
    told = science.run("return refused(pb_utils.is_model_ready, 'add', 'v')")
    assert "failed to get model version from specified version string 'v' (details: " in told
    assert told.endswith("), version should be an integral value > 0")


def test_a_model_is_loaded_from_files_that_another_made(science):
    code = f"""
        config = json.dumps({{
            "name": "made", "backend": "python",
            "input": [{{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}}],
            "output": [{{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}}],
        }})
        big = b"#" * 3_000_000 + b"\\n"
        pb_utils.load_model("made", config, files={{"file:1/model.py": big + {TOTAL!r}.encode()}})
        flags = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        found = told(call("made", {{"X": [4]}}, ["Y"], flags=flags).exec())
        pb_utils.unload_model("made")
        return found
    """
    assert science.run(code) == {"Y": [4.0]}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "pb_utils.load_model, 'nowhere'",
            f"Failed to load model: {WRAPPED}failed to load 'nowhere', failed to poll from model repository: "
            "it is in no model repository",
        ),
        (
            "pb_utils.load_model, 'spare', '', {'file:1/model.py': b''}",
            f"Failed to load model: {WRAPPED}Load parameter 'config' must be specified for model file override",
        ),
        (
            "pb_utils.load_model, 'spare', '', 'text'",
            "failed to load model 'spare', files should be a dictionary of file paths and file contents",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused(science, code, message):
    assert science.run(f"return refused({code})") == message


def test_why_a_model_does_not_load_is_told(science):
    told = science.run("return refused(pb_utils.load_model, 'broken')")
    assert told.startswith(f"Failed to load model: {WRAPPED}")
    assert "ValueError: no" in told


def test_a_model_that_is_not_ready_is_not_called(science):
    science.run("refused(pb_utils.load_model, 'broken')")
    assert science.run("return told(call('broken', {'X': [1]}, ['Y'], model_version=1).exec())") == {
        "error": BEGIN.format("broken")
        + "Failed for execute the inference request. Model 'broken' is not ready.",
        "code": "UNAVAILABLE",
    }


def test_a_model_loads_others_while_it_is_being_loaded_but_not_itself(science, repository):
    more = 'parameters {{ key: "initialize" value {{ string_value: "{}" }} }}'
    python_model(repository, "opener", lab(), CODE, more=more.format("pb_utils.load_model('opened')"))
    python_model(repository, "narcissus", lab(), CODE, more=more.format("pb_utils.load_model('narcissus')"))
    science.client.load_model("opener")
    assert science.client.is_model_ready("opened")
    with pytest.raises(InferenceServerException, match="narcissus -> narcissus"):
        science.client.load_model("narcissus")


def test_nor_for_an_ensemble_of_itself_whichever_is_loaded_first(repository, science):
    """Either would have to wait for the other."""
    load = 'parameters { key: "initialize" value { string_value: "pb_utils.load_model(\'shell\')" } }'
    python_model(repository, "kernel", lab(), CODE, more=load)
    ports = " ".join(
        f'{side}_map {{ key: "{name}" value: "{name}" }}'
        for side, name in (("input", "CODE"), ("output", "RESULT"))
    )
    (repository / "shell" / "1").mkdir(parents=True)
    (repository / "shell" / "config.pbtxt").write_text(
        f'platform: "ensemble" {CODE} ensemble_scheduling {{ step {{ model_name: "kernel" model_version: -1 {ports} }} }}'
    )
    with pytest.raises(
        InferenceServerException, match="'shell' depends on 'kernel' which has no loaded version"
    ):
        science.client.load_model("kernel", client_timeout=30)
    with pytest.raises(
        InferenceServerException, match="'shell' depends on 'kernel' which has no loaded version"
    ):
        science.client.load_model("shell", client_timeout=30)


def test_a_model_can_reload_itself(science):
    science.run("KEPT['a'] = 1; pb_utils.load_model('lab'); return 1")
    assert science.run("return len(KEPT)") == 1  # nothing about it has changed


# -- section 9: metrics

COUNTER = "pb_utils.MetricFamily('lab_things', 'What there is', pb_utils.MetricFamily.COUNTER)"


def scraped(port: int) -> list[str]:
    """Return the lines of the custom metric."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return [line for line in answer.read().decode().splitlines() if "lab_things" in line]


def test_a_model_counts_and_its_series_are_shared_until_nobody_holds_them(science, metrics_port):
    for model in ("lab", "lab2"):
        code = f"""
            KEPT["family"] = {COUNTER}
            KEPT["metric"] = KEPT["family"].Metric(labels={{"b": "2", "a": "1"}})
            KEPT["metric"].increment(2)
            return KEPT["metric"].value()
        """
        science.run(code, model=model)
    assert scraped(metrics_port) == [
        "# HELP lab_things What there is",
        "# TYPE lab_things counter",
        'lab_things{a="1",b="2"} 4',
    ]
    code = "KEPT.clear(); return 1"
    science.run(code)
    assert len(scraped(metrics_port)) == 3
    science.run(code, model="lab2")
    science.run("return 1", model="lab2")
    assert scraped(metrics_port) == []


def test_what_a_dead_worker_held_is_gone(science, metrics_port):
    science.run(
        f"KEPT['f'] = {COUNTER}; KEPT['m'] = KEPT['f'].Metric(); KEPT['m'].increment(1); return 1",
        model="lab2",
    )
    assert scraped(metrics_port)[-1] == "lab_things 1"
    with pytest.raises(InferenceServerException):
        science.run("os._exit(3)", model="lab2")
    assert scraped(metrics_port) == []
    for _ in range(400):
        if science.client.is_model_ready("lab2"):
            break
        threading.Event().wait(0.05)
    assert science.run("return len(KEPT)", model="lab2", client_timeout=20) == 0


def test_a_metric_that_the_server_has_is_refused(science):
    code = "return refused(pb_utils.MetricFamily, 'nv_inference_count', '', pb_utils.MetricFamily.COUNTER)"
    assert science.run(code) == (
        f"Error when creating MetricFamily: {WRAPPED}metric names like 'nv_inference_count' are the server's own; choose"
        " another prefix"
    )
