"""Requests of a Python model to other models: the constructor, `exec`, `async_exec`, and their origin."""

import contextlib
import json
import socket
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, InvalidArgument, NotFound
from actors.wire import frames
from actors.wire.batch_frames import Part
from actors.wire.call_fields import read_call
from actors.wire.call_frames import Letter
from engine.worker.backends.base import LoadError
from engine.worker.backends.python import triton_python_backend_utils as pb_utils
from engine.worker.backends.python.host import WHOLE_BATCH, Host, attach
from engine.worker.backends.testing import LocalRequest, run
from engine.worker.calls import Calls
from tests.support.calls_double import LocalCalls, answered, failed

X, Y = ("X", DataType.FP32, [2]), ("Y", DataType.FP32, [2])
ONES = np.ones((1, 2), "f4")
FP32 = DataType.FP32

CALL = """
def call(request, **options):
    return pb_utils.InferenceRequest(
        model_name="callee", inputs=request.inputs(), requested_output_names=["Y"], **options
    )
def passed(response):
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    tensors = [pb_utils.Tensor(t.name(), t.as_numpy()) for t in response.output_tensors()]
    return pb_utils.InferenceResponse(tensors, parameters={"got": response.parameters()})
class TritonPythonModel:
"""


def doubling(call):
    ((_, _, array),) = call.inputs
    yield answered(("Y", FP32, array * 2), parameters={"rate": 0.5, "n": 1})


def counting(call):
    for number in range(3):
        yield answered(("Y", FP32, np.full((1, 2), number, "f4")), final=False)
    yield answered(final=True)


@pytest.fixture
def calls():
    return LocalCalls({"callee": doubling})


@pytest.fixture
def model(python_model, calls):
    """Load a model that can call, from the body of its class."""

    def load(body, **options):
        options = {"inputs": [X], "outputs": [Y], "max_batch_size": 8, "calls": calls, **options}
        return python_model(CALL + body, **options)

    return load


def asked(model, body, count=1, requests=None, **options):
    """Run one batch on a model whose `execute` has this body."""
    lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    head = "    async def" if "await" in body or "async for" in body else "    def"
    backend, info = model(f"{head} execute(self, requests):\n{lines}", **options)
    return run(backend, info, requests or [LocalRequest({"X": ONES * (i + 1)}) for i in range(count)])


# -- exec


def test_exec_returns_the_response_with_its_tensors_and_parameters(model):
    [got] = asked(model, "return [passed(call(r).exec()) for r in requests]")
    assert got.outputs["Y"].tolist() == [[2, 2]]
    assert json.loads(got.parameters["got"]) == {"rate": 0.5, "n": 1}


def test_what_a_call_gave_may_be_given_on_as_it_is(model):
    body = "return [pb_utils.InferenceResponse(call(r).exec().output_tensors()) for r in requests]"
    assert [got.outputs["Y"].tolist() for got in asked(model, body, count=2)] == [[[2, 2]], [[4, 4]]]


