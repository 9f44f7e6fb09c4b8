"""Every example model against a real server, through tritonclient as PyPI has it.

Over HTTP the tests check all answers; over gRPC, that they are the same to the byte.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import trio

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.http as triton
    from google.protobuf.json_format import ParseDict
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from tests.support.confined import GUARD, confined, confinements
    from tests.support.flavours import process
    from tests.support.grpc_clients import Ask, Tensor, TritonClient
    from tests.support.interpreters import OTHERS, shared_interpreter
    from tests.survival.test_survival_escapes import server_of

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "models"
EVERY = sorted(each.name for each in MODELS.iterdir() if each.is_dir())
# Models that answer a request by itself.
NAMES = [name for name in EVERY if not name.startswith(("sequence_", "repeat_"))]
DIGIT = np.array(
    json.loads((ROOT / "examples" / "clients" / "digit.json").read_text())["inputs"][0]["data"], np.float32
).reshape(-1, 64)[:1]

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The log of the server."""
    return tmp_path_factory.mktemp("examples") / "log"


@pytest.fixture(scope="module")
def addresses(log):
    """`tritium serve` over the examples."""
    with process("engine", "serve", said=log)(MODELS) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(addresses):
    return addresses.http


@pytest.fixture(scope="module")
def grpc_server(addresses):
    return addresses.grpc


@pytest.fixture
def grpc_client(grpc_server):
    opened = TritonClient(grpc_server)
    yield opened
    opened.close()


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server, concurrency=4, network_timeout=120) as opened:
        yield opened


def a_case(name):
    """Inputs for a model and what the model itself gives for them, run here and directly."""
    rng = np.random.default_rng(7)
    if name in {"add_sub", "add_sub_onnx"}:
        a, b = rng.normal(size=(2, 3, 16)).astype(np.float32)
        return {"INPUT0": a, "INPUT1": b}, {"OUTPUT0": a + b, "OUTPUT1": a - b}
    if name == "add_sub_chain":
        a, b = rng.normal(size=(2, 3, 16)).astype(np.float32)
        return {"INPUT0": a, "INPUT1": b}, {"OUTPUT0": 2 * (a + b), "OUTPUT1": 2 * (a - b)}
    if name == "identity_fp32":
        values = rng.normal(size=(2, 37)).astype(np.float32)
        return {"INPUT0": values}, {"OUTPUT0": values}
    if name == "strings":
        words = np.array([[b"abc", "größer".encode()], [b"", b"x" * 300]], dtype=object)
        upper = [[word.decode().upper().encode() for word in row] for row in words]
        return {"TEXT": words}, {"UPPER": np.array(upper, dtype=object)}
    images = np.concatenate([DIGIT, rng.integers(0, 17, size=(4, 64)).astype(np.float32)])
    artifacts = MODELS / name / "1"
    if name == "digits_onnx":
        session = onnxruntime.InferenceSession(artifacts / "model.onnx", providers=["CPUExecutionProvider"])
        return {"IMAGE": images}, {"SCORES": session.run(["SCORES"], {"IMAGE": images})[0]}
    if name == "digits_torchscript":
        module = torch.jit.load(artifacts / "model.pt")
    elif name == "digits_pt2":
        module = torch.export.load(artifacts / "model.pt2").module()
    elif name == "digits_pipeline":
        pixels = np.round(images[0] * (255 / 16)).astype(np.uint8)  # it takes what image files hold
        session = onnxruntime.InferenceSession(MODELS / "digits_onnx" / "1" / "model.onnx")
        scores = session.run(["SCORES"], {"IMAGE": pixels[None] * np.float32(16 / 255)})[0][0]
        label = np.array([str(scores.argmax()).encode()], dtype=object)
        return {"IMAGE": pixels}, {"LABEL": label, "PROBABILITIES": scores}
    else:
        raise AssertionError(f"no case for the example model {name}")
    with torch.inference_mode():
        return {"INPUT__0": images}, {"OUTPUT__0": module(torch.from_numpy(images)).numpy()}


def asked(inputs, *, binary):
    tensors = []
    for name, array in inputs.items():
        datatype = triton.InferInput(name, array.shape, _datatype(array))
        datatype.set_data_from_numpy(array, binary_data=binary)
        tensors.append(datatype)
    return tensors


_NAMES = {"<f4": "FP32", "|u1": "UINT8", "|O": "BYTES"}


def _datatype(array):
    return _NAMES[array.dtype.str]


def check(result, expected):
    for name, array in expected.items():
        found = result.as_numpy(name)
        assert found.shape == array.shape
        if array.dtype == object:
            assert [_bytes(each) for each in found.ravel()] == list(array.ravel())
        else:
            np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5)


def _bytes(element):
    return element.encode() if isinstance(element, str) else element


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_answers_equal_the_models_own(client, name, binary):
    inputs, expected = a_case(name)
    outputs = [triton.InferRequestedOutput(each, binary_data=binary) for each in expected]
    check(client.infer(name, asked(inputs, binary=binary), outputs=outputs, request_id="r1"), expected)


