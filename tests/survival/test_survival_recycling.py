"""Workers that are replaced under load: no request is lost, and none waits for a load."""

import json
from collections import Counter

import numpy as np
import pytest
import trio

from tests.survival.grpc_wire import Unary, channel_to
from tests.survival.repository import instances, parameter
from tests.survival.server import until
from tests.survival.storm import Storm

CLIENTS = 4  # of each protocol

LEAKY = """
import triton_python_backend_utils as pb_utils

KEPT = []


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            KEPT.append(b"x" * 8 * 1024 * 1024)
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", seconds)]))
        return responses
"""


def recycle(**ceilings):
    return parameter("tritium.recycle", json.dumps(ceilings).replace('"', '\\"'))


@pytest.mark.parametrize(("lasts", "times"), [(2.0, 2), pytest.param(60.0, 15, marks=pytest.mark.long)])
async def test_while_instances_are_recycled_under_load_no_request_fails_and_none_runs_twice(
    tritium_server, repository, lasts, times
):
    repository.python_add_sub(config=instances(2) + recycle(requests=100))
    async with tritium_server() as server:
        first = set(await server.workers("python_add_sub"))
        storm = Storm(server)

        async def over_grpc(channel):
            async def connect():
                return Unary(channel)

            await storm.client("python_add_sub", connect=connect, tally_as="grpc")

        async with channel_to(server.grpc_port) as channel, trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(storm.client, "python_add_sub")
                nursery.start_soon(over_grpc, channel)
            await trio.sleep(lasts)
            await until(lambda: len(server.logged("worker_recycled")) >= times)
            storm.stopping = True
        for tally in storm.tallies.values():
            assert tally.answered > 100
            tally.check()
            assert not tally.errors, tally.messages
            assert set(tally.attempts) == {1}
        recycled = server.logged("worker_recycled")
        assert {line["ceiling"] for line in recycled} == {"requests"}
        assert first & {line["pid"] for line in recycled}
        assert await server.metric("tritium_workers_recycled_total", ceiling="requests") >= times
        assert await server.metric("tritium_worker_deaths_total") == 0
        assert await server.metric("tritium_instance_restarts_total") == 0
        ended = Counter(line["reason"] for line in server.logged("worker_exited"))
        assert set(ended) == {"recycled"}
        assert len(await server.wait_serving("python_add_sub")) == 2


@pytest.mark.long
async def test_a_model_that_leaks_is_recycled_before_it_has_taken_much_more_than_its_ceiling(
    tritium_server, repository
):
    repository.slow("leaky", config=instances(1) + recycle(memory_mb=200))
    (repository.path / "leaky" / "1" / "model.py").write_text(LEAKY)
    async with tritium_server() as server, await server.connect() as client:
        with trio.fail_after(60):
            while len(server.logged("worker_recycled")) < 2:
                response = await client.infer("leaky", inputs={"SECONDS": np.zeros((1, 1), np.float32)})
                assert response.status == 200, response.error
                await trio.sleep(0.02)
        assert {line["ceiling"] for line in server.logged("worker_recycled")} == {"memory"}
