"""Sequences whose workers are killed: with a checkpoint, every one goes on and every sum is right."""

import asyncio  # noqa: TID251  # tritonclient.grpc.aio runs on it, in a thread of its own
import random
import signal
import threading
import time

import numpy as np
import pytest
import trio
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from tests.support.triton_inputs import inputs
from tests.survival.repository import instances, parameter
from tests.survival.storm import milliseconds, quantile
from tests.survival.strikes import Striker, check_books, tell

PATIENCE = 300.0  # seconds for what must end; the machine may be busy
STEPS = 12
SLOTS = 48  # of each instance: fewer than there are sequences, so that some wait in the backlog

CONFIG = f"""
name: "stateless"
backend: "python"
max_batch_size: 16
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 120000000
  oldest {{ max_candidate_sequences: {SLOTS} }}
  state [ {{
    input_name: "SUM" output_name: "NEW_SUM" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state {{ name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }}
  }} ]
}}
"""

STATELESS = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.003)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name
        now = tensor(request, "SUM").as_numpy() + tensor(request, "X").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", now), pb_utils.Tensor("NEW_SUM", now)])
"""


@pytest.fixture(params=["short", pytest.param("full", marks=pytest.mark.long)])
def storm(request):
    """How many clients there are, how long a storm lasts and how often it strikes, in seconds."""
    if request.param == "full":
        return {"clients": 1000, "lasts": 45.0, "strikes_every": 1.0}
    return {"clients": 100, "lasts": 2.0, "strikes_every": 0.7}


class Crowd:
    """Clients that run sequence after sequence until the storm is over, and then end their current one."""

    def __init__(self, url, model, clients):
        self.url = url
        self.model = model
        self.clients = clients
        self.over = threading.Event()
        self.ended = 0  # sequences, with every sum right
        self.answers = 0
        self.unexpected = []
        self.latencies = []

    def run(self):
        """Return when all have come to their end."""
        asyncio.run(asyncio.wait_for(self._run(), PATIENCE))

    async def _run(self):
        async with tritonclient.grpc.aio.InferenceServerClient(self.url) as client:
            await asyncio.gather(*(self._client(client, number) for number in range(self.clients)))

    async def _client(self, client, number):
        dice = random.Random(number)
        sequence = 0
        while not sequence or not self.over.is_set():
            sequence += 1
            identity = 1 + number + sequence * self.clients
            await self._sequence(client, identity, [float(dice.randrange(100)) for _ in range(STEPS)])

    async def _sequence(self, client, identity, values):
        """Run a sequence from its START to its end."""
        total = 0.0
        for step, value in enumerate(values):
            total += value
            given = inputs(tritonclient.grpc.aio, X=np.array([[value]], np.float32))
            began = time.monotonic()
            try:
                result = await client.infer(
                    self.model,
                    given,
                    sequence_id=identity,
                    sequence_start=step == 0,
                    sequence_end=step == STEPS - 1,
                )
            except InferenceServerException as error:
                self.unexpected.append(f"{error.status()}: {error.message()}")
                return
            self.latencies.append(time.monotonic() - began)
            self.answers += 1
            if (given := result.as_numpy("Y").item()) != total:
                self.unexpected.append(
                    f"sum {given} instead of {total} at step {step} of sequence {identity}"
                )
        self.ended += 1

    def report(self):
        return {
            "clients": self.clients,
            "sequences ended": self.ended,
            "answers": self.answers,
            "latency p50 ms": milliseconds(quantile(self.latencies, 0.5)),
            "latency p99 ms": milliseconds(quantile(self.latencies, 0.99)),
        }


async def test_with_a_checkpoint_no_client_notices_that_workers_are_killed(tritium_server, repository, storm):
    version = repository.path / "stateless" / "1"
    version.mkdir(parents=True)
    settings = parameter("tritium.checkpoint", "true") + parameter("tritium.retry", "always")
    (version.parent / "config.pbtxt").write_text(CONFIG + instances(2) + settings)
    (version / "model.py").write_text(STATELESS)
    model = {"model": "stateless"}
    async with tritium_server() as server:
        crowd = Crowd(server.grpc_url, "stateless", storm["clients"])
        striker = Striker(server, "stateless", signal.SIGKILL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, crowd.run)
            try:
                await server.until_metric_above(storm["clients"], "nv_inference_request_success", **model)
                await striker.strike(storm)
            finally:
                crowd.over.set()
        await server.wait_serving("stateless")
        tell("sequences with a checkpoint", storm, crowd.report(), striker.report())
        assert crowd.unexpected == []
        assert crowd.ended >= crowd.clients
        assert await server.metric("nv_inference_request_success", **model) == crowd.answers
        assert await server.metric("nv_inference_pending_request_count", **model) == 0
        await check_books(server, "stateless", striker, "signal_9")
