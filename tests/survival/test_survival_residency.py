"""Twenty models with room for five: every request is served, and memory stays at what was promised."""

import signal
from random import Random
from textwrap import dedent

import psutil
import pytest
import trio
from tritonclient.utils import InferenceServerException

from chaos.subject.processes import alive
from tests.survival.repository import instances, parameter
from tests.survival.server import eventually, until
from tests.survival.triton_clients import ask

pytestmark = pytest.mark.slow

MEBIBYTE = 2**20
NAMES = [f"m{number:02}" for number in range(20)]

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
    """What one of the twenty takes, as the server measures it."""
    for number, name in enumerate(NAMES):
        hungry.add(name, number)
    async with tritium_server() as server:
        await served(server, 0, 1)
        labels = {"model": NAMES[0]}
        await server.until_metric_above(40 * MEBIBYTE, "tritium_model_resident_bytes", **labels)
        return await server.metric("tritium_model_resident_bytes", **labels)


async def served(server, number, ticket):
    """Ask one of the twenty models, and check that it was the one that answered."""
    assert await ask(server, ticket, NAMES[number]) == ticket * 100 + number


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


async def test_twenty_models_are_served_in_the_room_of_five(tritium_server, size):
    async with tritium_server(room_for(5, size), "--spare-workers=0") as server:
        assert await ready(server) == []
        assert server.descendants() == []
        seen, most = set(), 0
        for ticket in (1, 2):
            for number in range(20):
                await served(server, number, ticket)
                workers = server.descendants()
                seen.update(workers)
                most = max(most, len(workers))
        # More workers share the common pages than when there was only one worker, so six models may fit.
        assert most <= 6
        index = await server.index()
        loaded = await ready(server)
        assert 4 <= len(loaded) <= 6
        assert loaded == NAMES[-len(loaded) :]  # those used last
        assert all(
            (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
            for name, entry in index.items()
            if name not in loaded
        )
        evicted = server.logged("model_evicted")
        assert len(evicted) >= 40 - 6
        assert {line["model"] for line in evicted} == set(NAMES)
        assert all(line["freed_bytes"] > 30 * MEBIBYTE for line in evicted)
        assert await server.metric("tritium_model_evictions_total") == len(evicted)
        assert await server.metric("tritium_model_loads_on_demand_total") == 40
        assert await server.metric("tritium_wake_seconds_count") == 40
        # Memory was returned: the ended workers are gone, and the others are within the budget.
        await until(lambda: sum(map(alive, seen)) == len(loaded))
        budget = await server.metric("tritium_resident_budget_bytes")
        assert taken(server) < budget * 1.1
        assert await server.metric("tritium_resident_bytes") < budget * 1.1


@pytest.mark.long
async def test_nobody_is_refused_while_twenty_models_are_asked_for_at_once(tritium_server, size):
    async with tritium_server(room_for(5, size), "--spare-workers=0") as server:
        random = Random(20)
        orders = [[random.randrange(20) for _ in range(8)] for _ in range(8)]
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


async def test_one_load_serves_all_who_wait_and_a_full_room_refuses(tritium_server, hungry, repository):
    hungry.add("slow", 7)
    config = repository.path / "slow" / "config.pbtxt"
    config.write_text(config.read_text() + parameter("tritium.queue.max_requests", 10))
    hungry.hold.touch()
    async with tritium_server() as server, trio.open_nursery() as nursery:
        answers = []

        async def client(ticket):
            answers.append(await ask(server, ticket, "slow"))

        for ticket in range(10):
            nursery.start_soon(client, ticket)
        await server.until_metric(10, "tritium_wake_waiting_requests", model="slow")
        with pytest.raises(InferenceServerException, match="10 requests wait already while model 'slow'"):
            await ask(server, 11, "slow")
        assert (await server.index())["slow"]["state"] == "LOADING"
        assert (await server.get("/v2/health/ready")).status == 200
        hungry.hold.unlink()
        await until(lambda: len(answers) == 10)
        assert sorted(answers) == [ticket * 100 + 7 for ticket in range(10)]
        assert len(server.logged("worker_started")) == 1


async def test_pinned_models_stay_and_what_does_not_fit_beside_them_is_refused(
    tritium_server, hungry, repository
):
    hungry.add("pinned", 1, residency="pinned", mebibytes=100)
    hungry.add("small", 2, mebibytes=10)
    hungry.add("other", 3, mebibytes=10)
    hungry.add("big", 4, mebibytes=10)
    (repository.path / "big" / "1" / "weights").write_bytes(bytes(200 * MEBIBYTE))
    async with tritium_server("--resident-memory-limit=210MiB") as server:
        assert await ask(server, 1, "pinned") == 101
        await server.until_metric_above(0, "tritium_model_resident_bytes", model="pinned")
        (pinned,) = await server.workers("pinned")
        for ticket in range(3):
            assert await ask(server, ticket, "small") == ticket * 100 + 2
            assert await ask(server, ticket, "other") == ticket * 100 + 3
        with pytest.raises(
            InferenceServerException, match=r"model 'big' does not fit: needs .*, budget 210.0 MiB"
        ):
            await ask(server, 1, "big")
        assert await server.workers("pinned") == [pinned]
        assert "pinned" not in {line["model"] for line in server.logged("model_evicted")}


async def test_a_server_that_stops_answers_those_who_wait_for_a_load(tritium_server, hungry):
    hungry.add("slow", 7)
    hungry.hold.touch()
    async with tritium_server() as server, trio.open_nursery() as nursery:
        refused = []

        async def client():
            with pytest.raises(InferenceServerException) as error:
                await ask(server, 1, "slow")
            refused.append((error.value.status(), error.value.message()))

        nursery.start_soon(client)
        await server.until_metric(1, "tritium_wake_waiting_requests", model="slow")
        server.signal(signal.SIGTERM)
        await until(lambda: bool(refused))
        ((status, message),) = refused
        assert status == "503"
        assert "Server is stopping" in message
        assert await server.wait_ended() == 0


async def test_a_model_that_cannot_be_loaded_says_why_and_the_others_are_served(
    tritium_server, repository, hungry
):
    repository.failing()
    config = repository.path / "failing" / "config.pbtxt"
    config.write_text(config.read_text() + parameter("tritium.residency", "on_demand"))
    hungry.add("fine", 5)
    async with tritium_server() as server:
        for reason in ("the weights are not there", "tried again in"):
            with pytest.raises(InferenceServerException, match=reason):
                await ask(server, 1, "failing")
        assert len(server.logged("worker_started")) == 1
        assert "the weights are not there" in (await server.index())["failing"]["reason"]
        assert await ask(server, 1, "fine") == 105

        async def tried_again():
            with pytest.raises(InferenceServerException):
                await ask(server, 1, "failing")
            return len(server.logged("worker_started")) == 3

        await eventually(tried_again)
