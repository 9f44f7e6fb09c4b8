"""Servers that a Ray cluster starts: real nodes, real servers, real kills.

`TRITIUM_TESTS_RAY` names an environment that has Ray.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.launching.calling import RetryingClient, post
from benchmarks.launching.standing import standing
from engine.fleet.discovery.finding import Discovery
from engine.fleet.launching.reading import NoRegistry, Registry
from engine.fleet.wanted import Wanted

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.long]

PATIENCE = 60.0
TURN = threading.Lock()  # a registry is for one thread at a time
ENDING = """
import sys, ray
ray.init(sys.argv[1], namespace="tritium", log_to_driver=False, logging_level="ERROR")
ray.get_actor(sys.argv[2]).__ray_terminate__.remote()
"""


@pytest.fixture(scope="module")
def python():
    named = os.environ.get("TRITIUM_TESTS_RAY")
    if not named:
        pytest.skip("TRITIUM_TESTS_RAY names no environment that has ray")
    return str(Path(named).resolve() / "bin" / "python")


@pytest.fixture(scope="module")
def cluster(python):
    with standing(python, 3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def registry(cluster):
    with cluster.registry() as registry:
        yield registry


@pytest.fixture
def repository(tmp_path):
    """A model that says which process answers."""
    folder = tmp_path / "models" / "who" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(
        'backend: "python" output [ { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
        'input [ { name: "X" data_type: TYPE_INT64 dims: [ 1 ] } ]'
    )
    (folder / "model.py").write_text(
        "import os\n"
        "import numpy as np\n"
        "import triton_python_backend_utils as pb\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        '        pid = pb.Tensor("PID", np.array([os.getpid()]))\n'
        "        return [pb.InferenceResponse([pid]) for _ in requests]\n"
    )
    return str(tmp_path / "models")


@pytest.fixture
def group(cluster, request):
    """The name of a group, which is stopped at the end."""
    name = f"g{abs(hash(request.node.name)) % 10**6}"
    yield name
    cluster.launch("--name", name, "--stop", "--grace", "5")


def start(cluster, group, repository, replicas, *flags, words=()):
    named = ("--name", group, "--replicas", str(replicas), "--python", sys.executable, *words)
    return cluster.servers(*named, "--", f"--model-repository={repository}", *flags)


def registered(registry, group):
    with TURN:
        return registry.replicas(group)


def ask(server):
    """Return the worker that answered. Raises OSError or HTTPException."""
    body = json.dumps({"inputs": [{"name": "X", "datatype": "INT64", "shape": [1], "data": [1]}]})
    return json.loads(post(server, "/v2/models/who/infer", body.encode()))["outputs"][0]["data"][0]


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def another(registry, group, old):
    """Wait until a server serves that was started after `old`; return it."""

    def found():
        new = [each for each in registered(registry, group) if each.name == old.name]
        return new and new[0].boot not in {"", old.boot} and new[0].phase == "serving" and new[0]

    return until(found)


def calling(registry, group):
    """A client that asks the servers in turn, and another one where the first does not answer."""
    return RetryingClient(lambda: registered(registry, group), ask)


def test_servers_stand_on_nodes_of_their_own_and_end_with_their_group(cluster, registry, group, repository):
    servers = start(cluster, group, repository, 3, words=("--label", "tier=gold"))
    assert {each.node for each in servers} == set(cluster.nodes)
    assert [each.name for each in servers] == [f"{group}-1-{index}" for index in range(3)]
    assert len({ask(each) for each in servers}) == 3
    assert registered(registry, group) == servers
    for each in servers:
        assert f"--replica-name={each.name}\0" in Path(f"/proc/{each.pid}/cmdline").read_text()
    assert all({"tier", "zone", "ray.io/node-id"} <= set(each.labels) for each in servers)
    shown = cluster.launch("--name", group)
    assert all(f"127.0.0.1:{each.http_port}" in shown.stdout for each in servers)
    done = cluster.launch("--name", group, "--stop")
    assert done.stdout == f"stopped 3 servers of group {group}\n"
    assert not any(runs(each.pid) for each in servers)
    assert registered(registry, group) == []
    again = cluster.launch("--name", group, "--stop")
    assert (again.returncode, again.stderr) == (
        1,
        f"there is no group {group} in this cluster\nthere are no groups\n",
    )


def test_more_servers_than_nodes_are_refused(cluster, group, repository):
    done = cluster.launch("--name", group, "--replicas", "4", "--", repository)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "4 servers need 4 nodes, as each stands on a node of its own."
        " 4 nodes are alive, and 3 of them have 1 CPU"
    )
    done = cluster.launch("--name", group, "--replicas", "1", "--gpus-per-replica", "1", "--", repository)
    assert "0 of them have 1 CPU and 1 GPU" in done.stderr


def test_servers_that_do_not_start_are_told_of_and_removed(cluster, registry, group):
    done = cluster.launch(
        *(
            "--name",
            group,
            "--replicas",
            "2",
            "--python",
            sys.executable,
            "--",
            "/nowhere",
            "--http-port=70000",
        )
    )
    assert done.returncode == 1
    assert "ended 3 times as it was started on node" in done.stderr
    assert "70000" in done.stderr
    assert registered(registry, group) == []
    assert "there is no group" in cluster.launch("--name", group).stderr


def test_a_server_goes_at_once_with_its_actor_and_another_is_started(cluster, registry, group, repository):
    old, other = start(cluster, group, repository, 2)
    worker = ask(old)
    os.kill(parent(old.pid), signal.SIGKILL)
    until(lambda: not runs(old.pid) and not runs(worker))
    new = another(registry, group, old)
    assert new.name == old.name
    ask(new)
    assert runs(other.pid)


def test_a_server_that_ends_is_started_again_by_its_actor(cluster, registry, group, repository):
    (old,) = start(cluster, group, repository, 1)
    owner = parent(old.pid)
    os.kill(old.pid, signal.SIGKILL)
    new = another(registry, group, old)
    assert parent(new.pid) == owner
    assert new.failures == 1
    ask(new)


def test_a_server_drains_where_ray_ends_its_actor(cluster, registry, group, repository):
    (old,) = start(cluster, group, repository, 1)
    done = cluster.run(ENDING, cluster.address, old.name)
    assert done.returncode == 0, done.stderr
    until(lambda: not runs(old.pid))
    assert registered(registry, group) == []  # it is stopping, and no longer a replica
    assert start(cluster, group, repository, 1)[0].boot != old.boot


async def test_a_fleet_finds_launched_servers(cluster, group, repository, python, monkeypatch):
    servers = start(cluster, group, repository, 2)
    for key, value in cluster.environ.items():
        monkeypatch.setenv(key, value)
    options = {"address": cluster.address, "group": group, "python": python}
    discovery = Discovery()
    try:
        members = await discovery.discover(Wanted(discovery={"ray": options}))
    finally:
        discovery.close()
    assert [each.name for each in members] == [each.name for each in servers]
    assert [each.url for each in members] == [f"http://127.0.0.1:{each.http_port}" for each in servers]


def test_a_server_of_a_dead_node_serves_from_another_one(cluster, registry, group, repository):
    first, _ = start(cluster, group, repository, 2)
    with calling(registry, group) as caller:
        until(lambda: caller.answers > 20)
        began = time.monotonic()
        cluster.kill(first.node)
        new = another(registry, group, first)
        print(f"serving from another node after {time.monotonic() - began:.1f} s")
        ask(new)
        answers = caller.answers
        until(lambda: caller.answers > answers + 20)
    cluster.add()
    assert new.node != first.node
    assert caller.errors == 0


def test_other_servers_take_over_before_those_that_were_are_drained(cluster, registry, group, repository):
    before = start(cluster, group, repository, 1)
    with calling(registry, group) as caller:
        until(lambda: caller.answers > 20)
        after = start(cluster, group, repository, 2, "--id=second", words=("--grace", "20"))
    assert [each.name for each in after] == [f"{group}-2-0", f"{group}-2-1"]
    assert not runs(before[0].pid)
    assert all(runs(each.pid) for each in after)
    assert registered(registry, group) == after
    assert start(cluster, group, repository, 2, "--id=second", words=("--grace", "20")) == after


def test_servers_that_can_not_take_over_leave_those_that_were(cluster, registry, group, repository):
    before = start(cluster, group, repository, 1)
    words = ("--name", group, "--replicas", "1", "--python", sys.executable)
    done = cluster.launch(*words, "--", repository, "--http-port=70000")
    assert done.returncode == 1
    assert registered(registry, group) == before
    ask(before[0])


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1: Connection refused"),
        ("ray://127.0.0.1:1", "ray://127.0.0.1:1 is the address of a Ray client"),
    ],
)
def test_a_registry_that_is_not_there_is_told_of(cluster, python, address, told):
    with Registry(address, python, cluster.environ) as other, pytest.raises(NoRegistry, match=told):
        other.replicas("tritium")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_told_of(cluster, address):
    done = cluster.launch("--ray", address, "--stop")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"no Ray cluster answers at {address}: Connection refused\ngive the address"
    )


def test_a_cluster_with_a_token_is_joined_by_those_who_have_it(python, repository):
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}
    with standing(python, 1, environ=token) as cluster:
        servers = start(cluster, "guarded", repository, 1)
        ask(servers[0])
        with cluster.registry() as registry:
            assert registered(registry, "guarded") == servers
        wrong = {"RAY_AUTH_TOKEN": "f" * 32}
        with cluster.registry(**wrong) as registry, pytest.raises(NoRegistry, match="RAY_AUTH_TOKEN"):
            registry.replicas("guarded")
        refused = cluster.launch("--name", "guarded", environ={**cluster.environ, **wrong})
        assert refused.returncode == 1
        assert cluster.launch("--name", "guarded", "--stop").returncode == 0
