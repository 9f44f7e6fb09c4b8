"""Models that call from threads, coroutines and forked processes at the same time, in a real server."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.conformance.test_python_bls import COUNTDOWN, python_model
from tests.support.flavours import Addresses, process
from tests.support.triton_inputs import inputs

DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""

FORKER = '''
import asyncio, json, multiprocessing, os, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FORK = multiprocessing.get_context("fork")
LARGE = 60_000  # elements: more than goes in frames

def call(model, value, size=1, **options):
    tensor = pb_utils.Tensor("X", np.full(size, value, np.float32))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=["Y"], **options)

def values(response):
    if response.has_error():
        raise RuntimeError(response.error().message())
    return [float(v) for t in response.output_tensors() for v in (t.as_numpy()[0], t.as_numpy()[-1])]

def once(number):
    """Call in each way; the wrong answers that came."""
    wrong = []
    size = LARGE if number % 10 == 0 else 1
    got = values(call("double", number, size).exec())
    if got != [2.0 * number] * 2:
        wrong.append(["exec", number, got])
    count = number % 4
    got = [v for each in call("countdown", count).exec(decoupled=True) for v in values(each)[:1]]
    if got != [float(n) for n in range(count, 0, -1)]:
        wrong.append(["decoupled", number, got])
    if number % 7 == 0 and not pb_utils.is_model_ready("double"):
        wrong.append(["ready", number])
    return wrong

async def once_async(number):
    wrong = []
    got = values(await call("double", number).async_exec())
    if got != [2.0 * number] * 2:
        wrong.append(["async_exec", number, got])
    count = number % 4
    got = [v async for each in await call("countdown", count).async_exec(decoupled=True) for v in values(each)[:1]]
    if got != [float(n) for n in range(count, 0, -1)]:
        wrong.append(["async decoupled", number, got])
    return wrong

def until(end, start):
    """Call until then: how often, and what was wrong."""
    number, wrong = start, []
    while time.monotonic() < end:
        number += 1
        try:
            wrong += once(number)
        except Exception as error:
            wrong.append([type(error).__name__, str(error)])
    return number - start, wrong

async def until_async(end, start):
    number, wrong = start, []
    while time.monotonic() < end:
        number += 1
        try:
            wrong += await once_async(number)
        except Exception as error:
            wrong.append([type(error).__name__, str(error)])
    return number - start, wrong

def coroutine_in_child(number):
    return asyncio.run(once_async(number))

def in_child(function):
    """What a function returns in a process that is forked now."""
    ours, theirs = FORK.Pipe()
    def run():
        try:
            theirs.send(function())
        except BaseException as error:
            theirs.send([type(error).__name__, str(error)])
    child = FORK.Process(target=run)
    child.start()
    found = ours.recv() if ours.poll(30) else "no answer"
    child.join(30)
    return found

def load(self, seconds):
    """16 threads, 64 coroutines and a pool of 4 processes, side by side."""
    end = time.monotonic() + seconds
    found = {"threads": [], "coroutines": [], "processes": []}
    pool = FORK.Pool(4)
    kept = pool.starmap_async(until, [(end, 1000 * k) for k in range(4)])
    threads = [threading.Thread(target=lambda k=k: found["threads"].append(until(end, 1000 * k))) for k in range(16)]
    async def coroutines():
        return await asyncio.gather(*(until_async(end, 1000 * k) for k in range(64)))
    for thread in threads:
        thread.start()
    found["coroutines"] = asyncio.run(coroutines())
    for thread in threads:
        thread.join()
    found["processes"] = kept.get(60)
    pool.close()
    pool.join()
    return {kind: [sum(n for n, _ in each), [w for _, wrong in each for w in wrong][:20]] for kind, each in found.items()}

def early(self):
    """A pool that was made in `initialize`."""
    return self.pool.map(once, range(20)) + self.pool.map(coroutine_in_child, range(4))

def nested(self):
    """A child of a child; and its parent, which goes on after it."""
    def child():
        first = once(1)
        return [first, in_child_again(), once(3)]
    def in_child_again():
        read, write = os.pipe()
        if not os.fork():
            os.write(write, json.dumps(once(2)).encode())
            os._exit(0)
        found = json.loads(os.read(read, 1000))
        os.wait()
        return found
    return in_child(child)

def streams(self):
    """A stream that is open while a child is forked stays its parent's."""
    stream = call("countdown", 3).exec(decoupled=True)
    iterator = iter(stream)
    first = values(next(iterator))[:1]
    def child():
        import gc
        globals().pop("nothing", None)
        told = next(iterator)
        del_it()
        return told.error().message() if told.has_error() else "it was answered"
    def del_it():
        stream.cancel()
    other = in_child(child)
    return [first, other, [v for each in iterator for v in values(each)[:1]]]

