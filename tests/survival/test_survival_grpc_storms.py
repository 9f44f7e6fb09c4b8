"""The storms of HTTP over gRPC: unary calls and open streams, whose answers a worker's death must not cost.

A stream outlives every failure on it: a message tells the error. The call ends with OK when the client ends
it.
"""

import signal
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from tests.survival.grpc_wire import (
    FAILED_PRECONDITION,
    OK,
    STREAM_INFER,
    UNAVAILABLE,
    Streamed,
    Unary,
    channel_to,
)
from tests.survival.repository import POISON, WIDTH, install_poisonable, instances, parameter
from tests.survival.storm import Storm
from tests.survival.strikes import Striker, check_books, tell

pytestmark = pytest.mark.slow

UNARY = 8  # clients
STREAMS = 2
ON_A_STREAM = 3  # clients


@pytest.fixture
def storm(storm):
    """Shorter than HTTP's where it is short: workers die there and here in the same way."""
    full = storm["lasts"] >= 60
    return storm if full else {**storm, "lasts": storm["lasts"] / 2}


class GrpcStorm:
    """Clients of one server: `model` by unary calls and on streams, and others beside them."""

    def __init__(self, server):
        self._storm = Storm(server)

    @property
    def unary(self):
        return self._storm.tallies["unary"]

    @property
    def streamed(self):
        return self._storm.tallies["streamed"]

    @property
    def bystanders(self):
        return self._storm.tallies["bystanders"]

    async def ask(self, model, asking, tally):
        async def connect():
            return asking

        await self._storm.client(model, connect=connect, tally_as=tally)

    async def ask_on_a_stream(self, model, streamed):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(streamed.run)
            async with trio.open_nursery() as clients:
                for _ in range(ON_A_STREAM):
                    clients.start_soon(self.ask, model, streamed, "streamed")
            assert await streamed.end() == OK

    def stop(self):
        self._storm.stopping = True

    def check(self):
        for tally in self._storm.tallies.values():
            assert tally.answered
            tally.check()
        assert not self.bystanders.errors

    def report(self):
        return {name: tally.report() for name, tally in self._storm.tallies.items()}


@asynccontextmanager
async def grpc_clients_of(server, model, bystander):
    """Run clients around the block, all on two connections, and let each finish its last request after it."""
    storm = GrpcStorm(server)
    async with channel_to(server.grpc_port) as one, channel_to(server.grpc_port) as other:
        async with trio.open_nursery() as nursery:
            for number in range(UNARY):
                nursery.start_soon(storm.ask, model, Unary((one, other)[number % 2]), "unary")
            for number in range(STREAMS):
                streamed = Streamed(await (one, other)[number % 2].call(STREAM_INFER))
                nursery.start_soon(storm.ask_on_a_stream, model, streamed)
            for channel in (one, other):
                nursery.start_soon(storm.ask, bystander, Unary(channel), "bystanders")
            yield storm
            storm.stop()
    storm.check()


async def test_kills_of_a_python_models_workers_cost_typed_errors_and_no_stream(
    tritium_server, repository, storm
):
    repository.python_add_sub()
    repository.onnx_add_sub(config=instances(1))
    async with tritium_server() as server:
        striker = Striker(server, "python_add_sub", signal.SIGKILL)
        async with grpc_clients_of(server, "python_add_sub", "onnx_add_sub") as clients:
            await striker.strike(storm)
        tell("gRPC, python under SIGKILL", storm, striker.report(), clients.report())
        assert set(clients.unary.errors) <= {UNAVAILABLE}
        assert set(clients.streamed.errors) <= {OK}  # the error is in the message
        errors = clients.unary.errors.total() + clients.streamed.errors.total()
        assert errors <= len(striker.struck_at) * 8  # one batch of eight for each kill
        for tally in (clients.unary, clients.streamed):
            assert all("died of signal 9 (SIGKILL)" in message for message in tally.messages)
            assert set(tally.attempts) == {1}
        await check_books(server, "python_add_sub", striker, "signal_9")


async def test_a_poisonous_input_fails_its_own_call_and_its_own_turn_on_a_stream(
    tritium_server, repository, storm, tmp_path
):
    repository.poisonable(config=instances(2) + parameter("pause", 0.005))
    repository.onnx_add_sub(config=instances(1))
    environ = {"PYTHONPATH": str(install_poisonable(tmp_path / "plugins"))}
    async with tritium_server(environ=environ) as server:
        poisoned: Counter[Any] = Counter()
        async with grpc_clients_of(server, "poisonable", "onnx_add_sub") as clients:
            poisoned = await poison(server, storm["lasts"])
        deaths = await server.metric("tritium_worker_deaths_total", model="poisonable", reason="signal_11")
        tell("gRPC, poison", storm, {"poison by status": poisoned, "worker deaths": deaths}, clients.report())
        assert set(poisoned) == {FAILED_PRECONDITION, OK}
        assert not clients.unary.errors
        assert not clients.streamed.errors
        assert await server.metric("tritium_reply_violations_total") == 0


async def poison(server, seconds):
    """Send requests that kill workers, in turn by calls and on a stream; return the statuses, all errors."""
    statuses: Counter[Any] = Counter()
    deadline = trio.current_time() + seconds
    async with channel_to(server.grpc_port) as channel, trio.open_nursery() as nursery:
        streamed = Streamed(await channel.call(STREAM_INFER))
        nursery.start_soon(streamed.run)
        number = 0
        while trio.current_time() < deadline:
            for asking in (channel, streamed):
                number += 1
                answer = await asking.infer("poisonable", inputs=poisonous(number))
                assert "SIGSEGV" in answer.error
                statuses[answer.status] += 1
                again = await asking.infer("poisonable", inputs=poisonous(number))
                assert "quarantined" in again.error
                assert again.status == answer.status
            await trio.sleep(0.1)
        assert await streamed.end() == OK
    return statuses


def poisonous(number):
    """Inputs that differ each time: repeated ones would be quarantined, and would not kill a worker."""
    return {"A": np.full((1, WIDTH), POISON, np.float32), "B": np.full((1, WIDTH), number, np.float32)}
