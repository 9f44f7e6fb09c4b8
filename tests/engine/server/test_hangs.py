"""Models that hang: a limit for all models ends them, readiness reports them, and shutdown does not wait.

Every request in flight gets an answer.
"""

import http.client
import json
import queue
import threading
import urllib.request
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.operators import DOUBLE_CONFIG, serving, write_model

# Sleeps for as many seconds as its input says.
SLEEPER = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = request.inputs()[0].as_numpy()
            time.sleep(float(values[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", values)]))
        return responses
"""

pytestmark = [pytest.mark.slow, pytest.mark.system]


def write_sleeper(folder, name="sleeper", **parameters):
    words = "".join(
        f'parameters {{ key: "tritium.{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    write_model(folder, name, code=SLEEPER, config=DOUBLE_CONFIG + words)


class Asking:
    """A request over either protocol, whose answer is awaited beside the test: a status and a text."""

    def __init__(self, server, protocol, seconds, model="sleeper"):
        self._answer: queue.Queue[Any] = queue.Queue()
        address = server.address("HTTPService" if protocol == "http" else "GRPCInferenceService")
        ask = self._http if protocol == "http" else self._grpc
        threading.Thread(target=ask, args=(address, model, seconds), daemon=True).start()

    def _http(self, address, model, seconds):
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [seconds]}]}
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
            answer = connection.getresponse()
            self._answer.put((answer.status, json.loads(answer.read()).get("error")))
        except (OSError, http.client.HTTPException) as lost:
            self._answer.put((0, repr(lost)))
        connection.close()

    def _grpc(self, address, model, seconds):
        given = tritonclient.grpc.InferInput("X", [1], "FP32")
        given.set_data_from_numpy(np.array([seconds], np.float32))
        with tritonclient.grpc.InferenceServerClient(address) as client:
            try:
                client.infer(model, [given], client_timeout=60)
                self._answer.put((200, None))
            except InferenceServerException as error:
                self._answer.put((error.status(), error.message()))

    def wait(self):
        return self._answer.get(timeout=60)


def wait_queued(server, count):
    """Wait until `count` requests wait behind the running ones."""
    address = server.address("Metrics Service")
    line = f'nv_inference_pending_request_count{{model="sleeper",version="1"}} {count}\n'
    for _ in range(1000):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            if line in answer.read().decode():
                return
        threading.Event().wait(0.02)
    raise AssertionError(f"there were never {count} in the queue")


def check_refused(asked, why):
    """Two protocols in turn are told that the server is unavailable, and why."""
    answers = [each.wait() for each in asked]
    assert [status for status, _ in answers] == [503, "StatusCode.UNAVAILABLE"] * (len(asked) // 2)
    assert all(why in text for _, text in answers)


@pytest.mark.long
def test_at_the_end_of_the_exit_timeout_whoever_waits_is_told(tmp_path):
    write_sleeper(tmp_path / "models")
    repository = f"--model-repository={tmp_path / 'models'}"
    with serving(tmp_path, repository, "--exit-timeout-secs=1") as server:
        server.wait_ready()
        # One runs, and the others are queued.
        asked = [Asking(server, protocol, 600) for protocol in ("http", "grpc", "http", "grpc")]
        wait_queued(server, 3)
        server.signal()
        check_refused(asked, "not answered within 1 s of its being told to stop (--exit-timeout-secs)")
        assert server.wait(20) == 1
        assert "Exit timeout expired" in server.said


def test_what_hangs_makes_the_server_not_ready_and_is_not_waited_for(tmp_path):
    write_sleeper(tmp_path / "models")
    write_model(tmp_path / "models")
    repository = f"--model-repository={tmp_path / 'models'}"
    flags = ("--exit-timeout-secs=600", "--unready-after-hang-secs=1")
    with serving(tmp_path, repository, *flags) as server:
        server.wait_ready()
        assert server.get("/v2/health/ready")[0] == 200
        asked = [Asking(server, protocol, 600) for protocol in ("http", "grpc", "http", "grpc")]
        wait_queued(server, 3)
        said = server.wait_said('its only instance has been busy with one execution for more than 1 s[^"]*')
        assert "tritium.execution_timeout would end such a one" in said[0]
        assert server.get("/v2/health/ready")[0] == 400
        assert server.get("/v2/models/double/ready")[0] == 200
        server.signal()
        check_refused(asked, "has been executing for more than 1 s (--unready-after-hang-secs)")
        assert server.wait(30) == 0


@pytest.mark.long
def test_a_limit_for_all_models_ends_what_hangs_where_the_model_says_nothing_itself(tmp_path):
    write_sleeper(tmp_path / "models")
    write_sleeper(tmp_path / "models", "patient", execution_timeout=60)
    write_sleeper(tmp_path / "models", "endless", execution_timeout=0)
    repository = f"--model-repository={tmp_path / 'models'}"
    with serving(tmp_path, repository, "--default-execution-timeout=1") as server:
        server.wait_ready()
        hung = Asking(server, "http", 600)
        others = [Asking(server, "http", 2, model) for model in ("patient", "endless")]
        status, text = hung.wait()
        assert status == 504
        assert "for a hang: not done within 1 s (tritium.execution_timeout)" in text
        assert [each.wait() for each in others] == [(200, None)] * 2
        server.signal()
        assert server.wait(30) == 0
