"""Workers that die, stop and loop while a server goes on; and what a serving process must not contain."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.survival.repository import WIDTH, instances, parameter
from tests.survival.server import eventually, until
from tests.survival.wire import inference

pytestmark = pytest.mark.slow

TICKET = {"TICKET": np.array([[1]], np.int32)}


async def test_two_workers_that_die_while_nobody_asks_are_both_replaced(tritium_server, repository):
    repository.onnx_add_sub(config=instances(2))
    async with tritium_server() as server:
        before = await server.workers("onnx_add_sub")
        assert len(before) == 2
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await server.wait_serving("onnx_add_sub", but_not=tuple(before))
        assert [node["restarts"] for node in await server.instances("onnx_add_sub")] == [1, 1]
        assert (await server.get("/v2/health/ready")).status == 200
        assert (await server.index())["onnx_add_sub"] == {
            "name": "onnx_add_sub",
            "version": "1",
            "state": "READY",
        }
        async with await server.connect() as client:
            ones = np.ones((1, WIDTH), np.float32)
            response = await client.infer("onnx_add_sub", inputs={"A": ones, "B": ones})
            assert (response.tensors()["SUM"] == 2).all()


async def test_a_request_whose_worker_was_stopped_under_it_runs_again(tritium_server, repository, gates):
    settings = parameter("tritium.execution_timeout", 1) + parameter("tritium.retry", "always")
    repository.gated(gates.directory, config=instances(1) + settings)
    async with tritium_server() as server, await server.connect() as client:
        await client.send(inference("gated", TICKET))
        await until(lambda: gates.began() == [1])
        (worker,) = await server.workers("gated")
        os.kill(worker, signal.SIGSTOP)
        gates.open()
        response = await client.receive()
        assert response.status == 200, response.error
        assert response.json()["parameters"] == {"attempts": 2}
        assert gates.began() == [1, 1]


async def crash(server, cause, model="crashing"):
    """Make every instance of a model die on each start, and wait until all of them are given up for now."""
    cause.touch()
    for pid in await server.workers(model):
        os.kill(pid, signal.SIGKILL)

    async def given_up():
        return (await server.index())[model]["state"] == "UNAVAILABLE"

    await eventually(given_up)


@pytest.mark.long
async def test_a_model_whose_instances_all_keep_dying_is_unavailable_with_a_reason_and_alone_in_that(
    tritium_server, repository, tmp_path
):
    repository.crashing(tmp_path / "cause")
    repository.python_add_sub()
    async with tritium_server() as server, await server.connect() as client:
        assert (await client.infer("crashing", inputs=TICKET)).status == 200
        await crash(server, tmp_path / "cause")
        index = await server.index()
        assert "all instances keep dying: " in index["crashing"]["reason"]
        assert "SIGSEGV" in index["crashing"]["reason"]
        assert index["python_add_sub"]["state"] == "READY"
        response = await client.infer("crashing/versions/1", inputs=TICKET)
        assert (response.status, response.error) == (
            503,
            "Request for unknown model: 'crashing' version 1 is not at ready state",
        )
        assert (await server.get("/v2/health/ready")).status == 400  # strict readiness
        assert [node["state"] for node in await server.instances("crashing")] == ["exhausted", "exhausted"]
        ones = np.ones((1, WIDTH), np.float32)
        assert (await client.infer("python_add_sub", inputs={"A": ones, "B": ones})).status == 200


@pytest.mark.long  # an exhausted instance is tried again every half minute
async def test_it_is_ready_again_once_what_killed_it_is_gone(tritium_server, repository, tmp_path):
    repository.crashing(tmp_path / "cause")
    async with tritium_server() as server, await server.connect() as client:
        await crash(server, tmp_path / "cause")
        began = trio.current_time()
        (tmp_path / "cause").unlink()
        await server.wait_serving("crashing")
        print(f"\nready again after {trio.current_time() - began:.1f} s")
        assert (await server.index())["crashing"] == {"name": "crashing", "version": "1", "state": "READY"}
        assert (await client.infer("crashing", inputs=TICKET)).status == 200


async def test_the_server_process_contains_no_framework(tritium_server, repository):
    repository.onnx_add_sub(config=instances(1))
    repository.torch_doubling()
    async with tritium_server() as server, await server.connect() as client:
        ones = np.ones((1, WIDTH), np.float32)
        assert (await client.infer("onnx_add_sub", inputs={"A": ones, "B": ones})).status == 200
        assert (await client.infer("torch_doubling", inputs={"INPUT__0": ones})).status == 200
        assert "onnxruntime" in mapped((await server.workers("onnx_add_sub"))[0])
        assert "libtorch" in mapped((await server.workers("torch_doubling"))[0])
        for framework in ("onnxruntime", "libtorch", "/torch/"):
            assert framework not in mapped(server.pid)


def mapped(pid):
    """What files a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()
