"""SageMaker's API at a real server: models in folders as the platform puts them, clients from outside.

The platform's router stands between its clients and a container. For boto3, which speaks to the router, a
hook does what the router does: it puts the container's path in place of the endpoint's.
"""

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import boto3
import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from botocore.config import Config

from tests.support.operators import DOUBLE, DOUBLE_CONFIG, Served, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

MIME = "application/vnd.sagemaker-triton.binary+json;json-header-size="
TARGET = "X-Amzn-SageMaker-Target-Model"

STEP = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "step" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "M" } },
  { model_name: "step" model_version: -1
    input_map { key: "X" value: "M" } output_map { key: "Y" value: "Y" } }
] }
"""
NO_MEMORY = """
class TritonPythonModel:
    def initialize(self, args):
        raise MemoryError("no room for the weights")
"""
SHORT = DOUBLE.replace(
    "        return [\n",
    '        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")\n        return [\n',
)
BROKEN = (
    "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('it is broken')\n"
)


def write_models(root: Path) -> None:
    """Write a folder for each model, by its hash."""
    write_model(root / "h1", "model")
    write_model(root / "named", "model", config=DOUBLE_CONFIG + 'name: "what its author called it"\n')
    write_model(root / "inside" / "model", "double")
    write_model(root / "composed" / "model", "step", config=STEP)
    write_model(root / "too" / "model", "step", code=DOUBLE.replace("* 2", "* 3"), config=STEP)
    for each in ("composed", "too"):
        folder = root / each / "model" / "whole"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(ENSEMBLE)
    write_model(root / "large", "model", code=NO_MEMORY)
    write_model(root / "short", "model", code=SHORT)
    write_model(root / "broken", "model", code=BROKEN)
    (root / "empty" / "model").mkdir(parents=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ml") / "models"
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, root) -> Iterator[Served]:
    """A server as `serve` starts one for an endpoint with many models."""
    folder = tmp_path_factory.mktemp("endpoint")
    (folder / "none").mkdir()
    flags = (
        f"--model-repository={folder / 'none'}",
        "--model-control-mode=explicit",
        "--model-namespacing=true",
        "--allow-sagemaker=true",
        "--sagemaker-port=0",
        f"--sagemaker-models-directory={root}",
    )
    with serving(folder / "said", *flags) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def url(server) -> str:
    return f"http://{server.address('Sagemaker HTTPService')}"


@pytest.fixture(scope="module")
def client(url) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def load(client, root):
    """Load models, which are unloaded at the end: by hash, folder and name."""
    keys = []

    def load(key, *, url=None, name=None):
        body = {"model_name": key, "url": url or f"{root}/{key}/model"}
        answer = client.post("/models", json=body, headers={TARGET: name} if name else {})
        if answer.status_code == 200:
            keys.append(key)
        return answer

    yield load
    for key in keys:
        assert client.delete(f"/models/{key}").status_code in (200, 404)


def until(holds):
    """Wait until it holds."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def body_of(*values):
    return {"inputs": [{"name": "X", "datatype": "FP32", "shape": [len(values)], "data": values}]}


def told(answer):
    return answer.status_code, answer.json()["outputs"][0]["data"] if answer.is_success else answer.json()


def test_a_model_comes_answers_and_goes(client, load, root):
    assert client.get("/ping").status_code == 200
    assert client.get("/models").json() == {"models": []}
    assert (load("h1").status_code, load("h1").status_code) == (200, 409)
    line = {"modelName": "h1", "modelUrl": f"{root}/h1"}
    assert client.get("/models").json() == {"models": [line]}
    assert client.get("/models/h1").json() == line
    assert told(client.post("/models/h1/invoke", json=body_of(1, 2))) == (200, [2, 4])
    answer = client.delete("/models/h1")
    assert (answer.status_code, answer.content) == (200, b"")
    assert client.delete("/models/h1").status_code == 404
    assert client.post("/models/h1/invoke", json=body_of(1)).status_code == 404
    assert client.get("/models").json() == {"models": []}
    # It may come back.
    assert load("h1").status_code == 200
    assert told(client.post("/models/h1/invoke", json=body_of(3))) == (200, [6])


def test_a_model_has_the_name_that_the_platform_gives(client, load):
    assert load("named", name="resnet.tar.gz").status_code == 200
    answer = client.post("/models/named/invoke", json=body_of(1), headers={TARGET: "resnet.tar.gz"})
    assert (answer.status_code, answer.json()["model_name"]) == (200, "resnet.tar.gz")
    assert client.get("/models").json()["models"][0]["modelName"] == "named"


def test_a_model_may_lie_in_a_folder_of_its_own(client, load, root):
    assert load("inside").status_code == 200
    assert client.get("/models/inside").json()["modelUrl"] == f"{root}/inside/model"
    assert told(client.post("/models/inside/invoke", json=body_of(1))) == (200, [2])


