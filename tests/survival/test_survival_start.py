"""Starts that go wrong: what the operator reads, and the exit status."""

import signal
import socket

import numpy as np
import pytest

from tests.survival.server import eventually
from tests.survival.wire import inference

pytestmark = pytest.mark.slow


async def test_a_model_that_fails_to_load_ends_the_server(tritium_server, repository):
    repository.python_add_sub()
    repository.failing()
    async with tritium_server(ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        assert server.failures == ["creating server: Internal - failed to load all models"]
        (line,) = server.logged("model_unavailable")
        assert line["model"] == "failing"
        assert "the weights are not there" in line["reason"]


@pytest.mark.parametrize(("strict", "status"), [("true", 400), ("false", 200)])
async def test_told_not_to_mind_it_serves_the_other_models(tritium_server, repository, strict, status):
    repository.python_add_sub()
    repository.failing()
    flags = ("--exit-on-error=false", f"--strict-readiness={strict}")
    async with tritium_server(*flags, ready=False) as server:
        await server.wait_loaded()
        assert (await server.get("/v2/health/ready")).status == status
        assert (await server.get("/v2/health/live")).status == 200
        assert (await server.get("/v2/models/python_add_sub/ready")).status == 200
        index = await server.index()
        assert index["failing"]["state"] == "UNAVAILABLE"
        assert "the weights are not there" in index["failing"]["reason"]
        assert index["python_add_sub"]["state"] == "READY"


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port", "--metrics-port"])
async def test_a_port_that_is_taken_is_named_and_ends_the_server(tritium_server, repository, flag):
    repository.python_add_sub()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with tritium_server(f"{flag}={port}", ready=False, exit_status=1) as server:
            assert await server.wait_ended() == 1
            assert server.failures == [f"Socket '127.0.0.1:{port}' already in use "]
            assert not server.logged("worker_started")


@pytest.mark.parametrize("strict", ["true", "false"])
async def test_told_not_to_mind_it_serves_without_a_repository_that_is_not_there(
    tritium_server, repository, tmp_path, strict
):
    repository.python_add_sub()
    missing = tmp_path / "missing"
    flags = (
        f"--model-repository={missing}",
        "--exit-on-error=false",
        f"--strict-readiness={strict}",
        "--model-control-mode=explicit",
        "--load-model=python_add_sub",
    )
    async with tritium_server(*flags, ready=False) as server:
        await server.wait_loaded()
        assert (await server.get("/v2/models/python_add_sub/ready")).status == 200
        assert (await server.get("/v2/health/live")).status == 200
        assert (await server.get("/v2/health/ready")).status == 400
        deep = await server.get("/v2/health/ready?deep=1")
        assert deep.status == 400
        assert str(missing) in deep.json()["reason"]
        (line,) = server.logged("repository_unavailable")
        assert str(missing) in line["reason"]

        missing.mkdir()  # as a mount that comes late
        response = await server.get("/v2/repository/models/python_add_sub/load", method="POST")
        assert response.status == 200
        assert (await server.get("/v2/health/ready")).status == 200


async def test_a_repository_that_comes_late_is_served_once_its_models_are_loaded(
    tritium_server, repository, tmp_path
):
    repository.python_add_sub()
    hidden, shown = repository.path, tmp_path / "late"
    flags = (
        f"--model-repository={shown}",
        "--exit-on-error=false",
        "--model-control-mode=poll",
        "--repository-poll-secs=0.2",
    )
    hidden.rename(tmp_path / "elsewhere")
    hidden.mkdir()
    async with tritium_server(*flags, ready=False) as server:
        await server.wait_loaded()
        assert (await server.get("/v2/health/ready")).status == 400
        (tmp_path / "elsewhere").rename(shown)

        async def is_ready():
            return (await server.get("/v2/health/ready")).status == 200

        await eventually(is_ready)
        assert (await server.get("/v2/models/python_add_sub/ready")).status == 200


async def test_with_a_platform_and_no_backend_a_model_loads_without_completion(tritium_server, repository):
    repository.onnx_add_sub()
    path = repository.path / "onnx_add_sub" / "config.pbtxt"
    text = path.read_text().replace('backend: "onnxruntime"', 'platform: "onnxruntime_onnx"')
    path.write_text(text)
    async with tritium_server("--disable-auto-complete-config") as server:
        config = (await server.get("/v2/models/onnx_add_sub/config")).json()
        assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
        assert (await server.get("/v2/models/onnx_add_sub/ready")).status == 200


async def test_an_empty_repository_is_served(tritium_server):
    async with tritium_server() as server:
        assert await server.index() == {}
        server.signal(signal.SIGTERM)
        assert await server.wait_ended() == 0


@pytest.mark.parametrize("told", [True, False])
async def test_clients_learn_how_long_they_waited_where_the_operator_says_so(
    tritium_server, repository, told
):
    repository.onnx_identity()
    async with tritium_server(*["--server-timing=true"] * told) as server:
        async with await server.connect() as connection:
            await connection.send(inference("onnx_identity", {"X": np.ones(4, np.float32)}))
            answer = await connection.receive()
        assert answer.status == 200
        phases = [
            phase.partition(";")[0].strip() for phase in answer.fields.get("server-timing", "").split(",")
        ]
        assert phases == (["queue", "compute_input", "compute_infer", "compute_output"] if told else [""])
