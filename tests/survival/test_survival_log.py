"""A real server's log, read by `tritium logs`: requests with a killed worker, and an ensemble's steps."""

import json
import os
import signal
import sys

import numpy as np
import trio

from engine.observability.reading.counting import summary
from engine.observability.reading.reading import read
from engine.observability.reading.timeline import timeline
from engine.observability.reading.tracing import trace
from tests.survival.repository import parameter
from tests.survival.server import ROOT, until

REQUESTS = ("--log-requests=true", "--log-verbose=1")
STEPS = """
platform: "ensemble"
input [ { name: "A" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 16 ] } ]
max_batch_size: 8
ensemble_scheduling { step [ {
  model_name: "python_add_sub" model_version: -1
  input_map [ { key: "A" value: "A" }, { key: "B" value: "B" } ] output_map { key: "SUM" value: "SUM" }
} ] }
"""


def ticket(number):
    return {"TICKET": np.array([[number]], np.int32)}


def operands():
    return {"A": np.ones((1, 16), np.float32), "B": np.ones((1, 16), np.float32)}


def written(tmp_path):
    """The server's log: what it said, and what it complained of."""
    return [tmp_path / "server-1" / f"1.{name}.jsonl" for name in ("stdout", "stderr")]


async def command(*words):
    """What `tritium logs` prints."""
    run = [sys.executable, "-m", "engine", "logs", *map(str, words)]
    return (await trio.run_process(run, capture_stdout=True, cwd=ROOT)).stdout.decode()


async def test_a_request_is_followed_through_the_death_of_its_worker_to_its_second_attempt(
    tritium_server, repository, gates, tmp_path
):
    repository.gated(gates.directory, config=parameter("tritium.retry", "always"))
    async with tritium_server(*REQUESTS) as server:
        async with await server.connect() as connection, trio.open_nursery() as nursery:

            async def ask():
                assert (await connection.infer("gated", inputs=ticket(7), request_id="r7")).attempts == 2

            nursery.start_soon(ask)
            await until(lambda: gates.began() == [7])
            [first] = await server.workers("gated")
            os.kill(first, signal.SIGKILL)
            await until(lambda: gates.began() == [7, 7])
            gates.open(7)
        [second] = await server.workers("gated")
    log = written(tmp_path)

    (exited,) = [line for line in read(log) if line.event == "worker_exited" and line.level == "warning"]
    assert exited.matches("worker_exited", {"pid": first, "reason": "signal_9", "executing": ["r7"]})
    traced = trace(read(log), "r7")
    assert [stage.what for stage in traced.stages] == [
        *("accepted", "dispatched", "worker_exited", "dispatched", "executed", "completed"),
    ]
    [end] = traced.ends
    assert (end.attempts, end.pid, end.instance, end.batch_requests) == (2, second, "gated_0", 1)
    assert end.line.keys["protocol"] == "http"
    assert end.spent.earlier > end.spent.compute_output
    [outage] = timeline(read(log)).outages
    assert (outage.who, outage.pid, outage.reason) == ("models/gated/1/instances/0", first, "signal_9")
    assert outage.seconds is not None
    assert summary(read(log)).deaths == {("gated", "signal_9"): 1}

    document = json.loads(await command(*log, "--timeline", "--instance", "gated_0", "--json"))
    assert [each["pid"] for each in document["outages"]] == [first]
    assert "signal_9" in await command(*log, "--event", "worker_exited", "--level", "warning")


async def test_the_steps_of_an_ensemble_are_told_with_the_request_that_they_are_of(
    tritium_server, repository, tmp_path
):
    repository.python_add_sub()
    (repository.path / "whole" / "1").mkdir(parents=True)
    (repository.path / "whole" / "config.pbtxt").write_text(STEPS)
    async with tritium_server("--log-requests=true") as server:
        async with await server.connect() as connection:
            assert (await connection.infer("whole", inputs=operands())).ok
    ends = {line.keys["model"]: line.keys for line in read(written(tmp_path)) if "total_us" in line.keys}
    assert set(ends) == {"whole", "python_add_sub"}
    assert ends["python_add_sub"]["relation"] == "step"
    assert ends["python_add_sub"]["parent"] == ends["whole"]["serial"]
    assert "relation" not in ends["whole"]
    traced = trace(read(written(tmp_path)), f"#{ends['whole']['serial']}")
    assert [each.model for each in traced.ends] == ["whole", "python_add_sub"]


async def test_a_server_that_logs_no_requests_says_nothing_of_them_unless_their_worker_dies(
    tritium_server, repository, gates, tmp_path
):
    repository.gated(gates.directory)
    async with tritium_server("--log-verbose=1") as server:
        async with await server.connect() as connection, trio.open_nursery() as nursery:

            async def ask():
                assert (await connection.infer("gated", inputs=ticket(1), request_id="r1")).status == 503

            nursery.start_soon(ask)
            await until(lambda: gates.began() == [1])
            [worker] = await server.workers("gated")
            os.kill(worker, signal.SIGKILL)
    events = [line.event for line in read(written(tmp_path))]
    assert "batch_dispatched" not in events
    assert "request_accepted" not in events
    (exited,) = [
        line for line in read(written(tmp_path)) if line.event == "worker_exited" and line.level == "warning"
    ]
    assert exited.keys["executing"] == exited.keys["refused"] == ["r1"]
