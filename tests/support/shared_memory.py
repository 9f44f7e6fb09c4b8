"""Shared memory as clients use it, over either protocol: one interface for Triton's two Python clients."""

from __future__ import annotations

import json
import os
import re
import urllib.request
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    import tritonclient.http as http_client
    from tritonclient.utils import InferenceServerException

from actors.regions.devices import DeviceError, DeviceMemory, Devices
from tests.support.flavours import Addresses, process
from tests.support.shared_models import Gate

PAGE = os.sysconf("SC_PAGE_SIZE")


class Serving:
    """A server with metrics, which has `said` where they are, and what holds its models up."""

    def __init__(self, addresses: Addresses, said: Path, gate: Gate | None = None) -> None:
        self.addresses = addresses
        self.gate = gate
        self._said = said

    def metrics(self, name: str) -> dict[str, float]:
        """Return the series of a family, by their labels."""
        (address,) = re.findall(r"Started Metrics Service at (\S+?)\"?\s", self._said.read_text())
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {
            labels: float(value) for labels, value in re.findall(rf"^{name}(\S*) (\S+)$", text, re.MULTILINE)
        }

    def tree(self) -> dict[str, object]:
        """Return what the tree shows of shared memory."""
        with urllib.request.urlopen(f"http://{self.addresses.http}/v2/tritium/tree", timeout=10) as answer:
            document = json.load(answer)
        (services,) = [child for child in document["children"] if child["name"] == "services"]
        (found,) = [child for child in services["children"] if child["name"] == "shared-memory"]
        info: dict[str, object] = found["info"]
        return info


@contextmanager
def serving(folder: Path, said: Path, gate: Gate | None = None) -> Iterator[Serving]:
    """Serve the models in `folder` to clients that may register regions. `said` is where it may write."""
    serve = process(
        "engine",
        "serve",
        said=said,
        TRITIUM_ALLOW_CLIENT_SHM="true",
        TRITIUM_CACHE_CONFIG="local,size=16777216",
        TRITIUM_ALLOW_METRICS="true",
        TRITIUM_METRICS_ADDRESS="127.0.0.1",
        TRITIUM_METRICS_PORT="0",
    )
    with serve(folder) as addresses:
        yield Serving(addresses, said, gate)


