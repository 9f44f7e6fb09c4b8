"""Two real servers behind HAProxy and Envoy: models, sequences, a drain and a death, over HTTP and gRPC."""

import shutil
import subprocess
import time
from signal import SIGKILL, SIGTERM

import httpx
import numpy as np
import pytest
import trio
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from chaos.subject.ports import free_ports
from chaos.subject.server import Server
from engine.fleet.proxies.envoy import envoy
from engine.fleet.proxies.haproxy import haproxy
from engine.fleet.proxies.values import ProxyOptions, Upstream
from tests.support.operators import ROOT

pytestmark = [pytest.mark.system, pytest.mark.long]

PROGRAMS = {
    "haproxy": (haproxy, ["haproxy", "-db", "-f"], "cfg"),
    "envoy": (envoy, ["envoy", "--log-level", "off", "--concurrency", "1", "-c"], "json"),
}
MODELS = {"a": frozenset({"sequence_accumulate", "repeat_int32"}), "b": frozenset({"sequence_accumulate"})}
ADD = "/v2/models/sequence_accumulate/infer"


def number(value, sequence, **parameters):
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return {"inputs": [tensor], "parameters": {"sequence_id": sequence, **parameters}}


class Calls:
    """A gRPC client that speaks through the proxy."""

    def __init__(self, port):
        self._client = triton.InferenceServerClient(f"127.0.0.1:{port}")

    def add(self, value, sequence, *, start=False, headers=None):
        """Return the sum, or the status and the text of a refusal."""
        tensor = triton.InferInput("INPUT", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[value]], "f"))
        try:
            answer = self._client.infer(
                "sequence_accumulate", [tensor], sequence_id=sequence, sequence_start=start, headers=headers
            )
        except InferenceServerException as error:
            return error.status(), error.message()
        return float(answer.as_numpy("OUTPUT").item())

    def repeat(self, count, headers):
        """Return what a stream brings, one response every 10 ms."""
        numbers = triton.InferInput("IN", [count], "INT32")
        numbers.set_data_from_numpy(np.arange(count, dtype="i4"))
        pauses = triton.InferInput("DELAY", [count], "UINT32")
        pauses.set_data_from_numpy(np.full(count, 10, "u4"))
        found = []
        self._client.start_stream(lambda result, error: found.append((result, error)), headers=headers)
        self._client.async_stream_infer("repeat_int32", [numbers, pauses])
        self._client.stop_stream()  # waits for the stream's end
        return [error or int(result.as_numpy("OUT").item()) for result, error in found]


def until(condition, *, within=30):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(params=PROGRAMS)
def before(request, tmp_path):
    """Two servers, an HTTP client and a gRPC client of the proxy before them."""
    write, command, ending = PROGRAMS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    repository = tmp_path / "models"
    for model in MODELS["a"]:
        shutil.copytree(ROOT / "examples" / "models" / model, repository / model)
    servers = {
        name: Server.start(repository, tmp_path / name, f"--replica-name={name}", "--drain-delay-secs=4")
        for name in MODELS
    }
    try:
        for server in servers.values():
            trio.run(server.wait_ready)
        http_port, grpc_port = free_ports(2)
        behind = [
            Upstream(
                name=name,
                host="127.0.0.1",
                http_port=server.http_port,
                grpc_port=server.grpc_port,
                models=MODELS[name],
            )
            for name, server in servers.items()
        ]
        file = tmp_path / f"written.{ending}"
        file.write_text(
            write(behind, ProxyOptions(address="127.0.0.1", http_port=http_port, grpc_port=grpc_port))
        )
        with (tmp_path / "log").open("wb") as log:
            proxy = subprocess.Popen([*command, str(file)], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{http_port}", timeout=20) as client:
                until(lambda: _ready(client))
                yield servers, client, Calls(grpc_port)
        finally:
            proxy.kill()
            proxy.wait()
    finally:
        for server in servers.values():
            server.kill_all()


def _ready(client):
    try:
        return client.get("/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def of(client, model, count=8):
    return {client.get(f"/v2/models/{model}/ready").headers.get("tritium-replica") for _ in range(count)}


def test_requests_find_their_server_or_are_told_that_there_is_none(before):
    servers, client, calls = before

    # Models.
    assert of(client, "repeat_int32") == {"a"}
    assert of(client, "sequence_accumulate") == {"a", "b"}
    nowhere = client.get("/v2/models/nowhere/ready")
    assert nowhere.status_code == 404
    assert nowhere.json()["error"].startswith("Request for unknown model: ")
    status, text = calls.add(1, 0, headers={"tritium-model": "nowhere"})
    assert (status, "has" in text) == ("StatusCode.NOT_FOUND", True)
    assert calls.repeat(20, {"tritium-model": "repeat_int32"}) == list(range(20))

    # Sequences stay, over both protocols.
    began = client.post(ADD, json=number(1, 7, sequence_start=True))
    name = began.headers["tritium-replica"]
    stick = {"tritium-replica": name}
    sums = [client.post(ADD, json=number(1, 7), headers=stick).json()["outputs"][0]["data"] for _ in range(5)]
    assert sums == [[2], [3], [4], [5], [6]]
    assert calls.add(2, 9, start=True, headers=stick) == 2
    assert calls.add(3, 9, headers=stick) == 5
    stranger = client.post(ADD, json=number(1, 7), headers={"tritium-replica": "z"})
    assert stranger.status_code == 412
    assert "begin the sequence anew" in stranger.json()["error"]
    status, text = calls.add(1, 9, headers={"tritium-replica": "z"})
    assert (status, "begin the sequence anew" in text) == ("StatusCode.FAILED_PRECONDITION", True)

    # A server that drains has its sequences, and no new requests.
    servers[name].signal(SIGTERM)
    until(lambda: of(client, "sequence_accumulate") == set(MODELS) - {name})
    drained = client.post(ADD, json=number(1, 7), headers=stick)
    assert drained.json()["outputs"][0]["data"] == [7]
    trio.run(servers[name].wait_ended)
    until(lambda: client.post(ADD, json=number(1, 7), headers=stick).status_code == 412)
    status, text = calls.add(1, 9, headers=stick)
    assert (status, "begin the sequence anew" in text) == ("StatusCode.FAILED_PRECONDITION", True)

    # One that is killed: no other server is asked.
    other = client.post(ADD, json=number(1, 8, sequence_start=True)).headers["tritium-replica"]
    assert other != name
    servers[other].signal(SIGKILL)
    trio.run(servers[other].wait_ended)
    lost = client.post(ADD, json=number(1, 8), headers={"tritium-replica": other})
    assert lost.status_code in {412, 502, 503}
    assert "begin the sequence anew" in lost.json()["error"]
    status, text = calls.add(1, 8, headers={"tritium-replica": other})
    assert (status, "begin the sequence anew" in text) == ("StatusCode.FAILED_PRECONDITION", True)
    assert calls.add(1, 0)[0] == "StatusCode.UNAVAILABLE"
