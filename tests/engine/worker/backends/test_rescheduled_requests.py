"""Python models that ask for a request to be run again (contract, scheduling.md section 6.7)."""

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.testing import LocalRequest, run

X = {"X": np.ones(1, np.float32)}
PORTS = {
    "inputs": [("X", DataType.FP32, [1])],
    "outputs": [("Y", DataType.FP32, [1])],
}
AGAIN = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        {before}
        requests[0].set_release_flags({flags})
        {after}
"""
RESPONSE = "pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.ones(1, np.float32))])"


def source(flags="pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", before="pass", after="return [None]"):
    return AGAIN.format(flags=flags, before=before, after=after)


@pytest.mark.parametrize("after", ["return [None]", "return None"])
def test_a_request_in_whose_place_is_none_runs_again(python_model, after):
    backend, model = python_model(source(after=after), **PORTS)
    [answer] = run(backend, model, [LocalRequest(X)])
    assert answer.rescheduled


def test_a_response_beside_it_is_an_error(python_model):
    backend, model = python_model(source(after=f"return [{RESPONSE}]"), **PORTS)
    [answer] = run(backend, model, [LocalRequest(X)])
    assert answer.code is ErrorCode.INTERNAL
    assert (
        "Expected a None object in the execute function return list for reschduled request, found type '<class"
        in answer.message
    )


def test_unknown_flags_are_refused(python_model):
    backend, model = python_model(source(flags="4"), **PORTS)
    [answer] = run(backend, model, [LocalRequest(X)])
    assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, got 4" in answer.message


def test_a_decoupled_model_may_have_answered_in_part(python_model):
    send = f"self.sender = requests[0].get_response_sender(); self.sender.send({RESPONSE})"
    backend, model = python_model(source(before=send, after="return None"), **PORTS, decoupled=True)
    request = LocalRequest(X)
    [answer] = run(backend, model, [request])
    assert answer.rescheduled
    assert [part.outputs["Y"].tolist() for part in request.parts] == [[1.0]]


def test_what_has_ended_is_not_run_again(python_model):
    send = (
        f"requests[0].get_response_sender().send({RESPONSE}, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
    )
    backend, model = python_model(source(before=send, after="return None"), **PORTS, decoupled=True)
    request = LocalRequest(X)
    assert run(backend, model, [request]) == []
    assert len(request.parts) == 1
