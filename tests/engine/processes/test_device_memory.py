"""How the server reaches device memory of clients: by a process, with a stand-in for the driver."""

import os
import signal
import threading
from pathlib import Path

import pytest

from actors.regions.devices import DeviceError
from actors.values.hardware.gpus import Gpu
from engine.processes.devices.memory import GpuDevices
from engine.processes.devices.process import WINDOW, DeviceLost, DeviceProcess, DeviceRefused
from tests.support.fake_gpu import built, client, lose

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    return built(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def program(environ):
    with client(environ) as program:
        yield program


@pytest.fixture
def device(environ):
    device = DeviceProcess(0, environ={**os.environ, **environ})
    yield device
    device.end()
    assert device.pid is None


def read(device, number, nbytes, at=0):
    found = bytearray(nbytes)
    device.read_into(number, at, memoryview(found))
    return bytes(found)


def test_both_sides_see_what_the_other_has_written(device, program):
    handle = program.allocate(4096)
    program.write(handle, b"from the client", at=100)
    region = device.open(handle)[0]
    assert read(device, region, 15, at=100) == b"from the client"
    device.write(region, 2000, memoryview(b"from the server"))
    assert program.read(handle, 15, at=2000) == b"from the server"
    device.close(region)


def test_more_than_a_window_is_copied_in_pieces(device, program):
    nbytes = 2 * WINDOW + 12345
    handle = program.allocate(nbytes)
    region = device.open(handle)[0]
    data = os.urandom(nbytes)
    device.write(region, 0, memoryview(data))
    assert read(device, region, nbytes) == data


def test_no_process_runs_without_a_region(device, program):
    assert device.pid is None
    first, second = (device.open(program.allocate(64))[0] for _ in range(2))
    pid = device.pid
    device.close(first)
    assert device.pid == pid
    device.close(second)
    assert device.pid is None
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("handle", [b"\0" * 64, b"\xff" * 64, b"\0memory.999.7".ljust(64, b"\0")])
def test_a_handle_of_nothing_is_refused(device, handle):
    with pytest.raises(DeviceRefused, match="CUDA_ERROR_"):
        device.open(handle)[0]


def test_an_allocation_tells_its_bytes(device, program):
    assert device.open(program.allocate(12345))[1] == 12345


def test_a_handle_of_another_device_is_refused(device, program):
    with pytest.raises(DeviceRefused, match="CUDA_ERROR_INVALID_HANDLE"):
        device.open(program.allocate(64, device=1))


def test_regions_outlive_the_process_that_reaches_them(device, program):
    handle = program.allocate(64)
    program.write(handle, b"a" * 64)
    region = device.open(handle)[0]
    first = device.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert read(device, region, 64) == b"a" * 64
    assert device.pid != first


def test_a_device_that_is_lost_comes_back_with_its_regions(device, program, environ):
    handle = program.allocate(64)
    region = device.open(handle)[0]
    found = lose(environ)
    with pytest.raises(DeviceLost, match=r"GPU 0 is lost to the process that reaches it: .*ILLEGAL_ADDRESS"):
        read(device, region, 64)
    found()
    assert read(device, region, 64) == b"\0" * 64


def test_memory_that_the_client_has_freed_is_an_error_when_it_has_to_be_opened_again(device, program):
    handle = program.allocate(64)
    region = device.open(handle)[0]
    program.free(handle)
    assert read(device, region, 64) == b"\0" * 64  # open, it stays
    os.kill(device.pid, signal.SIGKILL)
    os.waitid(os.P_PID, device.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(DeviceRefused, match="CUDA_ERROR_MAP_FAILED"):
        read(device, region, 64)


def test_a_process_without_a_driver_refuses_handles():
    device = DeviceProcess(0, environ={"PATH": os.environ["PATH"]})
    with pytest.raises(DeviceRefused, match="GPU memory can't be reached: libcuda"):
        device.open(b"\0" * 64)
    device.end()


@pytest.mark.parametrize("device_id", [-1, 1, 2**40])
def test_a_number_that_no_gpu_has_is_refused_before_the_driver_is_asked(environ, program, device_id):
    devices = GpuDevices([Gpu(name="0")], environ={**os.environ, **environ})
    with pytest.raises(DeviceError, match=f"there is no GPU {device_id}; this server has 1, counted from 0"):
        devices.open(program.allocate(64), device_id)


def test_a_part_of_a_gpu_is_the_only_one_that_its_process_sees(tmp_path):
    environ = {**built(tmp_path), "CUDA_VISIBLE_DEVICES": "MIG-aaaa-0000,MIG-aaaa-0001"}
    parts = [Gpu(name=f"MIG-aaaa-000{number}", is_part=True) for number in range(2)]
    devices = GpuDevices(parts, environ={**os.environ, **environ})
    with client({**environ, "CUDA_VISIBLE_DEVICES": "MIG-aaaa-0001"}) as program:
        handle = program.allocate(64)
        program.write(handle, b"there" + b"\0" * 59)
        with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_HANDLE"):
            devices.open(handle, 0)
        memory = devices.open(handle, 1)
        assert bytes(memory.read(0, 5)) == b"there"
        memory.close()
        for thread in threading.enumerate():
            if thread.name == "device-close":
                thread.join()


def test_threads_take_turns(device, program):
    regions = [device.open(program.allocate(4096))[0] for _ in range(8)]
    wrong = []

    def work(number, region):
        data = bytes([number]) * 4096
        for _ in range(50):
            device.write(region, 0, memoryview(data))
            if read(device, region, 4096) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=each) for each in enumerate(regions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