def test_what_the_request_says_is_what_is_called(model, calls):
    asked(
        model,
        """
options = dict(request_id="a", correlation_id="s", model_version=2, flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
call(requests[0], timeout=250, parameters={"k": "v", "n": 1, "b": True}, **options).exec()
return [pb_utils.InferenceResponse([])]
""",
    )
    [sent] = calls.sent
    assert (sent.model, sent.version, sent.id, sent.correlation_id) == ("callee", 2, "a", "s")
    assert (sent.flags, sent.timeout, sent.parameters) == (1, 250, {"k": "v", "n": 1, "b": True})
    assert sent.requested_outputs == ["Y"]
    assert not sent.decoupled
    [(name, datatype, array)] = sent.inputs
    assert (name, datatype, array.tolist()) == ("X", FP32, [[1, 1]])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (failed(ErrorCode.INVALID_ARG, "unexpected shape"), "unexpected shape"),
        (ValueError("too large"), "request to model 'callee': too large"),
    ],
)
def test_an_error_is_in_the_response_and_not_raised(model, calls, error, message):
    def refuse(call):
        if isinstance(error, Exception):
            raise error
        return [error]

    calls.callees["callee"] = refuse
    [got] = asked(model, "return [passed(call(r).exec()) for r in requests]")
    assert (got.code, got.message) == (ErrorCode.INVALID_ARG, message)


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        (ErrorCode.NOT_FOUND, pb_utils.TritonError.NOT_FOUND),
        (ErrorCode.CANCELLED, pb_utils.TritonError.CANCELLED),
        (ErrorCode.DEADLINE_EXCEEDED, pb_utils.TritonError.UNAVAILABLE),
        (ErrorCode.POISONED, pb_utils.TritonError.INTERNAL),
    ],
)
def test_a_code_that_triton_does_not_have_is_its_nearest(model, calls, code, seen):
    calls.callees["callee"] = lambda call: [failed(code, "no")]
    [got] = asked(
        model,
        "return [pb_utils.InferenceResponse([], parameters={'code': call(r).exec().error().code().name}) for r in requests]",
    )
    assert got.parameters == {"code": seen.name}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            "return [passed(call(r).exec()) for r in requests]",
            "Model callee - Error when running inference: Request for unknown model: 'callee' is not found",
            id="an unknown model",
        ),
        pytest.param("requests[0].exec()", "make a pb_utils.InferenceRequest", id="a request of the server"),
        pytest.param("call(requests[0]).async_exec()", "no running event loop", id="async without a loop"),
    ],
)
def test_a_call_that_cannot_be_made_is_an_error(model, calls, body, message):
    calls.callees.clear()
    [got] = asked(model, body)
    assert message in got.message


@pytest.mark.parametrize("method", ["initialize", "finalize"])
def test_calls_are_for_execute_only(python_model, calls, method):
    logged = []
    body = f"""
    def {method}(self, *args):
        pb_utils.InferenceRequest(model_name="callee", inputs=[], requested_output_names=[]).exec()
    def execute(self, requests):
        return []
"""

    def load():
        return python_model(
            "class TritonPythonModel:\n" + body,
            inputs=[X],
            outputs=[Y],
            calls=calls,
            log=lambda level, message: logged.append(message),
        )

    message = "BLS is only supported during the 'execute' function."
    if method == "initialize":
        with pytest.raises(LoadError, match=message):
            load()
        return
    backend, _ = load()
    backend.unload()
    assert any(message in line for line in logged)


def test_a_thread_of_the_models_own_may_call(model, calls):
    [got] = asked(
        model,
        """
import threading
responses = []
thread = threading.Thread(target=lambda: responses.append(call(requests[0]).exec()))
thread.start()
thread.join()
return [passed(responses[0])]
""",
    )
    assert got.outputs["Y"].tolist() == [[2, 2]]
    [sent] = calls.sent
    assert sent.parent is None
    assert not sent.blocking


# -- on whose behalf


class Numbered(LocalRequest):
    """A request that can be named in a call."""

    def __init__(self, index, **options):
        super().__init__({"X": ONES}, **options)
        self.origin = (7, index)


@pytest.mark.parametrize("wait", [".exec()", ".async_exec()"])
def test_a_call_is_made_on_behalf_of_the_request_that_is_executed(model, calls, wait):
    called = f"await call(r){wait}" if "async" in wait else f"call(r){wait}"
    asked(model, f"return [passed({called}) for r in requests]", requests=[Numbered(0)])
    assert [(sent.parent, sent.blocking) for sent in calls.sent] == [((7, 0), True)]


def test_a_decoupled_coroutine_calls_for_its_request_when_execute_has_long_returned(model, calls):
    backend, info = model(
        """
    async def execute(self, requests):
        import asyncio
        global go
        go = asyncio.Event()
        sender = requests[0].get_response_sender()
        await go.wait()
        sender.send(passed(await call(requests[0]).async_exec()), flags=1)
    async def is_ready(self):
        go.set()  # on the loop that waits for it
        return True
""",
        decoupled=True,
    )
    request = Numbered(0)
    run(backend, info, [request])
    assert backend.ready()
    assert request.ended.wait(10)
    assert request.parts[0].outputs["Y"].tolist() == [[2, 2]]
    [sent] = calls.sent
    assert sent.parent == (7, 0)
    assert not sent.blocking


