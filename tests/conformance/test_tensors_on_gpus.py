"""Tensors that stay on a GPU, between steps of an ensemble and in clients' regions; the driver is played.

Whether a tensor was in host memory is seen in the stand-in's record of copies. The one between the steps has
a length that no other has.
"""

import base64
import itertools
import shutil
import signal
import threading
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import trio
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from engine.worker.devices.exports import GRANULE
from tests.support.fake_gpu import built, client, copies
from tests.support.gpu_server import serving
from tests.survival.server import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "support" / "cuda" / "kernels.py"
ROW = 4 * 1024  # bytes of a row between the steps
LAST = 300  # requests of the tests with many

MAKER = """
import numpy as np
import triton_python_backend_utils as pb_utils
from kernels import Array, sent

class TritonPythonModel:
    def execute(self, requests):
        self.kept = []  # until the next batch, when these have been copied
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "X").as_numpy()) for each in requests]

    def answer(self, x):
        there, made = sent(0, x), Array(0, (len(x), 1024))
        made.values[:] = np.repeat(there.values, 256, axis=1) + 1
        self.kept.append(made)
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("MID", made)])
"""

READER = """
import numpy as np
import triton_python_backend_utils as pb_utils
from kernels import given

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "MID")) for each in requests]

    def answer(self, mid):
        values = mid.as_numpy() if mid.is_cpu() else given(mid)
        told = pb_utils.Tensor("WHERE", np.full((len(values), 1), 0 if mid.is_cpu() else 1, np.int32))
        total = values.reshape(len(values), 4, 256)[:, :, 0] * 2
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", total), told])
"""

# It takes its time, as models do: so there are tensors that it has not read when their maker dies.
SLOW_READER = READER.replace(
    "    def execute(self, requests):", "    def execute(self, requests):\n        time.sleep(0.02)"
)
SLOW_READER = "import time\n" + SLOW_READER

DOUBLE = """
import triton_python_backend_utils as pb_utils
from kernels import Array, given, sent

class TritonPythonModel:
    def execute(self, requests):
        self.kept = []
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "X")) for each in requests]

    def answer(self, x):
        there = sent(0, x.as_numpy()) if x.is_cpu() else None
        values = given(x) if there is None else there.values
        made = Array(0, values.shape)
        made.values[:] = values * 2
        self.kept.append(made)
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", made)])
"""


def tensor(name, dims, kind="FP32"):
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }}'


def model(inputs, outputs, **parameters):
    told = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '
        for key, value in {"FORCE_CPU_ONLY_INPUT_TENSORS": "no", **parameters}.items()
    )
    return (
        'backend: "python" max_batch_size: 8 dynamic_batching { }'
        f" input [ {', '.join(inputs)} ] output [ {', '.join(outputs)} ]"
        f" instance_group {{ kind: KIND_GPU count: 1 gpus: 0 }} {told}"
    )


def ensemble(maker, reader, *, gpu_tensors):
    told = "on" if gpu_tensors else "off"
    return (
        'platform: "ensemble" max_batch_size: 8'
        f" input {tensor('X', 4)} output [ {tensor('Y', 4)}, {tensor('WHERE', 1, 'INT32')} ]"
        f' parameters {{ key: "tritium.gpu_tensors" value {{ string_value: "{told}" }} }}'
        f' ensemble_scheduling {{ step [ {{ model_name: "{maker}" model_version: -1'
        ' input_map { key: "X" value: "X" } output_map { key: "MID" value: "mid" } },'
        f' {{ model_name: "{reader}" model_version: -1 input_map {{ key: "MID" value: "mid" }}'
        ' output_map { key: "Y" value: "Y" } output_map { key: "WHERE" value: "WHERE" } } ] }'
    )


MAKING = [tensor("X", 4)], [tensor("MID", 1024)]
READING = [tensor("MID", 1024)], [tensor("Y", 4), tensor("WHERE", 1, "INT32")]
POOL = "tritium.gpu_tensor_pool_bytes"

