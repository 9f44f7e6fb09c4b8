"""A real server beside crowds of connections that do as good as nothing, and die at once."""

import json
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import trio
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from benchmarks.hostile.crowd import KINDS
from tests.support.triton_inputs import inputs
from tests.survival.repository import WIDTH, Repository
from tests.survival.server import ROOT, eventually, standing

COUNT = 300
MOST = 200  # fewer than come
SHORT = {"HTTP: half bodies", "gRPC: silent"}  # the rest takes half a minute


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crowds")
    repository = Repository(folder / "models")
    repository.python_add_sub()
    with standing(repository.path, f"--max-connections={MOST}", files=folder / "server") as server:
        yield server


class Crowd:
    """The process of a crowd."""

    def __init__(self, process):
        self._process = process

    async def tell(self, order):
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        line = await trio.to_thread.run_sync(self._process.stdout.readline)
        return json.loads(line)["connections"]

    def kill(self):
        self._process.kill()
        self._process.wait()


@contextmanager
def crowd(port, kind):
    command = [sys.executable, "-m", "benchmarks.hostile.crowd", f"--port={port}", f"--kind={kind}"]
    with subprocess.Popen(
        [*command, f"--count={COUNT}"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Crowd(process)
        finally:
            process.kill()


def ask(library, url):
    """Infer and ask for health on a new connection."""
    rows = {"A": np.arange(WIDTH, dtype=np.float32)[None], "B": np.ones((1, WIDTH), np.float32)}
    client = library.InferenceServerClient(url)
    try:
        assert client.is_server_live()
        answer = client.infer("python_add_sub", inputs(library, **rows)).as_numpy("SUM")
    finally:
        client.close()
    assert answer.tolist() == [[number + 1 for number in range(WIDTH)]]


async def both_are_answered(server):
    await trio.to_thread.run_sync(ask, tritonclient.http, server.url)
    await trio.to_thread.run_sync(ask, tritonclient.grpc, server.grpc_url)


async def can_be_asked(server):
    """Whether all are answered: no connection makes room before it has waited for its client for a while."""
    try:
        await both_are_answered(server)
    except (InferenceServerException, OSError):
        return False
    return True


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=[] if name in SHORT else pytest.mark.long)
        for name in KINDS
        if "large" not in name
    ],
)
async def test_others_are_served_while_a_crowd_stands_and_when_it_dies(server, kind):
    port = server.grpc_port if KINDS[kind].grpc else server.http_port
    protocol = "grpc" if KINDS[kind].grpc else "http"
    with crowd(port, kind) as many:
        assert await many.tell("come") == COUNT
        await eventually(partial(can_be_asked, server))
        await many.tell("press")
        await eventually(partial(can_be_asked, server))
        many.kill()
        await both_are_answered(server)
    await server.until_metric(0, "tritium_connections", protocol=protocol)
    assert server.logged("child_exited") == []
