"""`--drain-delay-secs`: a server that is told to end is at once not ready, and serves on.

The delay or a second signal ends that.
"""

import http.client
import json
import queue
import re
import signal
import socket
import threading
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.operators import Served, serving, write_model

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]})

pytestmark = [pytest.mark.slow, pytest.mark.system]


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path / "models")
    return f"--model-repository={tmp_path / 'models'}"


def infer_by_http(connection):
    connection.request("POST", "/v2/models/double/infer", BODY)
    answer = connection.getresponse()
    assert json.loads(answer.read())["outputs"][0]["data"] == [2, 4]
    return answer


def infer_by_grpc(address):
    with tritonclient.grpc.InferenceServerClient(address) as client:
        given = tritonclient.grpc.InferInput("X", [2], "FP32")
        given.set_data_from_numpy(np.array([1, 2], np.float32))
        assert client.infer("double", [given]).as_numpy("Y").tolist() == [2, 4]
        assert client.is_server_live()
        return client.is_server_ready()


class Watched:
    """The states that a client of the server's health watch receives."""

    def __init__(self, channel):
        self.told: queue.Queue[Any] = queue.Queue()
        self._call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for answer in self._call:
                self.told.put(answer.status)
        except grpc.RpcError as error:
            self.told.put((error.code(), error.details()))

    def next(self):
        return self.told.get(timeout=30)


def is_refused(address):
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_clients_are_served_and_told_to_go_elsewhere_until_a_second_signal(tmp_path, repository):
    with serving(tmp_path, repository, "--drain-delay-secs=600", "--exit-timeout-secs=20") as server:
        server.wait_ready()
        http_at, grpc_at = server.address(), server.address("GRPCInferenceService")
        kept = http.client.HTTPConnection(http_at, timeout=20)
        with grpc.insecure_channel(grpc_at) as channel:
            watched = Watched(channel)
            assert watched.next() == SERVING
            assert infer_by_http(kept).getheader("Connection") is None
            server.signal()
            assert watched.next() == NOT_SERVING  # at once
            assert server.get("/v2/health/ready")[0] == 503
            assert server.get("/v2/health/live")[0] == 200
            # An open connection is answered once more, and a new one is let in.
            assert infer_by_http(kept).getheader("Connection") == "close"
            late = http.client.HTTPConnection(http_at, timeout=20)
            assert infer_by_http(late).getheader("Connection") == "close"
            assert infer_by_grpc(grpc_at) is False
            with grpc.insecure_channel(grpc_at) as other:
                stub = health_pb2_grpc.HealthStub(other)
                assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == NOT_SERVING
            assert server.process.poll() is None
            server.signal(signal.SIGINT)
            assert watched.next() == NOT_SERVING
            assert watched.next() == (grpc.StatusCode.UNAVAILABLE, "Server exiting")
        assert server.wait() == 0
        assert is_refused(http_at)
        assert "cut short" in server.said


@pytest.mark.parametrize(("flags", "told"), [(["--drain-delay-secs=0.2"], ["delay_seconds=0.2"]), ([], [])])
def test_the_delay_ends_by_itself_and_without_one_the_sockets_close_at_once(
    tmp_path, repository, flags, told
):
    with serving(tmp_path, repository, *flags) as server:
        server.wait_ready()
        server.signal()
        assert server.wait() == 0
        assert re.findall(r"delay_seconds=[0-9.]+", server.said) == told


def test_a_server_that_still_loads_ends_without_the_delay(tmp_path):
    slow = "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(5)\n"
    write_model(tmp_path / "models", "slow", code=slow)
    with serving(tmp_path, f"--model-repository={tmp_path / 'models'}", "--drain-delay-secs=600") as server:
        assert isinstance(server, Served)
        server.address()
        server.signal()
        assert server.wait() in {0, 1}
        assert "delay_seconds" not in server.said
