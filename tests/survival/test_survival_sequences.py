"""Sequences whose workers are killed: what their clients are told, and that all sequences end."""

from __future__ import annotations

import asyncio  # noqa: TID251  # tritonclient.grpc.aio runs on it, in a thread of its own
import random
import signal
import threading
import time
from collections import Counter
from textwrap import dedent

import grpc
import numpy as np
import pytest
import trio
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from tests.survival.repository import instances, parameter
from tests.survival.storm import milliseconds, quantile
from tests.survival.strikes import Striker, check_books, tell

pytestmark = pytest.mark.slow

PATIENCE = 300.0  # seconds for what must end; the machine may be busy
STEPS = 12
SLOTS = 48  # of each instance: fewer than there are sequences, so that some wait in the backlog
LOST = "has ended: its instance"
NO_START = "must specify the START flag on the first request of the sequence"

PORTS = f"""
backend: "python"
max_batch_size: 16
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 120000000
  oldest {{ max_candidate_sequences: {SLOTS} }}
  @MORE@
}}
"""

STATE = """
  state [ {
    input_name: "SUM" output_name: "NEW_SUM" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
  } ]
"""

REMEMBERING = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        time.sleep(0.003)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        key = request.correlation_id()
        before = 0.0 if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START else self.sums[key]
        now = self.sums[key] = before + pb_utils.get_input_tensor_by_name(request, "X").as_numpy().item()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[now]], np.float32))])
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


def lay_out(repository, name, code, more="", config=""):
    version = repository.path / name / "1"
    version.mkdir(parents=True)
    text = PORTS.replace("@MORE@", more) + instances(2) + config
    (repository.path / name / "config.pbtxt").write_text(f'name: "{name}"\n{text}')
    (version / "model.py").write_text(dedent(code))


class Crowd:
    """Clients that run sequence after sequence until the storm is over, and then end their current one."""

    def __init__(self, url, model, clients):
        self.url = url
        self.model = model
        self.clients = clients
        self.over = threading.Event()
        self.ended = 0  # sequences, with every sum right
        self.lost = 0  # sequences that were told so
        self.answers = 0
        self.errors: Counter[str] = Counter()
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
            while not await self._sequence(
                client, identity, [float(dice.randrange(100)) for _ in range(STEPS)]
            ):
                self.lost += 1

    async def _sequence(self, client, identity, values):
        """Run a sequence from its START; False where the server says that it has lost it."""
        total = 0.0
        for step, value in enumerate(values):
            total += value
            tensor = tritonclient.grpc.aio.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[value]], np.float32))
            began = time.monotonic()
            try:
                result = await client.infer(
                    self.model,
                    [tensor],
                    sequence_id=identity,
                    sequence_start=step == 0,
                    sequence_end=step == STEPS - 1,
                )
            except InferenceServerException as error:
                return self._told(error, step)
            self.latencies.append(time.monotonic() - began)
            self.answers += 1
            if (given := result.as_numpy("Y").item()) != total:
                self.unexpected.append(
                    f"sum {given} instead of {total} at step {step} of sequence {identity}"
                )
        self.ended += 1
        return True

    def _told(self, error, step):
        code, message = error.status(), error.message()
        if code == f"{grpc.StatusCode.UNAVAILABLE}" and LOST in message:
            self.errors["lost"] += 1
        elif code == f"{grpc.StatusCode.INVALID_ARGUMENT}" and NO_START in message and step:
            self.errors["unknown since"] += 1  # it was between two requests when its worker died
        else:
            self.errors["other"] += 1
            self.unexpected.append(f"{code}: {message}")
        return False

    def report(self):
        return {
            "clients": self.clients,
            "sequences ended": self.ended,
            "sequences lost and begun anew": self.lost,
            "answers": self.answers,
            "errors": dict(self.errors),
            "latency p50 ms": milliseconds(quantile(self.latencies, 0.5)),
            "latency p99 ms": milliseconds(quantile(self.latencies, 0.99)),
        }


async def weather(server, model, storm):
    """Have a crowd run its sequences while workers are killed; return the crowd and the striker."""
    crowd = Crowd(server.grpc_url, model, storm["clients"])
    striker = Striker(server, model, signal.SIGKILL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, crowd.run)
        try:
            await server.until_metric_above(storm["clients"], "nv_inference_request_success", model=model)
            await striker.strike(storm)
        finally:
            crowd.over.set()
    await server.wait_serving(model)
    return crowd, striker


async def check(server, model, crowd, striker):
    assert crowd.unexpected == []
    assert crowd.ended >= crowd.clients
    assert await server.metric("nv_inference_request_success", model=model) == crowd.answers
    assert await server.metric("nv_inference_pending_request_count", model=model) == 0
    await check_books(server, model, striker, "signal_9")


async def test_a_sequence_that_loses_its_worker_is_told_once_and_can_begin_anew(
    tritium_server, repository, storm
):
    lay_out(repository, "remembering", REMEMBERING)
    async with tritium_server() as server:
        crowd, striker = await weather(server, "remembering", storm)
        tell("sequences without a checkpoint", storm, crowd.report(), striker.report())
        await check(server, "remembering", crowd, striker)
        assert sum(crowd.errors.values()) == crowd.lost > 0


async def test_with_a_checkpoint_no_client_notices_that_workers_are_killed(tritium_server, repository, storm):
    config = parameter("tritium.checkpoint", "true") + parameter("tritium.retry", "always")
    lay_out(repository, "stateless", STATELESS, STATE, config)
    async with tritium_server() as server:
        crowd, striker = await weather(server, "stateless", storm)
        tell("sequences with a checkpoint", storm, crowd.report(), striker.report())
        await check(server, "stateless", crowd, striker)
        assert crowd.lost == 0
