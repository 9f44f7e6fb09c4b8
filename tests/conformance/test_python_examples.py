"""Triton's public examples of Python models, rewritten as our models and called by Triton's clients."""

import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.support.confined import GUARD, confinements
from tests.support.flavours import Addresses, process
from tests.support.triton_inputs import inputs

PATIENCE = 30.0  # seconds
HEAD = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

"""


def ports(**tensors):
    """Return the lines of `auto_complete_config` that add input={name: (datatype, dims)}, output=…"""
    return "".join(
        f"        config.add_{side}({{'name': {name!r}, 'data_type': 'TYPE_{kind}', 'dims': {dims}}})\n"
        for side, group in tensors.items()
        for name, (kind, dims) in group.items()
    )


def model(body, *, more="", before="", **tensors):
    """Return a `model.py` that completes its own configuration."""
    return (
        f"{HEAD}{dedent(before)}class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
        f"{ports(**tensors)}{more}        return config\n\n{dedent(body).replace(chr(10), chr(10) + '    ')}"
    )


BATCHES = "        config.set_max_batch_size(8)\n        config.set_dynamic_batching()\n"
DECOUPLED = "        config.set_model_transaction_policy({'decoupled': True})\n"
PAIR = {
    "input": {"INPUT0": ("FP32", [4]), "INPUT1": ("FP32", [4])},
    "output": {"OUTPUT0": ("FP32", [4]), "OUTPUT1": ("FP32", [4])},
}
ONE = {"input": {"IN": ("INT32", [1])}, "output": {"OUT": ("INT32", [1])}}

ADD_SUB = model(
    """
    def initialize(self, args):
        config = json.loads(args["model_config"])
        first = pb_utils.get_output_config_by_name(config, "OUTPUT0")
        self.kind = pb_utils.triton_string_to_numpy(first["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [("OUTPUT0", a + b), ("OUTPUT1", a - b)]
            tensors = [pb_utils.Tensor(name, array.astype(self.kind)) for name, array in outputs]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
    """,
    more=BATCHES,
    **PAIR,
)
DLPACK = model(
    """
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        a, b = (torch.from_dlpack(tensor.to_dlpack()) for tensor in request.inputs())
        outputs = [pb_utils.Tensor.from_dlpack("OUTPUT0", torch.utils.dlpack.to_dlpack(a + b))]
        outputs.append(pb_utils.Tensor.from_dlpack("OUTPUT1", a - b))
        assert all(tensor.is_cpu() for tensor in outputs)
        return pb_utils.InferenceResponse(outputs)
    """,
    before="import torch\n\n\n",
    more=BATCHES,
    **PAIR,
)
ERRORS = model(
    """
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if value.item() < 0:
            raise ValueError(f"{value.item()} is below zero")
        if value.item() > 100:
            error = pb_utils.TritonError(f"{value.item()} is too large", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)], parameters={"value": int(value.item())})
    """,
    more=BATCHES,
    **ONE,
)
REPEAT = model(
    """
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.repeat, args=(request.get_response_sender(), request.inputs())).start()

    def repeat(self, sender, inputs):
        for index, value in enumerate(inputs[0].as_numpy()):
            outputs = [pb_utils.Tensor("OUT", np.array([value])), pb_utils.Tensor("IDX", np.array([index], np.uint32))]
            sender.send(pb_utils.InferenceResponse(outputs))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """,
    before="import threading\n\n\n",
    more=DECOUPLED,
    input={"IN": ("INT32", [-1])},
    output={"OUT": ("INT32", [1]), "IDX": ("UINT32", [1])},
)
SQUARE = model(
    """
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            value = request.inputs()[0].as_numpy()
            for _ in range(value.item()):
                await asyncio.sleep(0)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """,
    before="import asyncio\n\n\n",
    more=DECOUPLED,
    **ONE,
)
PREPROCESS = model(
    """
    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, files):
        pictures = [self.decode(file) for file in files.ravel()]
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", np.stack(pictures))])

    def decode(self, file):
        picture = Image.open(io.BytesIO(file)).convert("RGB").resize((8, 8), Image.Resampling.BOX)
        return (np.asarray(picture, np.float32) / 255.0).transpose(2, 0, 1)
    """,
    before="import io\n\nfrom PIL import Image\n\n\n",
    more=BATCHES,
    input={"FILE": ("STRING", [1])},
    output={"PIXELS": ("FP32", [3, 8, 8])},
)
RESCHEDULE = model(
    """
    def initialize(self, args):
        self.runs = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        wanted = request.inputs()[0].as_numpy()
        key = request.correlation_id() or request.request_id()
        self.runs[key] = self.runs.get(key, 0) + 1
        if self.runs[key] < wanted.item():
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        runs = self.runs.pop(key)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[runs]], np.int32))])
    """,
    more="        config.set_max_batch_size(4)\n",
    **ONE,
)
MOODY = model(
    """
    def initialize(self, args):
        self.mood = os.path.join(args["model_repository"], "mood")

    def is_ready(self):
        with open(self.mood) as file:
            return {"good": True, "bad": False}.get(file.read(), "neither")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
    """,
    **ONE,
)
SHOWN = """
    def initialize(self, args):
        pb_utils.Logger.log_info("a line from initialize")
        self.args = args
        {initialize}

    def execute(self, requests):
        pb_utils.Logger.log_verbose("a verbose line from execute")
        text = json.dumps(self.args)
        shown = [np.full(r.inputs()[0].shape(), text, object) for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("ARGS", each)]) for each in shown]

    def finalize(self):
        pb_utils.Logger.log_warn("a line from finalize")