@pytest.mark.parametrize("name", NAMES)
def test_metadata_config_readiness_and_statistics_are_told(client, name):
    inputs, expected = a_case(name)
    client.infer(name, asked(inputs, binary=True))
    assert client.is_model_ready(name)
    metadata = client.get_model_metadata(name)
    assert metadata["name"] == name
    assert {each["name"] for each in metadata["inputs"]} == set(inputs)
    assert {each["name"] for each in metadata["outputs"]} == set(expected)
    config = client.get_model_config(name)
    assert config["name"] == name
    (statistics,) = client.get_inference_statistics(name)["model_stats"]
    assert statistics["inference_stats"]["success"]["count"] >= 1
    assert statistics["inference_stats"]["fail"]["count"] == 0


def test_the_server_is_live_ready_and_lists_its_models(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["name"] == "triton"
    assert [(each["name"], each["state"]) for each in client.get_model_repository_index()] == [
        (name, "READY") for name in EVERY
    ]


def test_each_sequence_has_its_own_sum(client):
    def step(sequence, value, *, start=False, end=False):
        tensor = triton.InferInput("INPUT", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
        result = client.infer(
            "sequence_accumulate",
            [tensor],
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )
        return result.as_numpy("OUTPUT").item()

    assert [step(1, 1, start=True), step("one", 10, start=True), step(1, 2), step("one", 20, end=True)] == [
        1,
        10,
        3,
        30,
    ]
    assert step(1, 3, end=True) == 6


@pytest.mark.parametrize("name", ["digits_onnx", "digits_torchscript", "digits_pt2"])
def test_classification_names_the_digit(client, name):
    inputs, expected = a_case(name)
    (output,) = expected
    wanted = triton.InferRequestedOutput(output, class_count=3)
    best = client.infer(name, asked(inputs, binary=True), outputs=[wanted]).as_numpy(output)[0][0]
    score, index, label = best.decode().split(":")
    assert int(index) == expected[output][0].argmax()
    assert label == index
    assert float(score) == pytest.approx(float(expected[output][0].max()), abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
def test_grpc_and_http_give_the_same_bytes(client, grpc_client, name, streamed):
    inputs, expected = a_case(name)
    ask = Ask(model=name, inputs={key: Tensor(_datatype(array), array) for key, array in inputs.items()})
    if streamed:
        [answer] = grpc_client.stream([ask])
    else:
        answer = grpc_client.infer(ask)
    assert set(answer.outputs) == set(expected)
    outputs = [triton.InferRequestedOutput(each, binary_data=True) for each in expected]
    over_http = client.infer(name, asked(inputs, binary=True), outputs=outputs)
    for each in expected:
        here, there = answer.outputs[each], over_http.as_numpy(each)
        assert (here.dtype, here.shape) == (there.dtype, there.shape)
        assert (here.tolist() if here.dtype == object else here.tobytes()) == (
            there.tolist() if there.dtype == object else there.tobytes()
        )


@pytest.mark.parametrize("name", NAMES)
def test_grpc_and_http_show_the_same_configuration_and_metadata(client, grpc_client, name):
    told = grpc_client.describe("ModelConfig", name=name)["config"]
    shown = client.get_model_config(name)
    assert ParseDict(told, ModelConfig()) == ParseDict(shown, ModelConfig())
    metadata = grpc_client.describe("ModelMetadata", name=name)
    for tensor in metadata["inputs"] + metadata["outputs"]:
        tensor["shape"] = [int(dim) for dim in tensor["shape"]]  # protobuf's JSON has int64 as strings
    assert metadata == client.get_model_metadata(name)


def test_the_grpc_example_client_prints_real_sums(grpc_server):
    path = ROOT / "examples" / "clients" / "add_sub_grpclib.py"
    done = subprocess.run(
        [sys.executable, path, grpc_server],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is ready" in done.stdout
    assert "sum        2 3 4 5" in done.stdout
    assert "request '2' to add_sub 1" in done.stdout


@pytest.mark.parametrize("program", ["digits_tritonclient.py", "add_sub_tritonclient.py", "digits_curl.sh"])
def test_the_example_clients_print_real_predictions(server, program):
    path = ROOT / "examples" / "clients" / program
    command = ["sh", path] if path.suffix == ".sh" else [sys.executable, path]
    done = subprocess.run([*command, server], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "7" in done.stdout if "digits" in program else done.stdout


def test_every_example_runs_in_the_guard(addresses, log):
    assert confinements(log) == {GUARD}


@pytest.mark.long
def test_another_user_serves_every_example_in_the_guard(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can start a server of another user")
    server = server_of(OTHERS, shared_interpreter()).start(MODELS, tmp_path / "log", "--spare-workers=0")
    try:
        trio.run(server.wait_ready)
        with triton.InferenceServerClient(server.url, network_timeout=120) as client:
            for name in NAMES:
                inputs, expected = a_case(name)
                check(client.infer(name, asked(inputs, binary=True)), expected)
        assert {confined(line["pid"]) for line in server.logged("worker_started")} == {GUARD}
    finally:
        print(server.last_words())
        server.kill_all()
