"""Rate limits and instance groups on a real server, checked by its models' records and the system's."""

import os
from itertools import pairwise

import numpy as np
import psutil
import pytest
import trio
import tritonclient.grpc
import tritonclient.http

from tests.support.triton_inputs import inputs
from tests.survival.repository import instances
from tests.survival.server import until

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


async def burst(server, models, count):
    """Send `count` requests to each model over gRPC at once; return when all are answered without error."""

    def send():
        finished = []
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        for ticket in range(count):
            for model in models:
                given = inputs(tritonclient.grpc, TICKET=np.array([[ticket]], np.int32))
                told = {"callback": lambda result, error: finished.append(error), "client_timeout": 120}
                client.async_infer(model, given, **told)
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
