"""Eight models with room for three: every request is served, and memory stays at what was promised."""

from random import Random
from textwrap import dedent

import numpy as np
import psutil
import pytest
import trio
import tritonclient.http

from chaos.subject.processes import alive
from tests.support.triton_inputs import inputs
from tests.survival.repository import instances, parameter
from tests.survival.server import until

MEBIBYTE = 2**20
NAMES = [f"m{number:02}" for number in range(8)]

# What a model answers tells which one it is.
_HUNGRY = """
import numpy as np
import pathlib
import time

import triton_python_backend_utils as pb_utils

HOLD = pathlib.Path(@HOLD@)


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.ones(@MEBIBYTES@ << 17)
        while HOLD.exists():
            time.sleep(0.01)

    def execute(self, requests):
        tickets = [pb_utils.get_input_tensor_by_name(each, "TICKET").as_numpy() for each in requests]
        answers = [ticket * 100 + np.int32(@NUMBER@ * self.weights[-1]) for ticket in tickets]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SERVED", each)]) for each in answers]
"""

_CONFIG = """
    backend: "python"
    max_batch_size: 1
    input [ { name: "TICKET" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "SERVED" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


class Hungry:
    """Models of 40 MiB beside a worker's own memory, told apart by their answers."""

    def __init__(self, repository, directory):
        self._repository = repository
        self.hold = directory / "hold"

    def add(self, name, number, *, residency="on_demand", mebibytes=40):
        code = _HUNGRY.replace("@HOLD@", repr(str(self.hold))).replace("@NUMBER@", str(number))
        version = self._repository.path / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(code.replace("@MEBIBYTES@", str(mebibytes)))
        config = dedent(_CONFIG) + instances(1) + parameter("tritium.residency", residency)
        (version.parent / "config.pbtxt").write_text(config)


@pytest.fixture
def hungry(repository, tmp_path):
    """Add models that take memory to the repository."""
    return Hungry(repository, tmp_path)


@pytest.fixture
async def size(tritium_server, hungry, repository):
    """What one of the eight takes, as the server measures it."""
    for number, name in enumerate(NAMES):
        hungry.add(name, number)
    async with tritium_server() as server:
        await served(server, 0, 1)
        labels = {"model": NAMES[0]}
        await server.until_metric_above(40 * MEBIBYTE, "tritium_model_resident_bytes", **labels)
        return await server.metric("tritium_model_resident_bytes", **labels)


async def served(server, number, ticket):
    """Ask one of the eight models, and check that it was the one that answered."""

    def ask():
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            given = inputs(tritonclient.http, TICKET=np.array([[ticket]], np.int32))
            return client.infer(NAMES[number], given).as_numpy("SERVED").item()

    assert await trio.to_thread.run_sync(ask) == ticket * 100 + number


def room_for(count, size):
    return f"--resident-memory-limit={int((count + 0.5) * size)}"


def taken(server):
    """Bytes that the server's workers have resident, shared pages shared out."""
    total = 0
    for process in server.descendants():
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue  # it has just ended
    return total


async def ready(server):
    """The names of the models in memory."""
    return sorted(name for name, entry in (await server.index()).items() if entry["state"] == "READY")


async def test_eight_models_are_served_in_the_room_of_three(tritium_server, size):
    async with tritium_server(room_for(3, size), "--spare-workers=0") as server:
        assert await ready(server) == []
        assert server.descendants() == []
        seen, most = set(), 0
        for ticket in (1, 2):
            for number in range(8):
                await served(server, number, ticket)
                workers = server.descendants()
                seen.update(workers)
                most = max(most, len(workers))
        # More workers share the common pages than when there was only one worker, so four models may fit.
        assert most <= 4
        index = await server.index()
        loaded = await ready(server)
        assert 2 <= len(loaded) <= 4
        assert loaded == NAMES[-len(loaded) :]  # those used last
        assert all(
            (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
            for name, entry in index.items()
            if name not in loaded
        )
        evicted = server.logged("model_evicted")
        assert len(evicted) >= 16 - 4
        assert {line["model"] for line in evicted} == set(NAMES)
        assert all(line["freed_bytes"] > 30 * MEBIBYTE for line in evicted)
        assert await server.metric("tritium_model_evictions_total") == len(evicted)
        assert await server.metric("tritium_model_loads_on_demand_total") == 16
        assert await server.metric("tritium_wake_seconds_count") == 16
        # Memory was returned: the ended workers are gone, and the others are within the budget.
        await until(lambda: sum(map(alive, seen)) == len(loaded))
        budget = await server.metric("tritium_resident_budget_bytes")
        assert taken(server) < budget * 1.1
        assert await server.metric("tritium_resident_bytes") < budget * 1.1


@pytest.mark.long
async def test_nobody_is_refused_while_eight_models_are_asked_for_at_once(tritium_server, size):
    async with tritium_server(room_for(3, size), "--spare-workers=0") as server:
        random = Random(8)
        orders = [[random.randrange(8) for _ in range(8)] for _ in range(8)]
        over = []

        async def client(order):
            for ticket, number in enumerate(order, start=1):
                await served(server, number, ticket)

        async def watch(task_status):
            with trio.CancelScope() as scope:
                task_status.started(scope)
                budget = await server.metric("tritium_resident_budget_bytes")
                while True:
                    over.append(taken(server) / budget)
                    await trio.sleep(0.05)

        async with trio.open_nursery() as watching:
            scope = await watching.start(watch)
            async with trio.open_nursery() as clients:
                for order in orders:
                    clients.start_soon(client, order)
            scope.cancel()
        assert max(over) < 1.1
        assert await server.metric("nv_inference_request_failure") == 0
        assert server.logged("model_evicted")
