"""Errors in Python models, in a server: each costs its request, but not the worker or a clear answer."""

from textwrap import dedent, indent

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.flavours import process
from tests.support.triton_inputs import inputs

PATIENCE = 30.0  # seconds
LONG = "'\N{GRINNING FACE}' * 100_000"  # in JSON, a character of it takes twelve bytes

HEAD = """\
import asyncio
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class Untold(Exception):
    def __str__(self):
        raise RuntimeError("no")


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def answer(self, value=None):
        value = os.getpid() if value is None else value
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])

"""
RUNS_WHAT_IT_IS_SENT = """
def execute(self, requests):
    self.said = None
    for request in requests:
        exec(request.inputs()[0].as_numpy().item())
    return [self.said or self.answer() for _ in requests]
"""
LEAVES = """
async def leave(self):
    sys.exit(4)

async def execute(self, requests):
    if requests[0].inputs()[0].as_numpy().item() == b"itself":
        sys.exit(4)
    self.task = asyncio.create_task(self.leave())
    await asyncio.wait([self.task])
    return [self.answer(7) for _ in requests]
"""
FAILS_TO_START = f"""
def initialize(self, args):
    raise ValueError({LONG})
"""


WRITES = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            array = request.inputs()[0].as_numpy()
            array *= 2
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    """A client of a server with these models, which are loaded where they are asked for."""
    repository = tmp_path_factory.mktemp("models")
    for name, body in {
        "runs": RUNS_WHAT_IT_IS_SENT,
        "leaves": LEAVES,
        "fails_to_start": FAILS_TO_START,
    }.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(HEAD + indent(dedent(body), "    "))
    (repository / "writes" / "1").mkdir(parents=True)
    (repository / "writes" / "1" / "model.py").write_text(WRITES)
    flavour = process("engine", "serve", TRITIUM_MODEL_CONTROL_MODE="explicit")
    with flavour(repository) as addresses:
        with http_client.InferenceServerClient(addresses.http, network_timeout=PATIENCE) as client:
            client.grpc_address = addresses.grpc
            yield client


def ask(client, name, text):
    given = inputs(http_client, IN=np.array([text], object))
    return int(client.infer(name, given).as_numpy("OUT").item())


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (f"raise ValueError({LONG})", "ValueError: \N{GRINNING FACE}"),
        ("raise ValueError('\\udcff')", "ValueError: "),
        ("raise Untold()", "Untold: <its text can't be had: RuntimeError>"),
        (
            "pb_utils.TritonError(ValueError('v'))",
            "the message of a TritonError is a str or bytes, got <class 'ValueError'>",
        ),
        (
            "pb_utils.InferenceResponse([np.ones(1)])",
            "takes a list of Tensor objects, got <class 'numpy.ndarray'>",
        ),
        (
            "pb_utils.InferenceResponse(error='no')",
            "InferenceResponse takes a TritonError, got <class 'str'>",
        ),
        ("pb_utils.Tensor(5, np.ones(1))", "a tensor's name is a str or bytes, got <class 'int'>"),
        (
            "self.said = pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.ones(1, 'i4'))] * 70_000)",
            "the answers can't be sent to the server",
        ),
    ],
)
def test_a_mistake_costs_its_request_and_not_the_process(http, mistake, told):
    http.load_model("runs")
    process_id = ask(http, "runs", "pass")
    with pytest.raises(InferenceServerException) as failed:
        ask(http, "runs", mistake)
    assert told in failed.value.message()
    assert ask(http, "runs", "pass") == process_id


def test_a_long_line_of_any_characters_can_be_logged(http):
    http.load_model("runs")
    process_id = ask(http, "runs", "pass")
    assert ask(http, "runs", f"pb_utils.Logger.log_error({LONG})") == process_id
    assert ask(http, "runs", "pass") == process_id


def test_a_long_reason_of_any_characters_is_told(http):
    with pytest.raises(InferenceServerException) as failed:
        http.load_model("fails_to_start")
    assert "ValueError: \N{GRINNING FACE}" in failed.value.message()


@pytest.mark.long
def test_a_coroutine_that_leaves_ends_its_process_and_not_only_its_loop(http):
    http.load_model("leaves")
    with pytest.raises(InferenceServerException) as failed:
        ask(http, "leaves", "itself")
    assert "exit with code 4" in failed.value.message()


def test_a_task_that_leaves_does_not_take_the_loop_along(http):
    http.load_model("leaves")
    assert [ask(http, "leaves", "task") for _ in range(2)] == [7, 7]


def test_inputs_of_decoupled_models_can_be_written_to(http):
    http.load_model("writes")
    given = inputs(grpc_client, IN=np.array([1, 2], np.int32))
    found = []
    with grpc_client.InferenceServerClient(http.grpc_address) as client:
        client.start_stream(callback=lambda result, error: found.append(error or result.as_numpy("OUT")))
        client.async_stream_infer("writes", given)
        client.stop_stream()
    assert [each.tolist() for each in found] == [[2, 4]]