def test_its_calls_hold_up_nobody_from_the_first_on(model, calls):
    """Otherwise a call to the model's only instance, free in a moment, would now and then be refused."""
    backend, info = model(
        """
    async def execute(self, requests):
        sender = requests[0].get_response_sender()
        sender.send(passed(call(requests[0]).exec()), flags=1)
""",
        decoupled=True,
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            request = Numbered(0)
            run(backend, info, [request])
            assert request.ended.wait(10)
    finally:
        sys.setswitchinterval(interval)
    assert not any(sent.blocking for sent in calls.sent)


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-01"


@pytest.mark.parametrize(
    ("body", "count", "traces"),
    [
        (
            "call(requests[0]).exec()\nreturn [passed(call(requests[0], trace=requests[0].trace()).exec())]",
            1,
            [PARENT, PARENT],
        ),
        (  # one that the model passes goes before
            f'trace = pb_utils.InferenceTrace(\'{{"traceparent": "{OTHER}"}}\')\n'
            "return [passed(call(requests[0], trace=trace).exec())]",
            1,
            [OTHER],
        ),
        ("return [passed(call(r).exec()) for r in requests]", 2, ["", ""]),  # a batch has no one trace
    ],
)
def test_the_trace_of_the_request_goes_along(model, calls, body, count, traces):
    requests = [Numbered(index, parameters={"traceparent": PARENT}) for index in range(count)]
    asked(model, body, requests=requests)
    assert [sent.trace for sent in calls.sent] == traces
    if count > 1:
        assert [sent.parent for sent in calls.sent] == [(7, WHOLE_BATCH)] * count


# -- async_exec


def test_async_calls_run_at_the_same_time(model, calls):
    together = threading.Barrier(3, timeout=10)

    def meeting(call):
        together.wait()
        yield from doubling(call)

    calls.callees["callee"] = meeting
    got = asked(
        model,
        """
import asyncio
responses = await asyncio.gather(*(call(r).async_exec() for r in requests))
return [passed(response) for response in responses]
""",
        count=3,
    )
    assert [each.outputs["Y"].tolist() for each in got] == [[[2, 2]], [[4, 4]], [[6, 6]]]


def test_an_async_call_begins_before_it_is_awaited(model, calls):
    def noticing(call):
        sys.modules["1.model"].begun.set()
        yield from doubling(call)

    calls.callees["callee"] = noticing
    [got] = asked(
        model,
        """
import asyncio, threading
global begun
begun = threading.Event()
future = call(requests[0]).async_exec()
assert begun.wait(10)  # with the event loop held up meanwhile
return [passed(await future)]
""",
    )
    assert got.outputs["Y"].tolist() == [[2, 2]]


def test_no_more_threads_wait_than_the_pool_has(model, calls):
    lock, now, most = threading.Lock(), [0], [0]
    two = threading.Barrier(2, timeout=10)

    def counted(call):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        two.wait()
        with lock:
            now[0] -= 1
        yield from doubling(call)

    calls.callees["callee"] = counted
    got = asked(
        model,
        """
import asyncio
futures = [call(requests[0]).async_exec() for _ in range(12)]
return [passed((await asyncio.gather(*futures))[-1])]
""",
        settings={"thread-pool-size": "2"},
    )
    assert got[0].outputs["Y"].tolist() == [[2, 2]]
    assert most[0] == 2


def test_an_iterator_comes_when_the_call_is_made_whoever_waits_for_a_thread(model, calls):
    gate = threading.Event()

    def slow(call):
        assert gate.wait(10)
        yield from doubling(call)

    def many(call):
        gate.set()  # it has been made, though the only thread waits
        yield from counting(call)

    calls.callees = {"callee": slow, "counter": many}
    body = """
waiting = call(requests[0]).async_exec()
stream = await pb_utils.InferenceRequest(
    model_name="counter", inputs=requests[0].inputs(), requested_output_names=["Y"]
).async_exec(decoupled=True)
first = next(stream)
await waiting
return [passed(first)]
"""
    (answer,) = asked(model, body, settings={"thread-pool-size": "1"})
    assert answer.outputs["Y"].tolist() == [[0.0, 0.0]]


def test_a_plain_for_in_a_coroutine_does_not_hold_up_the_loop(model, calls):
    gate = threading.Event()

    def slow(call):
        for number in range(3):
            assert gate.wait(10), "the event loop stands still"
            gate.clear()
            yield answered(("Y", FP32, np.full((1, 2), number, "f4")), final=number == 2)

    calls.callees = {"callee": slow}
    model_body = """
    import asyncio
    async def execute(self, requests):
        asyncio = self.asyncio
        over = []
        async def others():
            while not over:
                self.gate.set()
                await asyncio.sleep(0.001)
        beside = [asyncio.ensure_future(others()) for _ in range(3)]
        current = asyncio.current_task()
        got = []
        for each in await call(requests[0]).async_exec(decoupled=True):
            got.append(each.output_tensors()[0].as_numpy())
            assert asyncio.current_task() is current
        over.append(True)
        await asyncio.gather(*beside)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", got[-1])], parameters={"got": str(len(got))})]
"""
    backend, info = model(model_body)
    backend._model.gate = gate
    (answer,) = run(backend, info, [LocalRequest({"X": ONES})])
    assert answer.outputs["Y"].tolist() == [[2.0, 2.0]]
    assert answer.parameters == {"got": "3"}


def test_many_coroutines_may_iterate_plainly_at_the_same_time(model, calls):
    calls.callees = {"callee": counting}
    body = """
import asyncio
async def one():
    found = []
    for each in await call(requests[0]).async_exec(decoupled=True):
        found += [float(t.as_numpy()[0, 0]) for t in each.output_tensors()]
        await asyncio.sleep(0)
    return found
found = await asyncio.gather(*(one() for _ in range(100)))
assert found == [[0.0, 1.0, 2.0]] * 100, found
return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 2), "f4"))])]
"""
    (answer,) = asked(model, body)
    assert answer.outputs["Y"].tolist() == [[1.0, 1.0]]


def test_a_cancelled_await_cancels_the_call(model, calls):
    waiting = threading.Event()

    def silent(call):
        waiting.set()
        assert calls.streams.get(timeout=10).cancelled.wait(10)
        yield failed(ErrorCode.CANCELLED, "cancelled")

    calls.callees["callee"] = silent
    [got] = asked(
        model,
        """
import asyncio
future = call(requests[0]).async_exec()
try:
    await asyncio.wait_for(future, 0.05)
except asyncio.TimeoutError:
    return [pb_utils.InferenceResponse([], parameters={"gave": "up"})]
""",
    )
    assert got.parameters == {"gave": "up"}
    assert waiting.is_set()


# -- decoupled calls


def collected(body):
    return f"""
numbers = []
{body}
return [pb_utils.InferenceResponse([], parameters={{"numbers": str(numbers)}})]
"""


NUMBER = "numbers.append(int(r.output_tensors()[0].as_numpy()[0, 0]) if r.output_tensors() else None)"


@pytest.mark.parametrize(
    ("callee", "body", "numbers"),
    [
        pytest.param(
            counting,
            f"for r in call(requests[0]).exec(decoupled=True):\n    {NUMBER}",
            [0, 1, 2, None],
            id="they come in order, and the last may be empty",
        ),
        pytest.param(
            counting,
            "them = call(requests[0]).exec(decoupled=True)\n"
            f"r = next(them)\n{NUMBER}\nfor r in them:\n    {NUMBER}\nfor r in them:\n    {NUMBER}",
            [0, 1, 2, None, 0, 1, 2, None],
            id="next takes one, and a loop the rest, and another loop all",
        ),
        pytest.param(
            counting,
            "them = call(requests[0]).exec(decoupled=True)\nnumbers += [len(list(them)), next(them, 'end')]",
            [4, "end"],
            id="next after the last one ends",
        ),
        pytest.param(
            counting,
            f"async for r in await call(requests[0]).async_exec(decoupled=True):\n    {NUMBER}",
            [0, 1, 2, None],
            id="a coroutine may iterate without holding its loop",
        ),
        pytest.param(
            counting,
            "them = call(requests[0]).exec(decoupled=True)\nnext(them)\nthem.cancel()\n"
            "numbers += [r.error().code().name for r in them]",
            ["CANCELLED"],
            id="cancel ends them with an error",
        ),
        pytest.param(
            doubling,
            f"for r in call(requests[0]).exec(decoupled=True):\n    {NUMBER}",
            [2],
            id="a model that is not decoupled gives one",
        ),
        pytest.param(
            None,
            "numbers += [r.error().code().name for r in call(requests[0]).exec(decoupled=True)]",
            ["NOT_FOUND"],
            id="a refusal is the only one",
        ),
    ],
)
def test_responses_of_a_decoupled_call(model, calls, callee, body, numbers):
    calls.callees = {"callee": callee} if callee else {}
    [got] = asked(model, collected(body))
    assert got.parameters["numbers"] == str(numbers)
    assert all(sent.decoupled for sent in calls.sent)


# -- the constructor


def request(**options):
    tensor = pb_utils.Tensor("X", ONES)
    defaults = {"request_id": "a", "model_name": "m", "inputs": [tensor], "requested_output_names": ["Y"]}
    return pb_utils.InferenceRequest(**{**defaults, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        (
            {"inputs": [None]},
            "Input tensor for request with id 'a' and model name 'm' should not be empty.",
        ),
        (
            {"requested_output_names": ["Y", ""]},
            "Requested output name for request with id 'a' and model name 'm' should not be empty.",
        ),
        ({"parameters": {1: "x"}}, "Expect parameters keys to have type str, found type <class 'int'>"),
        (
            {"parameters": {"a": 1.5}},
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
    ],
)
def test_the_constructor_refuses_in_tritons_words(options, message):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        request(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize("missing", ["inputs", "requested_output_names", "model_name"])
def test_what_a_request_cannot_do_without_is_named(missing):
    given: dict[str, Any] = {"inputs": [], "requested_output_names": [], "model_name": "m"}
    del given[missing]
    with pytest.raises(TypeError, match=f"needs {missing}"):
        pb_utils.InferenceRequest(**given)


def test_without_a_server_there_is_nobody_to_call(tmp_path):
    attach(Host(str(tmp_path), lambda level, message: None, phase="execute"))
    with pytest.raises(pb_utils.TritonModelException, match="only where that has loaded it"):
        request().exec()


@contextlib.contextmanager
def wired():
    """The server's end of a worker's connection, and a model of it in this thread."""
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    calls = Calls(theirs)
    attach(Host(".", lambda level, message: None, calls=calls, phase="execute"))
    with ours:
        ours.setblocking(False)
        yield ours
        calls.close()


@pytest.fixture
def wire():
    """The same, for a test."""
    with wired() as ours:
        yield ours


TEXTS = st.text(st.characters(), max_size=8)
NUMBERS = st.integers(-2, 3) | st.integers() | st.sampled_from([2**31, 2**32, 2**63, 2**64, -(2**63)])
ANYTHING = st.none() | NUMBERS | TEXTS | st.booleans() | st.floats()


@given(
    options=st.fixed_dictionaries(
        {},
        optional={
            "request_id": TEXTS,
            "correlation_id": TEXTS | NUMBERS,
            "requested_output_names": st.lists(TEXTS, max_size=3),
            "model_name": TEXTS,
            "model_version": NUMBERS | ANYTHING,
            "flags": NUMBERS | ANYTHING,
            "timeout": NUMBERS | ANYTHING,
            "parameters": st.dictionaries(TEXTS, ANYTHING, max_size=3),
            "trace": st.builds(
                pb_utils.InferenceTrace, st.none() | TEXTS | st.sampled_from(['{"traceparent": "\\udc80"}'])
            ),
        },
    )
)
@settings(deadline=None)
def test_no_mistake_of_a_model_breaks_its_connection(options):
    with wired() as wire:
        try:
            iterator = request(**options).exec(decoupled=True)
        except pb_utils.TritonModelException:
            return
        packet = b""
        with contextlib.suppress(BlockingIOError):
            packet = wire.recv(frames.MAX_FRAME)
        if not packet:  # it was answered on this side
            assert [each.has_error() for each in iterator] == [True]
            return
        letter = Letter.decode(packet)
        read = read_call(letter)
        assert read.model == options.get("model_name", "m")
        assert read.requested_outputs == tuple(options.get("requested_output_names", ["Y"]))
        for each in Part(letter.number, 0, None, b"", 0, final=True).packets():
            wire.send(each)
        assert [each.output_tensors() for each in iterator] == [[]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": -1}, f"timeout must be from 0 to {2**63 - 1}, got -1"),
        ({"timeout": 1.5}, "timeout must be an int, got float"),
        ({"correlation_id": -1}, f"correlation_id must be from 0 to {2**64 - 1}, got -1"),
        ({"model_name": "a\udc80"}, "model_name has a character that is no text: "),
        ({"requested_output_names": [1]}, "a requested output's name must be a str, got int"),
    ],
)
@pytest.mark.usefixtures("wire")
def test_values_that_no_request_has_are_refused_before_they_are_sent(options, message):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        request(**options).exec()
    assert str(caught.value).startswith(message)


# -- `load_model`, `unload_model` and `is_model_ready` as a Python model calls them


WHERE = "Failed to process the request for model 'model_0_0', message: "


class Repository:
    """Answers as the server does, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.answer = {}

    def __call__(self, *question):
        self.asked.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def repository():
    """The repository that a model of this thread reaches."""
    made = Repository()
    calls = LocalCalls(subjects=dict.fromkeys(("model.load", "model.unload", "model.ready"), made))
    attach(Host(".", lambda level, message: None, instance_name="model_0_0", calls=calls))
    return made


FILES: dict[str, Any] = {"file:1/model.onnx": b"\x00\xff", "file:labels.txt": bytearray(b"a")}


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        (lambda: pb_utils.load_model("other"), ({"name": "other"}, {})),
        (
            lambda: pb_utils.load_model(model_name="other", config="{}", files=FILES),
            (
                {"name": "other", "config": "{}"},
                {"file:1/model.onnx": b"\x00\xff", "file:labels.txt": b"a"},
            ),
        ),
        (lambda: pb_utils.unload_model("other"), ({"name": "other", "unload_dependents": False},)),
        (lambda: pb_utils.unload_model("other", True), ({"name": "other", "unload_dependents": True},)),
    ],
)
def test_a_model_is_loaded_and_unloaded_by_its_name(repository, question, asked):
    question()
    assert repository.asked == [asked]


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [
        (
            lambda: pb_utils.load_model("other", "{}", [b"content"]),  # type: ignore[arg-type]
            None,
            "failed to load model 'other', files should be a dictionary of file paths and file contents",
        ),
        (
            lambda: pb_utils.load_model("other", "{}", {"file:1/model.py": "text"}),  # type: ignore[dict-item]
            None,
            "got str to str, which should be str to bytes",
        ),
        (
            lambda: pb_utils.load_model("other"),
            InvalidArgument("no such platform"),
            f"Failed to load model: {WHERE}no such platform",
        ),
        (
            lambda: pb_utils.unload_model("other"),
            NotFound("gone"),
            f"Failed to unload model: {WHERE}gone",
        ),
        (
            lambda: pb_utils.is_model_ready("other"),
            NotFound("Request for unknown model: 'other' is not found"),
            f"Failed to check model readiness: {WHERE}Request for unknown model: 'other' is not found",
        ),
    ],
)
def test_what_is_refused_says_why(repository, question, answer, message):
    repository.answer = answer
    with pytest.raises(pb_utils.TritonModelException) as caught:
        question()
    assert message in str(caught.value)
    assert len(repository.asked) == (answer is not None)


def test_readiness_is_a_boolean(repository):
    for ready in (True, False):
        repository.answer = {"ready": ready}
        assert pb_utils.is_model_ready("other", model_version="2") is ready
    assert repository.asked[0][0] == {"name": "other", "version": "2"}


@pytest.mark.parametrize("phase", ["auto_complete_config", "finalize"])
@pytest.mark.parametrize("function", ["load_model", "unload_model", "is_model_ready"])
def test_some_methods_cannot_reach_models(phase, function):
    attach(Host(".", lambda level, message: None, calls=LocalCalls(), phase=phase))
    with pytest.raises(pb_utils.TritonModelException, match=f"models can't be reached from {phase}"):
        getattr(pb_utils, function)("other")
