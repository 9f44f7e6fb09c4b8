"""Rate limits and instance groups on a real server, checked by its models' records and the system's."""

import os
import signal
from itertools import pairwise

import numpy as np
import psutil
import pytest
import trio
import tritonclient.grpc
import tritonclient.http

from tests.survival.repository import instances
from tests.survival.server import until

pytestmark = pytest.mark.slow

ON = "--rate-limit=execution_count"


def limited(*resources, count=1, priority=0):
    """Configuration text: a group whose instances need these resources."""
    listed = ", ".join(f"{{ {resource} }}" for resource in resources)
    limiter = f"rate_limiter {{ resources [ {listed} ] priority: {priority} }}"
    return f"instance_group [ {{ kind: KIND_CPU count: {count} {limiter} }} ]\n"


SHARED = 'name: "R" global: true count: 1'


@pytest.fixture
def record(tmp_path):
    return tmp_path / "record"


def executions(record):
    """(instance, began, ended) of every execution so far, by its beginning."""
    if not record.exists():
        return []
    lines = [line.split() for line in record.read_text().splitlines()]
    return sorted(((name, int(began), int(ended)) for name, began, ended in lines), key=lambda each: each[1])


def overlaps(executed):
    return sum(later[1] < earlier[2] for earlier, later in pairwise(executed))


async def burst(server, models, count, *, in_sequences=False):
    """Send `count` requests to each model over gRPC at once; return when all are answered without error."""

    def send():
        finished = []
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        for ticket in range(count):
            for model in models:
                tensor = tritonclient.grpc.InferInput("TICKET", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.array([[ticket]], np.int32))
                options = {"sequence_id": ticket + 1, "sequence_start": True, "sequence_end": True}
                answers = {"callback": lambda result, error: finished.append(error), "client_timeout": 120}
                client.async_infer(model, [tensor], **answers, **(options if in_sequences else {}))
        return client, finished

    client, finished = await trio.to_thread.run_sync(send)
    await until(lambda: len(finished) == count * len(models))
    await trio.to_thread.run_sync(client.close)
    return [error for error in finished if error is not None]


async def test_models_that_share_a_global_resource_never_execute_at_once(tritium_server, repository, record):
    repository.recording(record, "one", config=limited(SHARED, count=2))
    repository.recording(record, "other", config=limited(SHARED))
    repository.recording(record, "free", config=instances(1))
    async with tritium_server(ON) as server:
        assert await burst(server, ["one", "other", "free"], 25) == []
        executed = executions(record)
        assert len(executed) == 75
        assert overlaps([each for each in executed if not each[0].startswith("free")]) == 0
        assert overlaps(executed) > 0


async def test_a_passive_instance_is_loaded_and_never_executes(tritium_server, repository, record):
    config = "instance_group [ { kind: KIND_CPU count: 2 }, { kind: KIND_CPU count: 1 passive: true } ]\n"
    warmup = 'inputs { key: "TICKET" value { data_type: TYPE_INT32 dims: 1 zero_data: true } }'
    repository.recording(
        record, "model", config=config + f'model_warmup {{ name: "w" batch_size: 1 {warmup} }}\n'
    )
    async with tritium_server() as server:
        nodes = await server.instances("model")
        assert [node["info"]["phase"] for node in nodes] == ["serving", "serving", "passive"]
        assert psutil.pid_exists(nodes[2]["info"]["pid"])
        assert len(executions(record)) == 2  # the warmups
        assert await burst(server, ["model"], 30) == []
        assert {name for name, _, _ in executions(record)} == {"model_0_0", "model_0_1"}
        assert await server.metric("tritium_instances", model="model", state="passive") == 1
        os.kill(nodes[2]["info"]["pid"], signal.SIGKILL)
        await server.until_metric(1, "tritium_worker_deaths", model="model")
        await server.until_metric(1, "tritium_instances", model="model", state="passive")


async def test_a_host_policy_binds_workers_to_its_cores(tritium_server, repository, record):
    cores = sorted(os.sched_getaffinity(0))
    groups = (
        'instance_group [ { kind: KIND_CPU count: 1 }, { kind: KIND_CPU count: 1 host_policy: "last" },'
        ' { kind: KIND_CPU count: 1 host_policy: "nobodys" } ]\n'
    )
    repository.recording(record, "model", config=groups)
    flags = (f"--host-policy=cpu,cpu-cores={cores[0]}", f"--host-policy=last,cpu-cores={cores[-1]}")
    async with tritium_server(*flags) as server:
        bound = [psutil.Process(pid).cpu_affinity() for pid in await server.workers("model")]
        assert bound == [[cores[0]], [cores[-1]], cores]
        assert sorted(psutil.Process(server.pid).cpu_affinity()) == cores
        (warning,) = [line["warning"] for line in server.logged("model_loading") if "warning" in line]
        assert warning.startswith("host policy 'nobodys' has no effect: ")


async def test_a_host_policy_of_cores_that_are_not_there_keeps_the_server_from_starting(
    tritium_server, repository
):
    async with tritium_server("--host-policy=cpu,cpu-cores=0,4000", ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        assert (
            "host policy 'cpu' asks for the cores 4000, which this server may not use" in server.failures[0]
        )
