"""Vertex AI's endpoint at a real server: variables as the platform sets them, and clients from outside."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

from tests.support.operators import ROOT, Served, clean_environ, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

MIME = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
PLATFORM = {
    "AIP_MODE": "PREDICTION",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/[0-9]+:predict",
    "AIP_HEALTH_ROUTE": "/health",
    "AIP_HTTP_PORT": "0",
}
PREDICT = "/v1/endpoints/42:predict"
BODY = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, models) -> Iterator[Served]:
    """A server that the platform has started: no flag names a repository."""
    environ = clean_environ(**PLATFORM, AIP_STORAGE_URI=str(models))
    with serving(tmp_path_factory.mktemp("endpoint") / "said", environ=environ) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.address('Vertex AI HTTPService')}", timeout=60) as client:
        yield client


def test_only_the_platform_s_port_and_metrics_are_open(server):
    assert "Started HTTPService" not in server.said
    assert "GRPCInferenceService" not in server.said
    assert server.get("/metrics", service="Metrics Service")[0] == 200


def test_the_platform_s_paths_answer_and_no_others(client):
    assert client.get("/health").status_code == 200
    answer = client.post(PREDICT, json=BODY)
    assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [2, 4])
    for path in ("/v2/health/ready", "/v2/models/double/infer", "/v1/endpoints/x:predict"):
        answer = client.post(path, json=BODY)
        assert (answer.status_code, answer.content) == (400, b"")


def test_binary_tensors_are_framed_by_the_media_type(client):
    given = triton.InferInput("X", [3], "FP32")
    given.set_data_from_numpy(np.array([1, 2, 3], np.float32))
    body, length = triton.InferenceServerClient.generate_request_body(
        [given], outputs=[triton.InferRequestedOutput("Y", binary_data=True)]
    )
    answer = client.post(PREDICT, content=body, headers={"Content-Type": f"{MIME}{length}"})
    size = int(answer.headers["Content-Type"].removeprefix(MIME))
    result = triton.InferenceServerClient.parse_response_body(answer.content, header_length=size)
    assert result.as_numpy("Y").tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    ("redirect", "status", "said"),
    [
        ("v2", 200, '"name"'),
        ("v2/health/ready", 200, ""),
        ("v2/models/double/ready", 200, ""),
        ("v2/models/double/config", 200, '"double"'),
        ("v2/models/double/stats", 200, "model_stats"),
        ("v2/models/stats", 200, "model_stats"),
        ("v2/models/double/infer", 200, "[2.0,4.0]"),
        ("v2/repository/index", 200, '"READY"'),
        ("metrics", 200, "nv_inference_count"),
        ("v2/repository/models/double/unload", 403, ""),
        ("v2/systemsharedmemory/region/r/register", 403, ""),
        ("v2/models/double/generate", 400, ""),
    ],
)
def test_a_header_sends_a_request_on(client, redirect, status, said):
    answer = client.post(PREDICT, json=BODY, headers={REDIRECT: redirect})
    assert answer.status_code == status
    assert said in answer.text
    assert client.get(PREDICT, headers={REDIRECT: redirect}).status_code == 405


def started(models, *flags, **environ):
    """Start a server that is to fail; return its status and what it says."""
    command = [
        sys.executable,
        "-m",
        "engine",
        "serve",
        f"--model-repository={models}",
        "--metrics-port=0",
        *flags,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environ(**{**PLATFORM, **environ}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_server_without_a_default_model_does_not_start(tmp_path):
    write_model(tmp_path, "one")
    write_model(tmp_path, "two")
    status, said = started(tmp_path)
    assert status == 1
    assert (
        "failed to start Vertex AI service: Invalid argument - Expect the model repository contains only a"
        " single model if default model is not specified"
    ) in said
    status, said = started(tmp_path, "--vertex-ai-default-model=three")
    assert status == 1
    assert (
        "failed to start Vertex AI service: Invalid argument - Expect the default model 'three' is loaded"
        in said
    )


def test_a_route_that_is_missing_ends_the_start(models):
    status, said = started(models, AIP_PREDICT_ROUTE="")
    assert status == 1
    assert "API_PREDICT_ROUTE is not defined for Vertex AI endpoint" in said


def test_a_default_model_is_chosen_among_several_and_the_end_is_clean(tmp_path):
    models = tmp_path / "models"
    write_model(models, "one")
    write_model(models, "two")
    flags = (f"--model-repository={models}", "--vertex-ai-default-model=two")
    with serving(tmp_path / "said", *flags, environ=clean_environ(**PLATFORM)) as server:
        server.wait_ready()
        address = server.address("Vertex AI HTTPService")
        answer = httpx.post(f"http://{address}{PREDICT}", content=json.dumps(BODY), timeout=60)
        assert answer.json()["model_name"] == "two"
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
