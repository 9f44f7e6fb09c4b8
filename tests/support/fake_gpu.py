"""GPUs without a GPU: a stand-in for the driver, whose device memory lies in files (`cuda/driver.c`).

What is proved with it is the code around the driver: who opens what, when it is closed, what is said of
errors. It proves nothing of a real driver.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from actors.values.datatypes import DataType
from engine.worker.devices import cuda, dlpack
from engine.worker.devices.arrays import DeviceArray

SOURCE = Path(__file__).parent / "cuda" / "driver.c"


def built(folder):
    """Compile the stand-in; return the environment in which processes find it."""
    libraries, memory = folder / "lib", folder / "memory"
    libraries.mkdir()
    memory.mkdir()
    gcc = shutil.which("gcc")
    assert gcc is not None
    target = libraries / "libcuda.so.1"
    subprocess.run([gcc, "-O1", "-shared", "-fPIC", "-o", target, SOURCE], check=True)
    return {"LD_LIBRARY_PATH": str(libraries), "FAKE_CUDA": str(memory), "FAKE_CUDA_DEVICES": "2"}


class Copy(NamedTuple):
    """A copy that the stand-in has made."""

    pid: int
    kind: str  # DtoH, HtoD or DtoD
    nbytes: int


def copies(environ):
    """Return all copies that processes with this environment have made."""
    record = Path(environ["FAKE_CUDA"]) / "copies"
    lines = record.read_text().splitlines() if record.exists() else []
    return [Copy(int(pid), kind, int(nbytes)) for pid, kind, nbytes in map(str.split, lines)]


class Client:
    """A program of a client's with device memory of its own: it runs where the stand-in is found."""

    PROGRAM = """
import ctypes, json, sys
from engine.worker.devices.cuda import Driver
driver, memory = Driver(), {}
for line in sys.stdin:
    order = json.loads(line)
    match order.pop("do"):
        case "allocate":
            address = driver.allocate(order["device"], order["nbytes"])
            handle = driver.export(order["device"], address)
            memory[handle.hex()] = order["device"], address
            answer = handle.hex()
        case "read":
            device, address = memory[order["handle"]]
            host = ctypes.create_string_buffer(order["nbytes"])
            driver.copy_to_host(device, address + order["at"], ctypes.addressof(host), order["nbytes"])
            answer = host.raw.hex()
        case "write":
            device, address = memory[order["handle"]]
            data = bytes.fromhex(order["data"])
            host = ctypes.create_string_buffer(data, len(data))
            driver.copy_to_device(device, ctypes.addressof(host), address + order["at"], len(data))
            answer = None
        case "free":
            driver.free(*memory.pop(order["handle"]))
            answer = None
        case "open":
            memory[order["handle"]] = order["device"], driver.open_exported(
                order["device"], bytes.fromhex(order["handle"])
            )[0]
            answer = None
    print(json.dumps(answer), flush=True)
"""

    def __init__(self, process):
        self._process = process
        self.pid = process.pid

    def _ask(self, **order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def allocate(self, nbytes, device=0):
        """Return the handle of fresh device memory."""
        return bytes.fromhex(self._ask(do="allocate", device=device, nbytes=nbytes))

    def read(self, handle, nbytes, at=0):
        """Return what lies there."""
        return bytes.fromhex(self._ask(do="read", handle=handle.hex(), at=at, nbytes=nbytes))

    def write(self, handle, data, at=0):
        """Put `data` there."""
        self._ask(do="write", handle=handle.hex(), at=at, data=bytes(data).hex())

    def open(self, handle, device=0):
        """Open another program's memory; from then on it is read and written like one's own."""
        self._ask(do="open", device=device, handle=handle.hex())

    def free(self, handle):
        """Give the memory back."""
        self._ask(do="free", handle=handle.hex())


@contextmanager
def client(environ):
    """Run a client's program."""
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", Client.PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ, "PYTHONPATH": root},
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def lose(environ, device=0):
    """Have every call of a device fail from now on, in all processes; return how that is ended."""
    mark = Path(environ["FAKE_CUDA"]) / f"lost.{device}"
    mark.touch()
    return mark.unlink


@contextmanager
def in_this_process(environ):
    """Have this process itself use the stand-in."""
    library = str(Path(environ["LD_LIBRARY_PATH"]) / "libcuda.so.1")
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch.object(cuda, "LIBRARY", library),
        mock.patch.object(cuda, "_made", []),
    ):
        yield environ


class Memory:
    """Device memory of this process's with the content of an array, exported as frameworks' tensors are."""

    def __init__(self, array, datatype=DataType.FP32, device=0):
        self.device = device
        self.driver = cuda.driver()  # which may be another by the time this is freed
        self.address = self.driver.allocate(device, array.nbytes)
        self.driver.copy_to_device(device, array.ctypes.data, self.address, array.nbytes)
        self.array = DeviceArray(self, self.address, array.shape, datatype, device_id=device)

    def __del__(self):
        self.driver.free(self.device, self.address)

    def __dlpack__(self, **_):
        return dlpack.share(self.array)

    def __dlpack_device__(self):
        return self.array.device, self.device