@dataclass(frozen=True)
class Refused:
    """An error of the server: the HTTP status or the name of the gRPC status, and the text."""

    status: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor is said to lie."""

    region: str
    nbytes: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Given:
    """An input: its datatype and shape, and where it lies; or its elements."""

    name: str
    datatype: str
    shape: Sequence[int]
    place: Place | None = None
    array: np.ndarray | None = None


class Face:
    """A client of one server over one protocol. Methods return a `Refused` where the server refuses."""

    def __init__(self, protocol: str, address: str) -> None:
        self.protocol = protocol
        self.address = address
        self.library: ModuleType = http_client if protocol == "http" else grpc_client
        self.client = self.library.InferenceServerClient(address)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def register(self, name: str, key: str, byte_size: int, offset: int = 0) -> Refused | None:
        """Register a region of system shared memory."""
        return self._told(self.client.register_system_shared_memory, name, key, byte_size, offset)

    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> Refused | None:
        """Register a region of CUDA shared memory; `handle` is what a client's library sends, in base64."""
        return self._told(self.client.register_cuda_shared_memory, name, handle, device, byte_size)

    def unregister(self, name: str = "", *, cuda: bool = False) -> Refused | None:
        """Unregister one region, or all."""
        kind = "cuda" if cuda else "system"
        return self._told(getattr(self.client, f"unregister_{kind}_shared_memory"), name)

    def status(self, name: str = "", *, cuda: bool = False) -> list[dict[str, Any]] | Refused:
        """Return the regions of one kind, by their names, with numbers as numbers."""
        kind = "cuda" if cuda else "system"
        ask = getattr(self.client, f"get_{kind}_shared_memory_status")
        try:
            told = ask(name) if self.protocol == "http" else ask(name, as_json=True)
        except InferenceServerException as error:
            return self._refused(error)
        if self.protocol == "http":
            return list(told)
        regions = [dict(region) for region in told.get("regions", {}).values()]
        for region in regions:  # the client leaves out what is 0
            for key in ("device_id",) if cuda else ("offset",):
                region[key] = int(region.get(key, 0))
            region["byte_size"] = int(region["byte_size"])
        return sorted(regions, key=lambda region: region["name"])

    def infer(
        self, model: str, inputs: Sequence[Given], outputs: Mapping[str, Place | None] | None = None
    ) -> Any:
        """Return the client's result of an inference; or a `Refused`."""
        asked: list[Any] = []
        for name, place in (outputs or {}).items():
            wanted = self.library.InferRequestedOutput(name)
            if place is not None:
                wanted.set_shared_memory(place.region, place.nbytes, place.offset)
            asked.append(wanted)
        given = [self.given(each) for each in inputs]
        return self._told(self.client.infer, model, given, outputs=asked or None)

    def given(self, each: Given) -> Any:
        """Return an input as the library has it."""
        made = self.library.InferInput(each.name, list(each.shape), each.datatype)
        if each.place is not None:
            made.set_shared_memory(each.place.region, each.place.nbytes, each.place.offset)
        elif each.array is not None:
            made.set_data_from_numpy(each.array)
        return made

    def output(self, result: Any, name: str) -> dict[str, Any]:
        """Return what the answer says of an output: name, datatype, shape; and more if there is more."""
        told = result.get_output(name)
        if self.protocol == "http":
            return dict(told)
        return {"name": told.name, "datatype": told.datatype, "shape": list(told.shape)}

    def raw_outputs(self, result: Any) -> list[bytes]:
        """Return the binary outputs of an answer; over HTTP, `output` tells whether there are some."""
        return list(result.get_response().raw_output_contents) if self.protocol == "grpc" else []

    def _told(self, ask: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return ask(*arguments, **options)
        except InferenceServerException as error:
            return self._refused(error)

    def _refused(self, error: InferenceServerException) -> Refused:
        return Refused(str(error.status()).removeprefix("StatusCode."), str(error.message()))


def refusal(protocol: str, code: str, text: str) -> Refused:
    """Return what a client is told of an error with this code of the contract."""
    http, grpc = {
        "INVALID_ARG": ("400", "INVALID_ARGUMENT"),
        "ALREADY_EXISTS": ("400", "ALREADY_EXISTS"),
        "INTERNAL": ("500", "INTERNAL"),
        "NOT_FOUND": ("404", "NOT_FOUND"),
        "UNSUPPORTED": ("501", "UNIMPLEMENTED"),
        "UNAVAILABLE": ("503", "UNAVAILABLE"),
    }[code]
    return Refused(http if protocol == "http" else grpc, text)


class Object:
    """One object in /dev/shm, written and read by descriptor."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.path = f"/dev/shm/{name}"
        self.key = f"/{name}"
        self.fileno = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.fileno, size)

    def put(self, data: bytes | memoryview, at: int = 0) -> None:
        """Write bytes."""
        assert os.pwrite(self.fileno, data, at) == len(data)

    def get(self, nbytes: int, at: int = 0) -> bytes:
        """Read bytes."""
        return os.pread(self.fileno, nbytes, at)

    def array(self, dtype: Any, count: int, at: int = 0) -> np.ndarray:
        """Read elements."""
        return np.frombuffer(self.get(count * np.dtype(dtype).itemsize, at), dtype)

    def resize(self, size: int) -> None:
        """Shrink it, or make it longer."""
        os.ftruncate(self.fileno, size)

    @property
    def size(self) -> int:
        """How long it is."""
        return os.fstat(self.fileno).st_size

    def remove(self) -> None:
        """Unlink it, if it is still there, and close it."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self.fileno)


@contextmanager
def an_object(size: int) -> Iterator[Object]:
    """Make an object of a name of its own, for the block. The name says which test would have left it."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2])
    made = Object(f"tritium-test-{uuid.uuid4().hex}-{test[:80]}", size)
    try:
        yield made
    finally:
        made.remove()


class FakeMemory(DeviceMemory):
    """Memory of a GPU that is none."""

    def __init__(self, size: int) -> None:
        self.content = bytearray(size)
        self.closed = 0
        self.failure = ""

    @property
    def nbytes(self) -> int:
        return len(self.content)

    def read(self, at: int, nbytes: int) -> bytes:
        if self.failure:
            raise DeviceError(self.failure)
        return bytes(self.content[at : at + nbytes])

    def write(self, at: int, data: Any) -> None:
        if self.failure:
            raise DeviceError(self.failure)
        self.content[at : at + len(data)] = data

    def close(self) -> None:
        self.closed += 1
        if self.failure:
            raise DeviceError(self.failure)


class FakeDevices(Devices):
    """GPUs with allocations by their handles."""

    def __init__(self) -> None:
        self.memory: dict[tuple[bytes, int], FakeMemory] = {}

    def open(self, raw_handle: bytes, device_id: int) -> DeviceMemory:
        memory = self.memory.get((raw_handle, device_id))
        if memory is None:
            raise DeviceError("invalid argument")
        return memory


def text_of(body: bytes) -> str:
    """Return the text of an error over HTTP."""
    return str(json.loads(body)["error"])
