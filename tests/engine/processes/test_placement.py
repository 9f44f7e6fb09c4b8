"""Flags about instances: the amount of each resource, and the cores that workers run on."""

import os
import socket

import pytest
import trio

from actors.serving.policy.retries import Exit
from actors.values.specs import InstanceSpec
from engine.cli.serve import help_text
from engine.processes.placement import (
    place,
    policy_name,
    resolve,
    undefined_policies,
)
from engine.processes.workers import ThreadWorker
from engine.settings.forms import SettingsError
from engine.settings.instances import HostPolicy, parse_cores
from engine.settings.settings import Settings
from tests.support.model_doubles import make_spec


def read(*flags, environ=None):
    return Settings.from_argv(["--model-repository=/models", *flags], environ)


def refusal(*flags):
    with pytest.raises(SettingsError) as refused:
        read(*flags)
    return refused.value


def test_rate_limits_are_off_unless_asked_for():
    assert not read().rate_limit
    assert not read("--rate-limit=off").rate_limit
    assert read("--rate-limit=execution_count").rate_limit


def test_resources_are_read_with_and_without_a_device():
    settings = read(
        "--rate-limit=execution_count",
        "--rate-limit-resource=R:4",
        "--rate-limit-resource=R:8:1",
        "--rate-limit-resource=S:0",
    )
    assert settings.rate_limit_resources == {("R", None): 4, ("R", 1): 8, ("S", None): 0}
    assert settings.warnings == ()


def test_resources_may_come_from_the_environment():
    environ = {"TRITIUM_RATE_LIMIT": "execution_count", "TRITIUM_RATE_LIMIT_RESOURCE": "R:4;S:2:0"}
    assert read(environ=environ).rate_limit_resources == {("R", None): 4, ("S", 0): 2}


def test_resources_that_nothing_is_limited_by_are_named_in_a_warning():
    (warning,) = read("--rate-limit-resource=R:4").warnings
    assert warning.startswith("--rate-limit-resource has no effect: only --rate-limit=execution_count")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        *(
            (
                f"--rate-limit-resource={value}",
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or"
                f" '<resource_name>:<count>'. Got {value}",
            )
            for value in ("R", "R:", ":4", "R:x", "R:-1", "R:4:", "R:4:gpu", "R:4:0:0", "")
        ),
        ("--rate-limit-resource=R:3000000000", "out of bound"),
        *(
            (
                f"--host-policy={value}",
                f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {value}",
            )
            for value in ("cpu", "cpu,numa-node", ",numa-node=0", "numa-node=0", "cpu,=0", "cpu,cpu-cores=")
        ),
        (
            "--host-policy=cpu,nice=3",
            "Unsupported host policy setting 'nice' is specified, supported settings are"
            " 'numa-node', 'cpu-cores'",
        ),
        *(
            (
                f"--host-policy=cpu,cpu-cores={cores}",
                "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'."
                f" Got {cores}",
            )
            for cores in ("a", "3-1", "0-", "1,,2", "0-99999", "-1")
        ),
        ("--host-policy=cpu,numa-node=first", "Got first"),
    ],
)
def test_a_resource_or_policy_in_another_form_is_refused(flag, message):
    assert message in refusal(flag).message


def test_host_policies_are_read_by_name():
    settings = read(
        "--host-policy=cpu,cpu-cores=0-2,5",
        "--host-policy=gpu_0,numa-node=1",
        "--host-policy=gpu_0,cpu-cores=7",
    )
    assert settings.host_policies == {
        "cpu": HostPolicy(cores=(0, 1, 2, 5)),
        "gpu_0": HostPolicy(numa_node=1, cores=(7,)),
    }


@pytest.mark.parametrize("flag", ["--rate-limit=", "--rate-limit-resource=", "--host-policy="])
def test_the_help_tells_of_each_flag(flag):
    assert f"  {flag}" in help_text(100)


@pytest.fixture
def nodes(tmp_path):
    for number, cores in enumerate(("0-1\n", "2-3,8\n", "\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores)
    return tmp_path


def test_a_node_stands_for_its_cores_that_may_be_used_and_cores_go_before_it(nodes):
    policies = {
        "near": HostPolicy(numa_node=1),
        "both": HostPolicy(numa_node=1, cores=(0,)),
        "cpu": HostPolicy(cores=(0, 1)),
    }
    assert resolve(policies, {0, 1, 2, 8}, nodes) == {"near": (2, 8), "both": (0,), "cpu": (0, 1)}


@pytest.mark.parametrize("node", [2, 7])
def test_a_node_that_is_not_there_or_has_no_cores_is_refused(nodes, node):
    with pytest.raises(
        SettingsError, match=f"asks for the NUMA node {node}, which this machine does not have"
    ):
        resolve({"p": HostPolicy(numa_node=node)}, {0}, nodes)


@pytest.mark.parametrize("policy", [HostPolicy(cores=(0, 9)), HostPolicy(numa_node=0, cores=(9,))])
def test_cores_that_may_not_be_used_are_refused_and_those_that_may_are_told(nodes, policy):
    with pytest.raises(SettingsError, match="host policy 'p' asks for the cores 9, which") as refused:
        resolve({"p": policy}, {0, 1}, nodes)
    assert refused.value.hint == "it may use 0, 1"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "cpu"),
        ({"kind": "MODEL"}, "model"),
        ({"kind": "GPU", "device_id": 3}, "gpu_3"),
        ({"kind": "GPU", "host_policy": "mine"}, "mine"),
    ],
)
def test_an_instance_has_the_policy_of_its_group_or_of_its_kind(options, name):
    assert policy_name(InstanceSpec(name="i", **options)) == name


def test_instances_are_placed_on_the_cores_of_their_policies():
    instances = (
        InstanceSpec(name="a"),
        InstanceSpec(name="b", host_policy="mine"),
        InstanceSpec(name="c", kind="MODEL"),
    )
    spec = make_spec(instances=instances)
    placed = place(spec, {"cpu": (0,), "mine": (1, 2)})
    assert [each.cores for each in placed.instances] == [(0,), (1, 2), ()]
    assert place(spec, {}) is spec
    (warning,) = undefined_policies([spec, spec], {"cpu": (0,)})
    assert warning == "host policy 'mine' has no effect: --host-policy=mine,cpu-cores=... would define it"


def test_a_list_of_cores_is_read_as_the_kernel_writes_it():
    assert parse_cores("0-1,4,6-7") == (0, 1, 4, 6, 7)


async def test_a_worker_on_a_thread_is_bound_and_the_server_is_not():
    before = os.sched_getaffinity(0)
    core = max(before)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with trio.fail_after(10):
        with ours:
            worker = ThreadWorker(ours, theirs, name="w", cores=(core,))
            main, *others = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
            while {core} not in others:
                await trio.sleep(0.001)
                main, *others = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
            assert main == before
        assert await worker.wait() == Exit(0)
    assert os.sched_getaffinity(0) == before
