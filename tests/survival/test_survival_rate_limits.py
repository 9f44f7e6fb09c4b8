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

from tests.survival.repository import instances, parameter
from tests.survival.server import eventually, until

pytestmark = pytest.mark.slow

ON = "--rate-limit=execution_count"
CONFLICT = 'Resource "R" is present as both global and device-specific resource in the model configuration.'


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


async def test_sequences_wait_for_resources_too(tritium_server, repository, record):
    repository.recording(record, "one", config="sequence_batching { }\n" + limited(SHARED, count=2))
    repository.recording(record, "other", config="sequence_batching { oldest { } }\n" + limited(SHARED))
    async with tritium_server(ON) as server:
        assert await burst(server, ["one", "other"], 15, in_sequences=True) == []
        executed = executions(record)
        assert len(executed) == 30
        assert overlaps(executed) == 0


async def test_instances_that_a_reload_adds_are_limited_too(tritium_server, repository, record):
    repository.recording(record, "one", config=limited(SHARED))
    async with tritium_server(ON, "--model-control-mode=explicit", "--load-model=one") as server:
        config = repository.path / "one" / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 1 rate", "count: 3 rate"))
        assert (await server.get("/v2/repository/models/one/load", method="POST")).status == 200
        assert len(await server.workers("one")) == 3
        assert await burst(server, ["one"], 30) == []
        executed = executions(record)
        assert {name for name, _, _ in executed} == {"one_0_0", "one_0_1", "one_0_2"}
        assert overlaps(executed) == 0


async def test_without_the_flag_limits_have_no_effect(tritium_server, repository, record):
    repository.recording(record, "one", config=limited(SHARED))
    repository.recording(record, "other", config=limited(SHARED))
    async with tritium_server() as server:
        assert await burst(server, ["one", "other"], 25) == []
        assert overlaps(executions(record)) > 0


async def test_priorities_share_a_resource_and_capacity_comes_from_the_command_line(
    tritium_server, repository, record
):
    for name, priority in (("first", 1), ("second", 2)):
        repository.recording(record, name, config=limited('name: "R" count: 2', priority=priority))
    async with tritium_server(ON, "--rate-limit-resource=R:3") as server:
        assert await burst(server, ["first", "second"], 40) == []
        executed = executions(record)
        assert overlaps(executed) == 0
        until_half = [name.partition("_")[0] for name, _, _ in executed[6:48]]
        assert until_half.count("first") == pytest.approx(28, abs=3)


async def test_what_could_never_execute_is_not_loaded(tritium_server, repository, record):
    repository.recording(record, "greedy", config=limited('name: "R" count: 4'))
    async with tritium_server(
        ON, "--rate-limit-resource=R:3", "--exit-on-error=false", ready=False
    ) as server:
        await server.wait_loaded()
        assert (await server.index())["greedy"]["reason"] == (
            'Invalid argument: Resource count for "R" is limited to 3 which will prevent scheduling of one or more '
            "model instances, the minimum required count is 4"
        )


async def test_a_resource_that_is_global_in_one_model_is_so_in_all(tritium_server, repository, record):
    repository.recording(record, "first", config=limited(SHARED))
    repository.recording(record, "second", config=limited('name: "R" count: 1'))
    flags = ("--model-control-mode=explicit", "--load-model=first")
    async with tritium_server(ON, *flags) as server:
        answer = await server.get("/v2/repository/models/second/load", method="POST")
        assert answer.status == 400
        assert CONFLICT in answer.json()["error"]
        assert (await server.get("/v2/repository/models/first/unload", method="POST")).status == 200

        async def gone():
            return (await server.index())["first"].get("reason") == "unloaded"

        await eventually(gone)
        assert (await server.get("/v2/repository/models/second/load", method="POST")).status == 200
        assert await burst(server, ["second"], 3) == []


async def test_the_death_of_a_worker_frees_what_it_held(tritium_server, repository, gates, record):
    repository.gated(gates.directory, config=limited(SHARED) + parameter("tritium.retry", "never"))
    repository.recording(record, "other", config=limited(SHARED))
    async with tritium_server(ON) as server, trio.open_nursery() as nursery:
        failures = []

        async def ask_gated():
            failures.extend(await burst(server, ["gated"], 1))

        nursery.start_soon(ask_gated)
        await until(lambda: bool(gates.began()))
        nursery.start_soon(burst, server, ["other"], 2)
        await server.until_metric(2, "nv_inference_pending_request_count", model="other")
        assert executions(record) == []
        (pid,) = await server.workers("gated")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(executions(record)) == 2)
        await until(lambda: len(failures) == 1)


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
