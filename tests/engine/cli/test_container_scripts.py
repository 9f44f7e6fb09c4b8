"""The scripts of the image, run for real: what they run, and that servers come of them."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import httpx
import pytest

from engine.__main__ import main
from tests.support.operators import ROOT, clean_environ, serving, write_model

SCRIPTS = ROOT / "deploy" / "bin"
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in (b"one", b"two"):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([word], object))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STREAM_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "X" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture
def run(tmp_path):
    """Run the entrypoint; the server, `tritium` and `serve` print how they are called."""
    for name in ("tritonserver", "serve", "tritium"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\nprintf "%s" {name}\nfor word; do printf " %s" "$word"; done\n')
        script.chmod(0o755)

    def run(*words, **environ):
        path = f"{tmp_path}:{os.environ['PATH']}"
        command = [str(SCRIPTS / "entrypoint"), *words]
        return subprocess.run(
            command, env=clean_environ(PATH=path, **environ), capture_output=True, text=True, check=True
        ).stdout

    return run


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "environ", "ran"),
    [
        ((), {}, "tritonserver --model-repository=/models"),
        ((), {"AIP_STORAGE_URI": "gs://b/m", "AIP_MODE": "PREDICTION"}, "tritonserver"),
        ((), {"TRITIUM_MODEL_REPOSITORY": "/m"}, "tritonserver"),
        (("--model-store=/m", "--log-verbose=1"), {}, "tritonserver --model-store=/m --log-verbose=1"),
        (("tritonserver", "--model-store=/m"), {}, "tritonserver --model-store=/m"),
        (("tritonserver", "--model-store=/m"), {"AIP_MODE": "PREDICTION"}, "tritonserver --model-store=/m"),
        (("--id=a b",), {"AIP_MODE": "PREDICTION"}, "tritonserver --id=a b"),
        (("serve",), {}, "serve"),
        (("tritium", "check", "/models"), {}, "tritium check /models"),
        (("sh", "-c", "echo said"), {}, "said\n"),
    ],
)
def test_the_entrypoint_runs_what_it_is_given_and_puts_the_server_before_flags(run, words, environ, ran):
    assert run(*words, **environ) == ran


def test_the_image_has_each_script_at_its_place():
    assert sorted(path.name for path in SCRIPTS.iterdir()) == ["entrypoint", "serve", "tritonserver"]
    for script, place in (
        ("tritonserver", "/opt/tritonserver/bin/tritonserver"),
        ("serve", "/usr/bin/serve"),
        ("entrypoint", "/usr/local/bin/entrypoint"),
    ):
        assert f"COPY deploy/bin/{script} {place}\n" in DOCKERFILE
        assert os.access(SCRIPTS / script, os.X_OK)
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)
    assert json.loads(entrypoint) == ["/usr/local/bin/entrypoint"]
    assert "PATH=/opt/tritonserver/bin:/opt/tritium/bin:$PATH" in DOCKERFILE
    assert "\nUSER 1000:1000\n" in DOCKERFILE
    assert "com.amazonaws.sagemaker.capabilities.multi-models=true" in DOCKERFILE


def test_the_image_is_built_from_all_that_a_wheel_is_made_of():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "LICENSE", build["project"]["readme"], *wheel["only-include"]}
    if "custom" in wheel["hooks"]:
        needed.add("hatch_build.py")
    stage, _, _ = DOCKERFILE.partition("pip wheel --no-deps")
    copied = {word for words in re.findall(r"^COPY (.*) \S+$", stage, re.MULTILINE) for word in words.split()}
    assert needed <= copied
    (default,) = re.findall(r"^ARG LOCK=(.*)$", stage, re.MULTILINE)
    assert all((ROOT / path.replace("${LOCK}", default)).exists() for path in copied)


def test_what_is_installed_shadows_no_other_server():
    names = {each.name for each in entry_points(group="console_scripts") if each.module.startswith("engine")}
    assert names == {"tritium"}


def with_tritium(folder: Path) -> str:
    """Return a PATH with the scripts and, behind them, a `tritium` on this interpreter."""
    folder.mkdir()
    tritium = folder / "tritium"
    tritium.write_text(f'#!/bin/sh\nexec {sys.executable} -m engine "$@"\n')
    tritium.chmod(0o755)
    return f"{SCRIPTS}:{folder}:{os.environ['PATH']}"


def served(tmp_path, *words, **environ):
    """Have the entrypoint run `words`."""
    path = with_tritium(tmp_path / "bin")
    return serving(
        tmp_path / "said",
        environ=clean_environ(PATH=path, **environ),
        command=[str(SCRIPTS / "entrypoint"), *words],
    )


@pytest.mark.slow
@pytest.mark.system
def test_tritonserver_is_tritium_serve(tmp_path):
    write_model(tmp_path / "models")
    words = ("tritonserver", f"--model-store={tmp_path / 'models'}", "--strict-model-config=False")
    ports = ("--http-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--allow-metrics=false")
    with served(
        tmp_path, *words, *ports, "--log-verbose=0", "--min-supported-compute-capability=7.5"
    ) as server:
        server.wait_ready()
        assert server.get("/v2/models/double/ready")[0] == 200
        warned = re.findall(r"--min-supported-compute-capability has no effect", server.said)
        assert len(warned) == 1
        server.signal()
        assert server.wait() == 0


@pytest.mark.slow
@pytest.mark.system
def test_serve_is_what_sagemaker_starts(tmp_path):
    write_model(tmp_path / "model", "words", code=STREAM, config=STREAM_CONFIG)
    environ = {
        "SAGEMAKER_BIND_TO_PORT": "0",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "false",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--http-address=127.0.0.1 --id=mine",
    }
    with served(tmp_path, "serve", f"--model-directory={tmp_path / 'model'}", **environ) as server:
        server.wait_ready()
        assert "Starting with the only existing model directory words" in server.out
        url = f"http://{server.address('Sagemaker HTTPService')}"
        assert httpx.get(f"{url}/ping", timeout=60).status_code == 200
        answer = httpx.post(f"{url}/invocations", json={"X": "go"}, timeout=60)
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
        assert [event["Y"] for event in events] == ["one", "two"]
        for service in ("Started HTTPService", "GRPCInferenceService", "Metrics Service"):
            assert service not in server.said
        server.signal()
        assert server.wait() == 0


@pytest.mark.slow
@pytest.mark.system
def test_serve_begins_without_models_where_there_are_many(tmp_path):
    environ = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SAGEMAKER_BIND_TO_PORT": "0",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": (
            f"--http-address=127.0.0.1 --sagemaker-models-directory={os.path.relpath(tmp_path)}"
        ),
    }
    write_model(tmp_path / "h1", "model")
    with served(tmp_path, "serve", **environ) as server:
        server.wait_ready()
        assert 'Using Triton ping mode: "live"' in server.out
        with httpx.Client(base_url=f"http://{server.address('Sagemaker HTTPService')}", timeout=60) as client:
            body = {"model_name": "h1", "url": f"{tmp_path}/h1/model"}
            assert client.post("/models", json=body).status_code == 200
            assert client.get("/models/h1").status_code == 200


def test_the_folder_of_one_model_is_refused_where_there_are_many(monkeypatch, capsys):
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", "true")
    assert main(["sagemaker", "--model-directory=models"]) == 1
    assert "Name the folder of many by --sagemaker-models-directory=models" in capsys.readouterr().out


@pytest.mark.system
def test_serve_says_what_is_missing(tmp_path):
    path = with_tritium(tmp_path / "bin")
    done = subprocess.run(
        [str(SCRIPTS / "serve"), f"--model-directory={tmp_path / 'none'}"],
        env=clean_environ(PATH=path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "ERROR: No model found in model repository\n")