MODELS = {
    "maker": (model(*MAKING), MAKER),
    "maker_of_little": (model(*MAKING, **{POOL: str(2 * GRANULE)}), MAKER),
    "maker_of_none": (model(*MAKING, **{POOL: "0"}), MAKER),
    "reader": (model(*READING), READER),
    "slow_reader": (model(*READING), SLOW_READER),
    "double": (model([tensor("X", "[ -1 ]")], [tensor("Y", "[ -1 ]")]), DOUBLE),
    "whole": (ensemble("maker", "reader", gpu_tensors=True), None),
    "whole_and_slow": (ensemble("maker", "slow_reader", gpu_tensors=True), None),
    "whole_of_little": (ensemble("maker_of_little", "reader", gpu_tensors=True), None),
    "whole_of_none": (ensemble("maker_of_none", "reader", gpu_tensors=True), None),
    "whole_by_host": (ensemble("maker", "reader", gpu_tensors=False), None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def environ(folder):
    return built(folder)


@pytest.fixture(scope="module")
def server(folder, environ):
    repository = folder / "models"
    for name, (config, code) in MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if code is not None:
            (version / "model.py").write_text(code)
            shutil.copy(KERNELS, version)
    with serving(repository, folder / "server", "--allow-client-shm=true", environ=environ) as server:
        yield server


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def triton(request, server):
    protocol = request.param
    url = server.url if protocol is tritonclient.http else server.grpc_url
    with protocol.InferenceServerClient(url) as triton:
        triton.protocol = protocol
        yield triton
        triton.unregister_cuda_shared_memory()


@pytest.fixture
def between(environ):
    """Copies with the length of tensors between the steps, since the test began."""
    before = len(copies(environ))

    def found():
        return [each for each in copies(environ)[before:] if each.nbytes % ROW == 0]

    return found


def ask(triton, name, x):
    given = triton.protocol.InferInput("X", x.shape, "FP32")
    given.set_data_from_numpy(x)
    return triton.infer(name, [given])


def expected(x):
    return (x + 1) * 2


def metric(server, name, model):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
        text = answer.read().decode()
    lines = [
        each for each in text.splitlines() if each.startswith(f"{name}{{") and f'model="{model}"' in each
    ]
    return sum(float(each.rsplit(" ", 1)[1]) for each in lines)


def all_back(server, *makers):
    return all(not metric(server, "tritium_gpu_tensor_buffers_in_use", each) for each in makers)


def worker_of(server, model):
    [pid] = trio.run(server.workers, model)
    return psutil.Process(pid)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_tensor_between_two_steps_never_is_in_host_memory(triton, server, between, rows):
    counted = metric(server, "tritium_gpu_tensors_total", "maker")
    x = np.random.default_rng(1).random((rows, 4), np.float32)
    answer = ask(triton, "whole", x)
    assert np.array_equal(answer.as_numpy("Y"), expected(x))
    assert answer.as_numpy("WHERE").ravel().tolist() == [1] * rows
    assert {each.kind for each in between()} == {"DtoD"}
    assert metric(server, "tritium_gpu_tensors_total", "maker") == counted + 1
    trio.run(until, lambda: all_back(server, "maker"))


def test_without_the_setting_it_goes_by_host_memory(triton, server, between):
    x = np.ones((1, 4), np.float32)
    answer = ask(triton, "whole_by_host", x)
    assert np.array_equal(answer.as_numpy("Y"), expected(x))
    assert answer.as_numpy("WHERE").tolist() == [[0]]
    assert {each.kind for each in between()} == {"DtoH"}


def crowd(server, name, count, *, workers=8, meanwhile=lambda found: None):
    """Send `count` requests from some threads, and more until `meanwhile` is done.

    Return what came of them, which `meanwhile` is given as it grows.
    """
    numbers = itertools.count()
    over = threading.Event()
    lock = threading.Lock()
    found: Counter[int | str] = Counter()

    def work():
        with tritonclient.http.InferenceServerClient(server.url) as triton:
            triton.protocol = tritonclient.http
            while True:
                number = next(numbers)
                if number >= count and over.is_set():
                    return
                x = np.random.default_rng(number).random((1 + number % 3, 4), np.float32)
                try:
                    answer = ask(triton, name, x)
                except InferenceServerException as error:
                    result: int | str = str(error)
                else:
                    right = np.array_equal(answer.as_numpy("Y"), expected(x))
                    result = int(answer.as_numpy("WHERE")[0, 0]) if right else "wrong"
                with lock:
                    found[result] += 1

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        meanwhile(found)
    finally:
        over.set()
    for thread in threads:
        thread.join()
    return found


def test_many_at_once_are_right_and_every_buffer_comes_back(server, between):
    found = crowd(server, "whole", LAST)
    assert set(found) == {1}
    assert found[1] >= LAST
    assert {each.kind for each in between()} == {"DtoD"}
    trio.run(until, lambda: all_back(server, "maker"))


def test_without_room_in_the_pool_tensors_go_by_host_memory_and_are_right(server):
    assert set(crowd(server, "whole_of_none", 50)) == {0}
    found = crowd(server, "whole_of_little", LAST)
    assert set(found) <= {0, 1}
    assert found[1]
    trio.run(until, lambda: all_back(server, "maker_of_little", "maker_of_none"))


def test_the_death_of_a_maker_costs_its_requests_only(server):
    def strike(found):
        while not any("is lost" in each for each in map(str, list(found))):
            taken = metric(server, "tritium_gpu_tensors_total", "maker")
            trio.run(until, partial(reads, taken + 20))
            worker_of(server, "maker").send_signal(signal.SIGKILL)

    def reads(taken):
        """Whether the maker has left more tensors than so many, and some are to be read."""
        names = "tritium_gpu_tensors_total", "tritium_gpu_tensor_buffers_in_use"
        total, in_use = (metric(server, name, "maker") for name in names)
        return total > taken and in_use

    found = crowd(server, "whole_and_slow", 50, meanwhile=strike)
    assert "wrong" not in found
    told = [each for each in found if isinstance(each, str)]
    assert all(each.startswith("[503] in ensemble 'whole_and_slow', ") for each in told), told
    assert found[1] >= 20
    assert set(crowd(server, "whole_and_slow", 20)) == {1}
    trio.run(until, lambda: all_back(server, "maker"))


# -- clients' regions


@pytest.fixture(scope="module")
def program(environ):
    with client(environ) as program:
        yield program


def register(triton, name, handle, nbytes, device=0):
    triton.register_cuda_shared_memory(name, base64.b64encode(handle), device, nbytes)


def infer(triton, x, place_in, place_out):
    given = triton.protocol.InferInput("X", x.shape, "FP32")
    given.set_shared_memory(*place_in)
    wanted = triton.protocol.InferRequestedOutput("Y")
    wanted.set_shared_memory(*place_out)
    return triton.infer("double", [given], outputs=[wanted])


@pytest.mark.parametrize("columns", [4, 1 << 20])
def test_regions_on_the_models_gpu_are_read_and_written_by_its_worker_alone(
    triton, server, environ, program, columns
):
    x = np.random.default_rng(columns).random((1, columns), np.float32)
    into, out = program.allocate(x.nbytes), program.allocate(x.nbytes + 64)
    program.write(into, x.tobytes())
    register(triton, "in", into, x.nbytes)
    register(triton, "out", out, x.nbytes + 64)
    before = len(copies(environ))
    answer = infer(triton, x, ("in", x.nbytes), ("out", x.nbytes, 64))
    assert answer.get_output("Y") is not None
    made = copies(environ)[before:]
    assert {(each.kind, each.nbytes) for each in made} == {("DtoD", x.nbytes)}
    assert {each.pid for each in made} == {worker_of(server, "double").pid}
    assert program.read(out, x.nbytes, at=64) == (x * 2).tobytes()
    assert program.read(out, 64) == bytes(64)
    triton.unregister_cuda_shared_memory()
    program.free(into)
    program.free(out)


def test_a_region_on_another_gpu_is_copied_for_the_model(triton, program):
    x = np.arange(16, dtype=np.float32).reshape(1, 16)
    into, out = program.allocate(64, device=1), program.allocate(64, device=1)
    program.write(into, x.tobytes())
    register(triton, "in", into, 64, 1)
    register(triton, "out", out, 64, 1)
    infer(triton, x, ("in", 64), ("out", 64))
    assert program.read(out, 64) == (x * 2).tobytes()


def test_a_worker_closes_a_region_that_was_unregistered(triton, server, program):
    worker = worker_of(server, "double")

    def opened():
        """The client's allocations that the model's worker has open."""
        maps = worker.memory_maps(grouped=False)
        return {each.path for each in maps if f"memory.{program.pid}." in each.path}

    for number in range(3):
        x = np.full((1, 16), number, np.float32)
        into, out = program.allocate(64), program.allocate(64)
        program.write(into, x.tobytes())
        register(triton, "in", into, 64)
        register(triton, "out", out, 64)
        infer(triton, x, ("in", 64), ("out", 64))
        assert program.read(out, 64) == (x * 2).tobytes()
        assert len(opened()) == 2
        triton.unregister_cuda_shared_memory()
        trio.run(until, lambda: not opened())
        program.free(into)
        program.free(out)
