"""CUDA shared memory over both protocols, with the stand-in for the driver."""

import base64
import signal
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import trio
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.fake_gpu import built, client, lose
from tests.support.gpu_server import serving
from tests.survival.server import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "models"
ROWS, COLUMNS = 2, 1 << 20  # 8 MiB


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def environ(folder):
    return built(folder)


@pytest.fixture(scope="module")
def server(folder, environ):
    loaded = ("--model-control-mode=explicit", "--load-model=identity_fp32", "--load-model=strings")
    flags = ("--allow-client-shm=true", *loaded)
    with serving(MODELS, folder / "server", *flags, environ=environ) as server:
        yield server


@pytest.fixture(scope="module")
def program(environ):
    with client(environ) as program:
        yield program


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def triton(request, server):
    protocol = request.param
    url = server.url if protocol is tritonclient.http else server.grpc_url
    with protocol.InferenceServerClient(url) as triton:
        triton.protocol = protocol
        yield triton
        triton.unregister_cuda_shared_memory()


def register(triton, name, handle, nbytes, device=0):
    triton.register_cuda_shared_memory(name, base64.b64encode(handle), device, nbytes)


def infer(triton, x, place_in, place_out, *, model="identity_fp32"):
    protocol = triton.protocol
    given = protocol.InferInput("INPUT0", x.shape, "FP32")
    given.set_shared_memory(*place_in)
    wanted = protocol.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory(*place_out)
    return triton.infer(model, [given], outputs=[wanted])


def refused(call, *arguments):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments)
    return caught.value.message()


@pytest.mark.parametrize("columns", [4, COLUMNS])
def test_tensors_go_in_and_out_by_device_memory(triton, program, columns):
    x = np.random.default_rng(1).random((ROWS, columns), np.float32)
    into, out = program.allocate(x.nbytes), program.allocate(x.nbytes + 64)
    program.write(into, x.tobytes())
    register(triton, "in", into, x.nbytes)
    register(triton, "out", out, x.nbytes + 64)
    answer = infer(triton, x, ("in", x.nbytes), ("out", x.nbytes, 64))
    assert answer.get_output("OUTPUT0") is not None
    assert program.read(out, x.nbytes, at=64) == x.tobytes()
    assert program.read(out, 64) == bytes(64)
    program.free(into)
    program.free(out)


def test_regions_of_two_devices_are_told_apart(triton, program):
    handles = [program.allocate(64, device=device) for device in (0, 1)]
    for device, handle in enumerate(handles):
        register(triton, f"r{device}", handle, 64, device)
    status = triton.get_cuda_shared_memory_status()
    if triton.protocol is tritonclient.http:
        assert status == [{"name": f"r{n}", "device_id": n, "byte_size": 64} for n in (0, 1)]
    else:
        found = {name: (each.device_id, each.byte_size) for name, each in status.regions.items()}
        assert found == {"r0": (0, 64), "r1": (1, 64)}
    x = np.arange(16, dtype=np.float32).reshape(1, 16)
    program.write(handles[0], x.tobytes())
    infer(triton, x, ("r0", 64), ("r1", 64))
    assert program.read(handles[1], 64) == x.tobytes()


def test_what_the_driver_refuses_is_a_bad_request(triton, program):
    handle = program.allocate(64)
    assert "failed to register shared memory region: invalid args" in refused(
        register, triton, "bad", b"\xff" * 64, 64
    )
    assert "failed to register shared memory region 'big': invalid args" in refused(
        register, triton, "big", handle, 65
    )
    assert "failed to register shared memory region: invalid args" in refused(
        register, triton, "other", handle, 64, 1
    )
    register(triton, "once", handle, 64)
    assert "shared memory region 'once' already in manager" in refused(register, triton, "once", handle, 64)


def test_an_unregistered_region_is_gone_and_its_process_with_it(triton, server, program):
    register(triton, "r", program.allocate(64), 64)
    [process] = processes(server)
    triton.unregister_cuda_shared_memory("r")
    trio.run(until, lambda: not Path(f"/proc/{process.pid}").exists())
    x = np.zeros((1, 16), np.float32)
    assert "Unable to find shared memory region: 'r'" in refused(infer, triton, x, ("r", 64), ("r", 64))


def test_the_death_of_the_process_that_reaches_a_gpu_costs_nothing(triton, server, program):
    handle = program.allocate(64)
    register(triton, "r", handle, 64)
    x = np.arange(16, dtype=np.float32).reshape(1, 16)
    program.write(handle, x.tobytes())
    for _ in range(3):
        [process] = processes(server)
        process.send_signal(signal.SIGKILL)
        trio.run(until, partial(has_ended, process))
        infer(triton, x, ("r", 64), ("r", 64))
    assert program.read(handle, 64) == x.tobytes()


def test_a_lost_gpu_is_an_error_until_it_is_back(triton, program, environ):
    handle = program.allocate(64)
    register(triton, "r", handle, 64)
    x = np.zeros((1, 16), np.float32)
    found = lose(environ)
    told = refused(infer, triton, x, ("r", 64), ("r", 64))
    assert "input 'INPUT0' can't be read from CUDA shared memory region 'r': GPU 0 is lost" in told
    found()
    infer(triton, x, ("r", 64), ("r", 64))


def test_an_output_that_is_too_long_is_refused(triton, program):
    handle = program.allocate(128)
    register(triton, "r", handle, 128)
    x = np.zeros((1, 16), np.float32)
    told = refused(infer, triton, x, ("r", 64), ("r", 60, 64))
    assert (
        "shared memory size specified with the request for output 'OUTPUT0' (60 bytes) should be at least"
        in told
    )
    assert program.read(handle, 64, at=64) == bytes(64)


def test_a_client_that_is_killed_leaves_its_regions_usable_or_refused(triton, environ):
    with client(environ) as other:
        handle = other.allocate(64)
        register(triton, "r", handle, 64)
    x = np.zeros((1, 16), np.float32)
    infer(triton, x, ("r", 64), ("r", 64))


def has_ended(process):
    return process.status() == psutil.STATUS_ZOMBIE


def processes(server):
    return [
        each
        for each in server.descendants()
        if any(part.endswith("devices/program.py") for part in each.cmdline())
    ]
