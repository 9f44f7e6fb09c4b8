"""Spare workers of a whole server: what takes over is there already, and none is left behind."""

import os
import signal
from pathlib import Path

import pytest

from tests.survival.repository import instances, parameter
from tests.survival.server import eventually


async def spares_of(server, *models):
    """Return the server's processes that are no instance's worker, once there is one."""
    found: list[int] = []

    async def some():
        workers = {pid for model in models for pid in await server.workers(model)}
        found[:] = [each for each in server.descendants() if each.pid not in workers]
        return bool(found)

    await eventually(some)
    return found


async def test_an_instance_that_is_killed_goes_on_in_the_spare(tritium_server, repository):
    repository.onnx_add_sub(config=instances(1))
    async with tritium_server() as server:
        (spare,) = await spares_of(server, "onnx_add_sub")
        await server.until_metric(1, "tritium_spare_workers")
        (worker,) = await server.workers("onnx_add_sub")
        os.kill(worker, signal.SIGKILL)
        assert await server.wait_serving("onnx_add_sub", but_not=(worker,)) == [spare.pid]
        assert await server.metric("tritium_workers_started_total", spare="true") == 1


@pytest.mark.long
async def test_a_confined_models_spare_is_confined_as_its_workers_are(tritium_server, repository):
    repository.python_add_sub(config=instances(1) + parameter("tritium.sandbox", "strict"))
    repository.python_add_sub("free", config=instances(1) + parameter("tritium.sandbox", "off"))
    async with tritium_server("--spare-workers=2") as server:
        await server.until_metric(2, "tritium_spare_workers")
        (worker,) = await server.workers("python_add_sub")
        await spares_of(server, "python_add_sub", "free")
        barred = no_new_privileges(worker)
        os.kill(worker, signal.SIGKILL)
        (heir,) = await server.wait_serving("python_add_sub", but_not=(worker,))
        assert await server.metric("tritium_workers_started_total", spare="true") == 1
        assert no_new_privileges(heir) == barred == "1"
        (free,) = await server.workers("free")
        assert no_new_privileges(free) == "0"


def no_new_privileges(pid):
    """What the kernel says of a process's `no_new_privs`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("NoNewPrivs"))
