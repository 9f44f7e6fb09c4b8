"""Decoupled Python models: the rules of their senders and of `execute`.

The contract is python_backend.md, sections 4.3 and 6.
"""

import gc

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import SenderClosed
from engine.worker.backends.testing import LocalRequest, run

PORTS = {"inputs": [("X", DataType.FP32, [2])], "outputs": [("Y", DataType.FP32, [2])], "max_batch_size": 8}
ONES = np.ones((1, 2), "f4")
FAILED = "Failed to process the request(s) for model 'model_0_0', message: "
LET_GO = "the model let go of a request without its final response"
PATIENCE = 20.0  # seconds

HELPERS = """
import threading
import numpy as np

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def value(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 2), number, np.float32))])

def count(sender, request, last=3):
    for number in range(last):
        sender.send(value(number))
    sender.send(flags=FINAL)

class TritonPythonModel:
"""


@pytest.fixture
def answered(python_model):
    """Run a batch of `count` requests on a decoupled model whose `execute` has this body; return them."""

    def answer(body, count=1, *, define="def", **options):
        lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
        source = f"{HELPERS}    {define} execute(self, requests):\n{lines}"
        backend, info = python_model(source, **PORTS, decoupled=True, **options)
        requests = [LocalRequest({"X": ONES * (index + 1)}) for index in range(count)]
        for request, got in zip(requests, run(backend, info, requests), strict=False):
            assert got is request.answer
        for request in requests:
            if not request.ended.wait(0.1):
                gc.collect()
            assert request.ended.wait(PATIENCE)
        return requests

    return answer


def values(request):
    return [part.outputs["Y"][0, 0] for part in request.parts if part.code is None]


@pytest.mark.parametrize(
    ("body", "count", "sent"),
    [
        pytest.param("count(requests[0].get_response_sender(), requests[0])", 1, [0, 1, 2], id="several"),
        pytest.param("requests[0].get_response_sender().send(flags=FINAL)", 1, [], id="no response at all"),
        pytest.param(
            """
for request in requests:
    threading.Thread(target=count, args=(request.get_response_sender(), request)).start()
""",
            5,
            [0, 1, 2],
            id="threads, after execute has returned",
        ),
        pytest.param(
            """
gate = threading.Event()
def later(request):
    gate.wait()
    request.get_response_sender().send(value(request.inputs()[0].as_numpy()[0, 0] * 5), FINAL)
threading.Thread(target=later, args=(requests[0],)).start()
threading.Timer(0.05, gate.set).start()
""",
            1,
            [5],
            id="a thread that takes the sender and the inputs then",
        ),
    ],
)
def test_a_sender_sends_any_number_of_responses_and_the_end(answered, body, count, sent):
    assert [values(request) for request in answered(body, count=count)] == [sent] * count


def test_an_error_response_does_not_end_the_request(answered):
    [request] = answered(
        """
sender = requests[0].get_response_sender()
sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("not yet", pb_utils.TritonError.UNAVAILABLE)))
sender.send(value(7), FINAL)
"""
    )
    assert [(part.code, part.message) for part in request.parts] == [
        (ErrorCode.UNAVAILABLE, "not yet"),
        (None, ""),
    ]


def test_a_response_may_carry_parameters(answered):
    [request] = answered(
        "requests[0].get_response_sender().send(pb_utils.InferenceResponse([], parameters={'n': 1}), FINAL)"
    )
    assert request.parts[0].parameters == {"n": 1}


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("s.send(ok, 7)", "Unable to send response. Unsupported flag provided."),
        ("s.send()", "Inference Response object must be provided when the response flags is set to zero."),
        ("s.send(ok, FINAL); s.send(ok)", "Unable to send response. Response sender has been closed."),
        (
            "s.send(flags=FINAL); s.send(flags=FINAL)",
            "Unable to send response. Response sender has been closed.",
        ),
        (
            "s.send(flags=FINAL); requests[0].get_response_sender().send(ok)",
            "Unable to send response. Response sender has been closed.",
        ),
    ],
)
def test_senders_refuse_what_breaks_their_rules(answered, calls, message):
    seen = []
    answered(
        f"""
s, ok = requests[0].get_response_sender(), value(1)
try:
    {calls}
except pb_utils.TritonModelException as error:
    raise RuntimeError(str(error))
""",
        log=lambda level, text: seen.append(text),
    )
    assert f"RuntimeError: {message}" in seen[0]


