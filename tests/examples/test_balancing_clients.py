"""Clients of two servers, one of which is killed under them."""

import importlib.util
import json
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.support.operators import ROOT, serving

CLIENTS = ROOT / "examples/clients"
PROGRAMS = ("balancing_http", "balancing_grpc", "sequences_http")
SERVICES = {"balancing_grpc": "GRPCInferenceService"}


def imported(name):
    spec = importlib.util.spec_from_file_location(name, CLIENTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def http():
    return imported("balancing_http")


def answer(status, **headers):
    return httpx.Response(status, headers=headers)


@pytest.mark.parametrize(
    ("failure", "always", "if_idempotent"),
    [
        (httpx.ConnectError("refused"), True, True),
        (httpx.ConnectTimeout("no answer to SYN"), True, True),
        (httpx.WriteError("reset"), False, True),
        (httpx.ReadError("reset"), False, True),
        (httpx.RemoteProtocolError("disconnected"), False, True),
        (httpx.ReadTimeout("no answer"), False, True),
        (answer(429), True, True),
        (answer(503), False, True),
        (answer(502), False, True),
        (answer(500), False, False),
        (answer(504), False, False),
        (answer(400), False, False),
        (answer(422), False, False),
    ],
    ids=repr,
)
def test_what_may_have_run_is_repeated_only_if_the_user_says_so(http, failure, always, if_idempotent):
    assert http.may_repeat(failure, idempotent=False) is always
    assert http.may_repeat(failure, idempotent=True) is if_idempotent


def test_a_server_that_says_when_to_come_back_is_left_alone_so_long(http):
    servers = http.Servers(["a", "b"])
    first = servers.take(float("inf"))
    servers.give_back(first, answer(503, **{"Retry-After": "3600"}))
    others = [servers.take(float("inf")) for _ in range(3)]
    assert first not in others
    servers.give_back(others[0], answer(503, **{"Retry-After": "3600"}))
    with pytest.raises(TimeoutError):
        servers.take(0.0)


def test_the_server_with_the_fewest_requests_in_hand_is_asked(http):
    servers = http.Servers(["a", "b", "c"])
    taken = [servers.take(float("inf")) for _ in range(3)]
    assert {server.address for server in taken} == {"a", "b", "c"}
    servers.give_back(taken[1])
    assert servers.take(float("inf")) is taken[1]


def test_the_service_config_repeats_inferences_only_if_the_user_says_so():
    program = imported("balancing_grpc")
    for idempotent in (False, True):
        config = program.service_config(idempotent=idempotent)
        assert json.loads(json.dumps(config)) == config
        repeated = [
            name["method"]
            for method in config["methodConfig"]
            for name in method["name"]
            if "retryPolicy" in method
        ]
        assert ("ModelInfer" in repeated) is idempotent
        assert "ModelStreamInfer" not in repeated
        assert "RepositoryModelLoad" not in repeated


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.system
def test_help_names_the_servers_to_start(name):
    done = subprocess.run(
        [sys.executable, CLIENTS / f"{name}.py", "--help"], capture_output=True, text=True, check=True
    )
    assert "tritium serve" in done.stdout


def test_the_replica_that_a_sequence_began_on_is_told_with_its_other_requests():
    told = []

    def server(request):
        told.append(request.headers.get("tritium-replica"))
        number = json.loads(request.content)["inputs"][0]["data"][0]
        return httpx.Response(
            200,
            headers={"tritium-replica": "pod-3"},
            json={"outputs": [{"name": "OUTPUT", "data": [number]}]},
        )

    program = imported("sequences_http")
    with httpx.Client(transport=httpx.MockTransport(server)) as client:
        sequence = program.Sequence(client, "127.0.0.1:1", "sequence_accumulate")
        sequence.send(1.0, start=True)
        sequence.send(2.0)
        sequence.send(3.0, end=True)
    assert told == [None, "pod-3", "pod-3"]


@pytest.mark.parametrize("status", [412, 503, 400])
def test_a_sequence_that_can_t_go_on_is_lost(status):
    program = imported("sequences_http")
    answers = [httpx.Response(200, json={"outputs": [{"data": [1.0]}]}), httpx.Response(status, text="why")]
    with httpx.Client(transport=httpx.MockTransport(lambda _: answers.pop(0))) as client:
        sequence = program.Sequence(client, "127.0.0.1:1", "sequence_accumulate")
        sequence.send(1.0, start=True)
        with pytest.raises(program.Lost, match=f"{status}: why"):
            sequence.send(2.0)


class Pair:
    """Two servers with the same models."""

    def __init__(self, servers):
        self.servers = servers

    def addresses(self, program):
        return [server.address(SERVICES.get(program, "HTTPService")) for server in self.servers]

    def kill(self, address=None):
        """Kill the server that listens there, by default the first."""
        [victim] = [
            server
            for server in self.servers
            if address in (None, server.address()) and server.process.poll() is None
        ][:1]
        victim.process.kill()


@pytest.fixture
def pair(tmp_path):
    repository = tmp_path / "models"
    for model in ("add_sub", "sequence_accumulate"):
        shutil.copytree(ROOT / "examples/models" / model, repository / model)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                serving(tmp_path / name, f"--model-repository={repository}", f"--replica-name={name}")
            )
            for name in ("a", "b")
        ]
        for server in servers:
            server.wait_ready()
        yield Pair(servers)


@contextmanager
def running(program, pair, *flags):
    """Run a program on the servers; yield it, and wait for its end."""
    command = [sys.executable, str(CLIENTS / f"{program}.py"), *pair.addresses(program), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process, words):
    """Read lines until one has these words; return it."""
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it ended without saying {words!r}: {process.stderr.read()}")


def run_through_a_death(program, pair, *flags, once="100 done", of=lambda line: None):
    """Run a program, and kill a server when it says `once`; return status, what it wrote, and that line."""
    with running(program, pair, *flags) as process:
        line = until(process, once)
        pair.kill(of(line))
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err, line


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("program", ["balancing_http", "balancing_grpc"])
def test_no_idempotent_request_fails_where_a_server_is_killed(pair, program):
    status, out, err, _ = run_through_a_death(program, pair, "--idempotent", "--requests=500")
    assert (status, err) == (0, "")
    assert " 0 failed" in out


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("program", ["balancing_http", "balancing_grpc"])
def test_of_others_at_most_those_in_hand_fail(pair, program):
    status, _, err, _ = run_through_a_death(program, pair, "--requests=400", "--at-once=4")
    failed = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert len(failed) <= 4
    assert status == (1 if failed else 0)


def address_in(line):
    return line.partition(": ")[0]


@pytest.mark.system
@pytest.mark.slow
def test_a_sequence_whose_server_is_killed_begins_anew(pair):
    flags = ("--numbers=8", "--pause=0.05")
    status, out, err, line = run_through_a_death(
        "sequences_http", pair, *flags, once=": 3 makes 6", of=address_in
    )
    address = address_in(line)
    assert (status, err) == (0, "")
    assert "lost, beginning anew" in out
    assert out.endswith("the sum is 36\n")
    assert f"{address}: 8 makes" not in out
