"""Sixteen clients, and a worker struck down again and again: no request is lost, wrong, or answered twice."""

import json
import os
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from tests.survival.repository import POISON, WIDTH, install_poisonable, instances, parameter
from tests.survival.server import ROOT, serving
from tests.survival.storm import Storm, milliseconds, quantile

pytestmark = pytest.mark.slow

CLIENTS = 16


class Striker:
    """Sends a signal to one worker of a model at a time, and watches its instance come back."""

    def __init__(self, server, model, number):
        self.server = server
        self.model = model
        self.number = number
        self.struck_at = []
        self.recoveries = []
        self._struck = set()  # process ids; a stopped worker still looks as if it served

    async def strike(self, storm):
        """Strike some worker that serves, again and again; return when the last one is back."""
        async with trio.open_nursery() as nursery:
            due = trio.current_time()
            deadline = due + storm["lasts"]
            while trio.current_time() < deadline:
                victim = await self._victim()
                os.kill(victim["info"]["pid"], self.number)
                self.struck_at.append(trio.current_time())
                self._struck.add(victim["info"]["pid"])
                nursery.start_soon(self._watch, victim["path"], victim["info"]["pid"], self.struck_at[-1])
                due = max(due + storm["strikes_every"], trio.current_time())
                await trio.sleep_until(due)

    async def _victim(self):
        """The serving instance that was restarted least; while none serves, wait."""
        while True:
            nodes = await self.server.instances(self.model)
            alive = [node for node in nodes if serving(node) and node["info"]["pid"] not in self._struck]
            if alive:
                return min(alive, key=lambda node: node["restarts"])
            await trio.sleep(0.02)

    async def _watch(self, path, pid, struck_at):
        with trio.fail_after(60):
            while True:
                node = await self.server.node(path)
                if serving(node) and node["info"]["pid"] != pid:
                    break
                await trio.sleep(0.02)
        self.recoveries.append(trio.current_time() - struck_at)

    def report(self):
        return {
            "strikes": len(self.struck_at),
            "recovery p50 ms": milliseconds(quantile(self.recoveries, 0.5)),
            "recovery p99 ms": milliseconds(quantile(self.recoveries, 0.99)),
        }


@asynccontextmanager
async def clients_of(server, counts):
    """Run so many clients of each model around the block, and let each finish its last request after it."""
    storm = Storm(server)
    async with trio.open_nursery() as nursery:
        for model, count in counts.items():
            for _ in range(count):
                nursery.start_soon(storm.client, model)
        yield storm
        storm.stopping = True
    for tally in storm.tallies.values():
        tally.check()


async def check_books(server, model, striker, label):
    """What the server says of it agrees: deaths, restarts in the tree and on its command line, no answer too many."""
    nodes = await server.instances(model)
    restarts = sum(node["restarts"] for node in nodes)
    assert restarts == await server.metric("tritium_worker_deaths_total", model=model, reason=label)
    # A busy machine may make a worker look stopped that was not.
    assert restarts == len(striker.struck_at) or (label == "hang" and restarts > len(striker.struck_at))
    assert await server.metric("tritium_reply_violations_total") == 0
    shown = await trio.run_process(
        [sys.executable, "-m", "engine", "tree", "--url", f"http://{server.url}"],
        cwd=ROOT,
        capture_stdout=True,
    )
    most = max(node["restarts"] for node in nodes)
    assert f"{most} restart" in shown.stdout.decode()


def tell(name, storm, *reports):
    figures = {"seconds": storm["lasts"]}
    for report in reports:
        figures.update(report)
    print(f"\n{name}: {json.dumps(figures, indent=2)}", file=sys.stderr)


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


async def test_a_model_whose_workers_are_stopped_hangs_nobody(tritium_server, repository, storm):
    # Four, so that not everything always waits in a worker that was stopped a moment ago: each holds requests for a second.
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


async def test_one_poisonous_input_is_refused_and_its_batchmates_are_all_answered(
    tritium_server, repository, storm, tmp_path
):
    repository.poisonable(config=instances(2) + parameter("pause", 0.005))
    repository.onnx_add_sub(config=instances(1))
    environ = {"PYTHONPATH": str(install_poisonable(tmp_path / "plugins"))}
    async with tritium_server(environ=environ) as server:
        poisoned = Counter()
        async with clients_of(server, {"poisonable": CLIENTS - 2, "onnx_add_sub": 2}) as clients:
            deadline = trio.current_time() + storm["lasts"]
            number = 0
            async with await server.connect() as connection:
                while trio.current_time() < deadline:
                    number += 1
                    # A new one each time: the same again would meet its quarantine, and kill nobody.
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