def test_execute_must_return_none(answered):
    requests = answered("return [value(1)] * len(requests)", count=2)
    reason = "Python model 'model_0_0' is using the decoupled mode and the execute function must return None."
    for request in requests:
        assert [(part.code, part.message) for part in request.parts] == [
            (ErrorCode.INTERNAL, FAILED + reason)
        ]


@pytest.mark.parametrize("define", ["def", "async def"])
def test_an_exception_ends_what_is_open_and_closes_the_senders(answered, define):
    seen = []
    one, two = answered(
        """
requests[0].get_response_sender().send(value(1), FINAL)
self.kept = requests[1].get_response_sender()
self.kept.send(value(2))
raise ValueError("no such luck")
""",
        count=2,
        define=define,
        log=lambda level, text: seen.append(text),
    )
    assert values(one) == [1]
    assert len(one.parts) == 1
    assert two.parts[1].message.startswith(f"{FAILED}ValueError: no such luck\n\nAt:\n")
    assert seen[0] == two.parts[1].message
    with pytest.raises(SenderClosed):
        two.sender().finish()


def test_a_coroutine_is_not_waited_for(python_model):
    source = f"""{HELPERS}
    async def execute(self, requests):
        import asyncio
        if requests[0].inputs()[0].as_numpy()[0, 0] == 1:
            self.second = asyncio.Event()
            await self.second.wait()
        else:
            self.second.set()
        count(requests[0].get_response_sender(), requests[0])
"""
    backend, info = python_model(source, **PORTS, decoupled=True)
    first, second = LocalRequest({"X": ONES}), LocalRequest({"X": ONES * 2})
    run(backend, info, [first])
    run(backend, info, [second])
    for request in (first, second):
        assert request.ended.wait(PATIENCE)
        assert values(request) == [0, 1, 2]
    backend.unload()


def test_a_request_that_the_model_lets_go_of_ends_with_an_error(answered):
    [request] = answered("requests[0].get_response_sender().send(value(1))")
    assert values(request) == [1]
    assert (request.parts[-1].code, request.parts[-1].message) == (ErrorCode.INTERNAL, LET_GO)


def test_a_cancel_is_seen_by_request_and_sender(python_model):
    source = f"""{HELPERS}
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        both = requests[0].is_cancelled() + sender.is_cancelled()
        sender.send(pb_utils.InferenceResponse([], parameters={{"cancelled": both}}), FINAL)
"""
    backend, info = python_model(source, **PORTS, decoupled=True)
    for cancelled in (False, True):
        request = LocalRequest({"X": ONES})
        request.is_cancelled = cancelled
        run(backend, info, [request])
        assert request.parts[0].parameters == {"cancelled": 2 * cancelled}


# -- python models that ask for a request to be run again (contract, scheduling.md section 6.7)


X = {"X": np.ones(1, np.float32)}
RESCHEDULED_PORTS = {
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
    backend, model = python_model(source(after=after), **RESCHEDULED_PORTS)
    [answer] = run(backend, model, [LocalRequest(X)])
    assert answer.rescheduled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"after": f"return [{RESPONSE}]"},
            "Expected a None object in the execute function return list for reschduled request, found type"
            " '<class",
            id="a response beside it",
        ),
        pytest.param({"flags": "4"}, "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, got 4", id="unknown flags"),
    ],
)
def test_what_does_not_go_with_a_rescheduled_request_is_an_error(python_model, options, message):
    backend, model = python_model(source(**options), **RESCHEDULED_PORTS)
    [answer] = run(backend, model, [LocalRequest(X)])
    assert answer.code is ErrorCode.INTERNAL
    assert message in answer.message


def test_a_decoupled_model_may_have_answered_in_part(python_model):
    send = f"self.sender = requests[0].get_response_sender(); self.sender.send({RESPONSE})"
    backend, model = python_model(
        source(before=send, after="return None"), **RESCHEDULED_PORTS, decoupled=True
    )
    request = LocalRequest(X)
    [answer] = run(backend, model, [request])
    assert answer.rescheduled
    assert [part.outputs["Y"].tolist() for part in request.parts] == [[1.0]]


def test_what_has_ended_is_not_run_again(python_model):
    send = (
        f"requests[0].get_response_sender().send({RESPONSE}, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
    )
    backend, model = python_model(
        source(before=send, after="return None"), **RESCHEDULED_PORTS, decoupled=True
    )
    request = LocalRequest(X)
    assert run(backend, model, [request]) == []
    assert len(request.parts) == 1