def killed(self):
    """A child that is killed while it calls, in the middle of many."""
    def child():
        while True:
            call("double", 1, LARGE).exec()
    process = FORK.Process(target=child)
    process.start()
    time.sleep(0.3)
    process.kill()
    process.join()
    return once(10)

def leaves(self):
    """Children that come out of `execute`, in two ways."""
    found = []
    for how in ("return", "exit"):
        pid = os.fork()
        if not pid:
            if how == "exit":
                sys.exit(7)
            return "of a child"
        found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return found + once(5)

def logs(self):
    def child():
        pb_utils.Logger.log_info("a line of a forked process")
        return "logged"
    return in_child(child)

def measures(self):
    """What a child counts is counted, and what it drops stays."""
    before = self.counter.value()
    def child():
        self.counter.increment(2)
        own = self.family.Metric(labels={"of": "child"})
        own.increment(1)
        told = own.value()
        del own
        self.counter.orphan()
        return told
    told = in_child(child)
    return [told, self.counter.value() - before]

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("forked", "Of processes", pb_utils.MetricFamily.COUNTER)
        self.counter = self.family.Metric(labels={"of": "all"})
        self.pool = FORK.Pool(2)

    def execute(self, requests):
        responses = []
        for request in requests:
            name, *arguments = json.loads(request.inputs()[0].as_numpy().ravel()[0])
            result = globals()[name](self, *arguments)
            tensor = pb_utils.Tensor("RESULT", np.array([json.dumps([os.getpid(), result]).encode()], dtype=object))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses

    def finalize(self):
        self.pool.terminate()
'''

XY = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }'
CODE = 'input { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } output { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] }'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A server with a model that forks, and two that it calls."""
    folder = tmp_path_factory.mktemp("repository")
    python_model(folder, "double", DOUBLE, XY, count=2)
    python_model(folder, "countdown", COUNTDOWN, XY, more="model_transaction_policy { decoupled: true }")
    python_model(folder, "forker", FORKER, CODE)
    metrics: dict[str, Any] = {
        "TRITIUM_ALLOW_METRICS": "true",
        "TRITIUM_METRICS_ADDRESS": "127.0.0.1",
        "TRITIUM_METRICS_PORT": "0",
    }
    with process("engine", "serve", **metrics)(folder) as opened:
        yield opened


class Forker:
    """Has the model do something, and knows whether its worker is still the first."""

    def __init__(self, server: Addresses) -> None:
        self.server = server
        self.client = tritonclient.grpc.InferenceServerClient(server.grpc)
        self.workers: set[int] = set()

    def run(self, *what, timeout: float = 60.0):
        code = inputs(tritonclient.grpc, CODE=np.array([json.dumps(what).encode()], dtype=object))
        answer = self.client.infer("forker", code, client_timeout=timeout)
        worker, result = json.loads(answer.as_numpy("RESULT")[0])
        self.workers.add(worker)
        return result


@pytest.fixture
def forker(server: Addresses) -> Iterator[Forker]:
    """A client of the model; its worker must be alive, and the same, when the test ends."""
    opened = Forker(server)
    opened.run("logs")
    yield opened
    opened.run("logs")
    assert len(opened.workers) == 1
    opened.client.close()


def assert_no_error(told: dict[str, list]) -> None:
    assert {kind: wrong for kind, (_, wrong) in told.items()} == {
        "threads": [],
        "coroutines": [],
        "processes": [],
    }
    assert all(count > 0 for count, _ in told.values()), told


@pytest.mark.long
def test_threads_coroutines_and_processes_call_at_the_same_time(forker):
    assert_no_error(forker.run("load", 2.0))


@pytest.mark.long
def test_threads_coroutines_and_processes_call_for_a_minute(forker):
    told = forker.run("load", 60.0, timeout=240)
    print(told)
    assert_no_error(told)


def test_a_pool_made_in_initialize_can_call(forker):
    assert forker.run("early") == [[]] * 24


def test_a_child_of_a_child_can_call_and_its_parent_goes_on(forker):
    assert forker.run("nested") == [[], [], []]


def test_a_stream_stays_with_the_process_that_asked_for_it(forker):
    assert forker.run("streams") == [[3.0], "the server closed the connection", [2.0, 1.0]]


@pytest.mark.long
def test_a_child_that_is_killed_costs_its_own_calls(forker):
    for _ in range(3):
        assert forker.run("killed") == []


def test_a_child_that_comes_out_of_execute_ends_alone(forker):
    assert forker.run("leaves") == [0, 7]


def test_what_a_child_counts_is_counted(forker):
    assert forker.run("measures") == [1.0, 2.0]
    with urllib.request.urlopen(f"http://{forker.server.http}/v2/models/forker/ready") as answer:
        assert answer.status == 200
