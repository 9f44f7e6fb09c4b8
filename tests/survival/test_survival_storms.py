"""Sixteen clients, and a worker struck down again and again: no request is lost, wrong, or answered twice."""

import signal
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from tests.survival.repository import POISON, WIDTH, install_poisonable, instances, parameter
from tests.survival.storm import Storm, milliseconds
from tests.survival.strikes import Striker, check_books, tell

CLIENTS = 16


@asynccontextmanager
async def clients_of(server, counts):
    """Run `counts` clients of each model around the block, and let each finish its last request."""
    storm = Storm(server)
    async with trio.open_nursery() as nursery:
        for model, count in counts.items():
            for _ in range(count):
                nursery.start_soon(storm.client, model)
        yield storm
        storm.stopping = True
    for tally in storm.tallies.values():
        tally.check()


@pytest.mark.long
async def test_an_onnx_model_whose_workers_are_killed_answers_everything(tritium_server, repository, storm):
    repository.onnx_add_sub()
    repository.python_add_sub()
    async with tritium_server() as server:
        striker = Striker(server, "onnx_add_sub", signal.SIGKILL)
        async with clients_of(server, {"onnx_add_sub": CLIENTS - 2, "python_add_sub": 2}) as clients:
            await striker.strike(storm)
        onnx, bystander = clients.tallies["onnx_add_sub"], clients.tallies["python_add_sub"]
        tell(
            "onnx under SIGKILL",
            storm,
            striker.report(),
            {"onnx": onnx.report(), "bystander": bystander.report()},
        )
        assert not onnx.errors
        assert not bystander.errors
        await check_books(server, "onnx_add_sub", striker, "signal_9")
        assert await server.metric("tritium_worker_deaths_total", model="python_add_sub") == 0


async def test_a_python_model_loses_what_was_in_flight_to_a_typed_error_and_nothing_else(
    tritium_server, repository, storm
):
    repository.python_add_sub()
    repository.onnx_add_sub(config=instances(1))
    async with tritium_server() as server:
        striker = Striker(server, "python_add_sub", signal.SIGKILL)
        async with clients_of(server, {"python_add_sub": CLIENTS - 2, "onnx_add_sub": 2}) as clients:
            await striker.strike(storm)
        python, bystander = clients.tallies["python_add_sub"], clients.tallies["onnx_add_sub"]
        delays = [min(at - struck for struck in striker.struck_at if struck <= at) for at in python.failed_at]
        tell(
            "python under SIGKILL",
            storm,
            striker.report(),
            {"python": python.report(), "bystander": bystander.report()},
            {"kill to 503, worst ms": milliseconds(max(delays, default=0.0))},
        )
        assert set(python.errors) <= {503}
        assert python.errors.get(503, 0) <= len(striker.struck_at) * 8  # one batch of eight for each kill
        assert all("died of signal 9 (SIGKILL)" in message for message in python.messages)
        assert all("tritium.retry" in message for message in python.messages)
        assert set(python.attempts) == {1}
        assert not bystander.errors
        await check_books(server, "python_add_sub", striker, "signal_9")


@pytest.mark.long
async def test_a_model_whose_workers_are_stopped_hangs_nobody(tritium_server, repository, storm):
    # Four instances, so that some requests always find a worker that runs: a stopped one holds its requests
    # for a second.
    repository.onnx_add_sub(config=instances(4) + parameter("tritium.execution_timeout", 1))
    repository.python_add_sub()
    async with tritium_server() as server:
        striker = Striker(server, "onnx_add_sub", signal.SIGSTOP)
        async with clients_of(server, {"onnx_add_sub": CLIENTS - 2, "python_add_sub": 2}) as clients:
            await striker.strike(storm)
        onnx, bystander = clients.tallies["onnx_add_sub"], clients.tallies["python_add_sub"]
        tell(
            "onnx under SIGSTOP",
            storm,
            striker.report(),
            {"onnx": onnx.report(), "bystander": bystander.report()},
        )
        assert not onnx.errors
        assert not bystander.errors
        await check_books(server, "onnx_add_sub", striker, "hang")


@pytest.mark.long
async def test_one_poisonous_input_is_refused_and_its_batchmates_are_all_answered(
    tritium_server, repository, storm, tmp_path
):
    repository.poisonable(config=instances(2) + parameter("pause", 0.005))
    repository.onnx_add_sub(config=instances(1))
    environ = {"PYTHONPATH": str(install_poisonable(tmp_path / "plugins"))}
    async with tritium_server(environ=environ) as server:
        poisoned: Counter[Any] = Counter()
        async with clients_of(server, {"poisonable": CLIENTS - 2, "onnx_add_sub": 2}) as clients:
            deadline = trio.current_time() + storm["lasts"]
            number = 0
            async with await server.connect() as connection:
                while trio.current_time() < deadline:
                    number += 1
                    # New inputs each time: repeated ones would be quarantined, and would not kill a worker.
                    inputs = {
                        "A": np.full((1, WIDTH), POISON, np.float32),
                        "B": np.full((1, WIDTH), number, np.float32),
                    }
                    response = await connection.infer("poisonable", inputs=inputs)
                    poisoned[response.status] += 1
                    assert "SIGSEGV" in response.error
                    await trio.sleep(0.1)
                again = await connection.infer("poisonable", inputs=inputs)
        mates, bystander = clients.tallies["poisonable"], clients.tallies["onnx_add_sub"]
        deaths = await server.metric("tritium_worker_deaths_total", model="poisonable", reason="signal_11")
        tell(
            "poison",
            storm,
            {"poison by status": poisoned, "worker deaths": deaths},
            {"batchmates": mates.report(), "bystander": bystander.report()},
        )
        assert set(poisoned) == {422}
        assert not mates.errors
        assert not bystander.errors
        assert again.status == 422
        assert "quarantined" in again.error
        assert deaths <= number * 6  # log2(16) to be alone, one more chance, and a bit of company
        assert await server.metric("tritium_reply_violations_total") == 0
