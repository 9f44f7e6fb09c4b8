"""A server with TensorRT plans, on stand-ins for TensorRT and for the driver."""

import json
import urllib.request

import numpy as np
import pytest
import tritonclient.http

from tests.support.engines import tensorrt
from tests.support.engines.tensorrt import plan, tensor
from tests.support.fake_gpu import built, copies
from tests.support.gpu_server import PACKAGES, ROOT, serving

pytestmark = pytest.mark.slow

WIDTH = 1024
ROW = 4 * WIDTH  # bytes
DOUBLE = plan(
    "double", tensor("X", [-1, WIDTH], [(1, WIDTH), (4, WIDTH), (8, WIDTH)]), tensor("Y", [-1, WIDTH])
)
ON_ONE_GPU = 'backend: "tensorrt" instance_group { kind: KIND_GPU count: 1 gpus: 0 }'
ENSEMBLE = """
    platform: "ensemble" max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: 1024 }
    output { name: "Y" data_type: TYPE_FP32 dims: 1024 }
    parameters { key: "tritium.gpu_tensors" value { string_value: "on" } }
    ensemble_scheduling { step [
      { model_name: "first" model_version: -1
        input_map { key: "X" value: "X" } output_map { key: "Y" value: "mid" } },
      { model_name: "second" model_version: -1
        input_map { key: "X" value: "mid" } output_map { key: "Y" value: "Y" } } ] }
"""
OLD = plan("double", tensor("X", [-1, 4], [(1, 4)] * 3), tensor("Y", [-1, 4]), version="10.3.0.26")
MODELS = {
    "first": (ON_ONE_GPU, DOUBLE),
    "second": (ON_ONE_GPU, DOUBLE),
    "whole": (ENSEMBLE, None),
    "unconfigured": (None, DOUBLE),
    "old": (ON_ONE_GPU, OLD),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorrt")


@pytest.fixture(scope="module")
def environ(folder):
    return {**built(folder), PACKAGES: str(ROOT / "tests" / "support" / "engines")}


@pytest.fixture(scope="module")
def server(folder, environ):
    repository = folder / "models"
    for name, (config, content) in MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        if config is not None:
            (repository / name / "config.pbtxt").write_text(config)
        if content is not None:
            (version / "model.plan").write_bytes(content)
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with serving(repository, folder / "server", *flags, environ=environ) as server:
        yield server


def ask(server, name, rows):
    x = np.arange(rows * WIDTH, dtype="f4").reshape(rows, WIDTH)
    with tritonclient.http.InferenceServerClient(server.url) as triton:
        given = triton_input(x)
        return x, triton.infer(name, [given]).as_numpy("Y")


def triton_input(x):
    given = tritonclient.http.InferInput("X", x.shape, "FP32")
    given.set_data_from_numpy(x)
    return given


def test_a_plan_is_served_without_a_configuration(server):
    with urllib.request.urlopen(f"http://{server.url}/v2/models/unconfigured/config") as answer:
        config = json.load(answer)
    assert (config["backend"], config["platform"], config["max_batch_size"]) == (
        "tensorrt",
        "tensorrt_plan",
        8,
    )
    x, y = ask(server, "unconfigured", 3)
    assert np.array_equal(y, x * 2)


def test_between_two_engines_a_tensor_stays_on_the_gpu(server, environ):
    before = len(copies(environ))
    x, y = ask(server, "whole", 3)
    assert np.array_equal(y, x * 4)
    kinds = [each.kind for each in copies(environ)[before:] if each.nbytes == 3 * ROW]
    assert (kinds.count("HtoD"), kinds.count("DtoH")) == (1, 1)  # the client's own


def test_a_plan_of_another_version_does_not_load_and_says_why(server):
    request = urllib.request.Request(f"http://{server.url}/v2/repository/index", method="POST", data=b"")
    with urllib.request.urlopen(request) as answer:
        reasons = {each["name"]: each.get("reason", "") for each in json.load(answer)}
    assert "TensorRT 10.3.0.26 has built the plan" in reasons["old"]
    assert tensorrt.__version__ in reasons["old"]