def test_ensembles_bring_steps_of_the_same_name(server, client, load):
    assert (load("composed").status_code, load("too").status_code) == (200, 200)
    assert told(client.post("/models/composed/invoke", json=body_of(1))) == (200, [4])
    assert told(client.post("/models/too/invoke", json=body_of(1))) == (200, [9])
    for key in ("composed", "too"):
        assert client.delete(f"/models/{key}").status_code == 200
    # Their steps have left with them, or are about to: nothing else names them.
    with triton.InferenceServerClient(server.address()) as v2:
        until(lambda: v2.get_model_repository_index() == [])


def test_binary_tensors_are_framed_by_the_media_type(client, load):
    assert load("h1").status_code == 200
    given = triton.InferInput("X", [3], "FP32")
    given.set_data_from_numpy(np.array([1, 2, 3], np.float32))
    body, length = triton.InferenceServerClient.generate_request_body(
        [given], outputs=[triton.InferRequestedOutput("Y", binary_data=True)]
    )
    answer = client.post("/models/h1/invoke", content=body, headers={"Content-Type": f"{MIME}{length}"})
    size = int(answer.headers["Content-Type"].removeprefix(MIME))
    result = triton.InferenceServerClient.parse_response_body(answer.content, header_length=size)
    assert result.as_numpy("Y").tolist() == [2, 4, 6]
    assert "Content-Encoding" not in answer.headers


def test_a_lack_of_memory_has_the_status_that_has_the_platform_make_room(client, load):
    answer = load("large")
    assert answer.status_code == 507
    assert "MemoryError" in answer.json()["error"]
    assert load("short").status_code == 200
    assert client.post("/models/short/invoke", json=body_of(1)).status_code == 507


@pytest.mark.parametrize("key", ["broken", "empty", "absent"])
def test_a_load_that_fails_leaves_no_trace(client, load, key):
    for _ in range(2):  # the second is no conflict
        answer = load(key)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]
    assert client.get(f"/models/{key}").status_code == 404


def test_a_load_from_elsewhere_is_refused(client, load, root):
    assert load("h1", url="/etc/model").json() == {
        "error": f"Invalid \"url\" '/etc/model': expected a path of the form {root}/<hash>/model[/<subdir>]"
    }
    assert load("h1", url=f"{root}/h1/../../models/h1/model").status_code == 200
    answer = load("x", url="/proc/self/cwd")
    assert (answer.status_code, answer.content) == (400, b"")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["/ping"], 200),
        (["-X", "POST", "/ping"], 405),
        (["/models"], 200),
        (["/models/none"], 404),
        (["-X", "DELETE", "/models/none"], 404),
        (["-X", "POST", "/models/none/invoke"], 404),
        (["-d", "{", "/models"], 400),
        (["-d", "{}", "/models"], 400),
        (["-X", "PUT", "/models"], 400),
        (["/v2/health/ready"], 400),
        (["/"], 400),
    ],
)
def test_curl_sees_the_same(url, arguments, status):
    *flags, path = arguments
    command = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *flags, url + path]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == str(status)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_long_body_is_asked_for_before_it_comes(url, load, tmp_path):
    assert load("h1").status_code == 200
    (tmp_path / "body").write_text(json.dumps(body_of(*range(100_000))))
    command = ["curl", "--silent", "--data-binary", f"@{tmp_path / 'body'}", f"{url}/models/h1/invoke"]
    said = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert json.loads(said.stdout)["outputs"][0]["shape"] == [100_000]


def test_boto3_invokes_a_model_behind_the_platform_s_router(url, load):
    assert load("h1", name="double.tar.gz").status_code == 200
    runtime = boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )

    def route(request, **_):
        assert urllib.parse.urlsplit(request.url).path == "/endpoints/mine/invocations"
        request.url = f"{url}/models/h1/invoke"

    runtime.meta.events.register("before-send.sagemaker-runtime", route)
    answer = runtime.invoke_endpoint(
        EndpointName="mine",
        TargetModel="double.tar.gz",
        ContentType="application/json",
        Body=json.dumps(body_of(1, 2)),
    )
    assert answer["ContentType"] == "application/json"
    assert json.loads(answer["Body"].read())["outputs"][0]["data"] == [2, 4]
    with pytest.raises(runtime.exceptions.ClientError) as caught:
        runtime.invoke_endpoint(
            EndpointName="mine", TargetModel="nope", ContentType="application/json", Body="{}"
        )
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_its_connections_are_counted_and_its_port_is_told(server, client):
    client.get("/ping")
    _, _, metrics = server.get("/metrics", service="Metrics Service")
    assert b'tritium_connections{protocol="sagemaker"}' in metrics
    assert f"platforms: {server.address('Sagemaker HTTPService')}" in server.said.replace('"', "").replace(
        "=", ": "
    )