"""
ARGS = {"input": {"IN": ("INT32", [1])}, "output": {"ARGS": ("STRING", [1])}}
SLOW = "import time\n        time.sleep(1.5)"
TOGETHER = model(
    """
    def initialize(self, args):
        self.under_way = self.most = 0

    async def execute(self, requests):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        while self.most < 4:
            await asyncio.sleep(0.001)
        self.under_way -= 1
        most = np.array([self.most], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", most)]) for _ in requests]
    """,
    before="import asyncio\n\n\n",
    **ONE,
)
MORTAL = model(
    """
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy().item() < 0:
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
    """,
    **ONE,
)
SCALING = model(
    """
    def initialize(self, args):
        import beside_the_backend
        with open(os.path.join(args["model_repository"], args["model_version"], "factor.json")) as file:
            self.factor = json.load(file) * beside_the_backend.ONE
        self.directory = pb_utils.get_model_dir()

    def execute(self, requests):
        assert os.path.exists(os.path.join(self.directory, "factor.json"))
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, value):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value * np.int32(self.factor))])
    """,
    **ONE,
)
GROUPS = (
    "instance_group [ { name: 'left' count: 2 kind: KIND_CPU }, { name: 'right' count: 1 kind: KIND_MODEL } ]"
)


@dataclass(frozen=True)
class Started:
    """A running server, and where its models and its log are."""

    addresses: Addresses
    repository: Path
    log: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("python")
    repository, backends = folder / "models", folder / "backends"

    def write(name, source, config='backend: "python"\n', filename="model.py"):
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        (directory.parent / "config.pbtxt").write_text(config)
        if source:
            (directory / filename).write_text(source)
        return directory

    python = 'backend: "python"\n'
    write("add_sub", ADD_SUB, config="")
    write("dlpack", DLPACK)
    write("errors", ERRORS)
    write("repeat", REPEAT)
    write("square", SQUARE)
    write("preprocess", PREPROCESS)
    write("reschedule", RESCHEDULE, python + "sequence_batching { iterative_sequence: true oldest { } }\n")
    (write("moody", MOODY).parent / "mood").write_text("good")
    write("shown", model(SHOWN.format(initialize=""), **ARGS), python + GROUPS.replace("'", '"'))
    write("slow_start", model(SHOWN.format(initialize=SLOW), **ARGS))
    concurrency = 'parameters { key: "tritium.concurrency" value { string_value: "4" } }\n'
    write("together", TOGETHER, python + concurrency)
    write("mortal", MORTAL, python + 'default_model_filename: "alias.py"\n', filename="alias.py")
    for factor in (2, 3):
        directory = write(f"times_{factor}", "", 'backend: "scaling"\n')
        (directory / "factor.json").write_text(str(factor))
    (backends / "scaling").mkdir(parents=True)
    (backends / "scaling" / "model.py").write_text(SCALING)
    (backends / "scaling" / "beside_the_backend.py").write_text("ONE = 1\n")
    flavour = process(
        "engine",
        "serve",
        TRITIUM_BACKEND_DIRECTORY=str(backends),
        TRITIUM_BACKEND_CONFIG="python,stub-timeout-seconds=1",
        said=folder / "log",
    )
    with flavour(repository) as addresses:
        yield Started(addresses, repository, folder / "log")


@pytest.fixture
def http(server):
    with http_client.InferenceServerClient(server.addresses.http, network_timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def grpc(server):
    with grpc_client.InferenceServerClient(server.addresses.grpc) as client:
        yield client


def number(value, *, batched=False):
    return np.full((1, 1) if batched else (1,), value, np.int32)


@pytest.mark.parametrize("name", ["add_sub", "dlpack"])
def test_sums_and_differences_of_many_clients(server, name):
    def ask(index):
        a, b = np.full((1, 4), index, "f4"), np.arange(4, dtype="f4")[None]
        with grpc_client.InferenceServerClient(server.addresses.grpc) as client:
            answer = client.infer(name, inputs(grpc_client, INPUT0=a, INPUT1=b), request_id=str(index))
        assert answer.get_response().id == str(index)
        assert answer.as_numpy("OUTPUT0").tolist() == (a + b).tolist()
        assert answer.as_numpy("OUTPUT1").tolist() == (a - b).tolist()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(40)))


def test_only_the_outputs_that_were_asked_for_come(http):
    array = np.ones((2, 4), "f4")
    answer = http.infer(
        "add_sub",
        inputs(http_client, INPUT0=array, INPUT1=array),
        outputs=[http_client.InferRequestedOutput("OUTPUT1")],
    )
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["OUTPUT1"]


def test_a_model_completes_its_own_configuration(http):
    config = http.get_model_config("add_sub")
    assert (config["backend"], config["max_batch_size"], "dynamic_batching" in config) == ("python", 8, True)
    assert [each["name"] for each in config["input"]] == ["INPUT0", "INPUT1"]
    metadata = http.get_model_metadata("repeat")
    assert metadata["inputs"] == [{"name": "IN", "datatype": "INT32", "shape": [-1]}]


def test_each_request_has_its_own_error(http):
    assert http.infer("errors", inputs(http_client, IN=number(7, batched=True))).get_response()[
        "parameters"
    ] == {"value": 7}
    with pytest.raises(InferenceServerException) as refused:
        http.infer("errors", inputs(http_client, IN=number(101, batched=True)))
    assert (refused.value.status(), refused.value.message()) == ("400", "101 is too large")
    with pytest.raises(InferenceServerException) as failed:
        http.infer("errors", inputs(http_client, IN=number(-1, batched=True)))
    message = failed.value.message()
    assert message.startswith(
        "Failed to process the request(s) for model 'errors_0', message: ValueError: -1 is below"
    )
    assert "\n\nAt:\n" in message
    assert "model.py(" in message


def stream(client, name, array):
    """Return every response to one request, up to the final one."""
    answers: Queue[Any] = Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    client.async_stream_infer(
        name, inputs(grpc_client, IN=array), enable_empty_final_response=True, request_id="r"
    )
    found: list[Any] = []
    while True:
        result, error = answers.get(timeout=PATIENCE)
        assert error is None
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            client.stop_stream()
            return found
        found.append(result)


def test_a_decoupled_model_repeats_its_input_from_threads(grpc):
    values = np.array([4, 2, 0, 1], np.int32)
    answers = stream(grpc, "repeat", values)
    assert [each.as_numpy("OUT").item() for each in answers] == values.tolist()
    assert [each.as_numpy("IDX").item() for each in answers] == [0, 1, 2, 3]
    assert stream(grpc, "repeat", np.zeros(0, np.int32)) == []


@pytest.mark.parametrize("times", [0, 1, 100])
def test_a_decoupled_coroutine_answers_as_often_as_it_likes(grpc, times):
    assert [each.as_numpy("OUT").item() for each in stream(grpc, "square", number(times))] == [times] * times


@pytest.mark.parametrize(("form", "exact"), [("PNG", True), ("JPEG", False)])
def test_a_model_decodes_pictures(http, form, exact):
    halves = np.zeros((32, 48, 3), np.uint8)
    halves[:, :24] = (255, 0, 0)
    halves[:, 24:] = (0, 0, 255)
    file = io.BytesIO()
    Image.fromarray(halves).save(file, form)
    answer = http.infer("preprocess", inputs(http_client, FILE=np.array([[file.getvalue()]] * 2, object)))
    pixels = answer.as_numpy("PIXELS")
    assert pixels.shape == (2, 3, 8, 8)
    wanted = np.zeros((3, 8, 8), "f4")
    wanted[0, :, :4] = wanted[2, :, 4:] = 1
    for picture in pixels:
        assert np.allclose(picture, wanted, atol=0 if exact else 0.2)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_request_is_rescheduled_until_it_is_done(grpc, times):
    answer = grpc.infer(
        "reschedule", inputs(grpc_client, IN=number(times, batched=True)), request_id=f"r{times}"
    )
    assert answer.as_numpy("OUT").item() == times


def test_a_model_says_itself_whether_it_is_ready(server, http):
    mood = server.repository / "moody" / "mood"
    said = []
    for text in ("good", "bad", "odd", "good"):
        mood.write_text(text)
        said.append(http.is_model_ready("moody"))
    assert said == [True, False, False, True]


def test_instances_know_their_names_and_kinds(server):
    def ask(_):
        with http_client.InferenceServerClient(server.addresses.http) as client:
            return json.loads(
                client.infer("shown", inputs(http_client, IN=number(1))).as_numpy("ARGS").item()
            )

    seen = {}
    for _ in range(50):
        with ThreadPoolExecutor(6) as pool:
            for args in pool.map(ask, range(12)):
                seen[args["model_instance_name"]] = args
        if len(seen) == 3:
            break
    kinds = {name: args["model_instance_kind"] for name, args in seen.items()}
    assert kinds == {"left_0": "CPU", "left_1": "CPU", "right_0": "MODEL"}
    for args in seen.values():
        assert (args["model_name"], args["model_version"], args["model_instance_device_id"]) == (
            "shown",
            "1",
            "0",
        )
        assert args["model_repository"] == str(server.repository / "shown")
        config = json.loads(args["model_config"])
        assert (config["name"], config["max_batch_size"], config["input"][0]["dims"]) == ("shown", 0, [1])


def test_a_slow_start_is_waited_for(http):
    """`stub-timeout-seconds` is 1 here, and `initialize` takes longer."""
    assert http.infer("slow_start", inputs(http_client, IN=number(1))).as_numpy("ARGS").shape == (1,)


def logged(log):
    """Return (level, what, method) of every line that a model `shown` has logged."""
    line = r"^.*?([IWEV])\d{4} .*model\.py:\d+\] a (.*?) from (\w+)"
    return set(re.findall(line, log.read_text(), re.MULTILINE))


def test_what_a_model_logs_is_in_the_servers_log_at_its_level(server, http, tmp_path):
    http.infer("shown", inputs(http_client, IN=number(1)))
    assert logged(server.log) == {("I", "line", "initialize")}

    directory = tmp_path / "models" / "shown" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(model(SHOWN.format(initialize=""), **ARGS))
    flavour = process("engine", "serve", said=tmp_path / "log", TRITIUM_LOG_VERBOSE="1")
    with flavour(tmp_path / "models") as addresses:
        with http_client.InferenceServerClient(addresses.http) as client:
            client.infer("shown", inputs(http_client, IN=number(1)))
    levels = {method: level for level, _, method in logged(tmp_path / "log")}
    assert levels.pop("execute") in "IV"
    assert levels == {"initialize": "I", "finalize": "W"}


def test_batches_of_a_model_with_concurrency_are_under_way_at_once(server):
    def ask(_):
        with http_client.InferenceServerClient(server.addresses.http, network_timeout=PATIENCE) as client:
            return client.infer("together", inputs(http_client, IN=number(1))).as_numpy("OUT").item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [4] * 4


def test_a_model_that_ends_its_process_is_started_again(http):
    with pytest.raises(InferenceServerException) as failed:
        http.infer("mortal", inputs(http_client, IN=number(-1)))
    assert "mortal_0" in failed.value.message()
    for _ in range(600):
        try:
            assert http.infer("mortal", inputs(http_client, IN=number(3))).as_numpy("OUT").item() == 3
            break
        except InferenceServerException:
            threading.Event().wait(0.05)
    else:
        raise AssertionError("it was not started again")


@pytest.mark.parametrize("factor", [2, 3])
def test_a_backend_written_in_python_serves_models_that_have_no_code(http, factor):
    answer = http.infer(f"times_{factor}", inputs(http_client, IN=number(7)))
    assert answer.as_numpy("OUT").item() == 7 * factor
    assert http.get_model_config(f"times_{factor}")["backend"] == "scaling"


def test_all_of_them_run_in_the_guard(server):
    assert confinements(server.log) == {GUARD}
