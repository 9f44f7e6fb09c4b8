"""Triton's Python clients, each way that they send tensors: one interface for all."""

from __future__ import annotations

import itertools
import queue
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    import tritonclient.http as http_client
    import tritonclient.utils.shared_memory as shm
    from tritonclient.utils import (
        InferenceServerException,
        deserialize_bytes_tensor,
        serialize_byte_tensor,
    )

from actors.values.datatypes import DataType
from tests.support.flavours import Addresses
from tests.support.served_kits import Array, Ask

Answer: TypeAlias = Mapping[str, Array] | InferenceServerException
_AT_ONCE = 8
_numbers = itertools.count()


class Wire(ABC):
    """One way to send tensors."""

    name: str

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Close the client."""

    @abstractmethod
    def ask(self, model: str, asks: Sequence[Ask], datatypes: Mapping[str, DataType]) -> list[Answer]:
        """Send requests at once, and return their answers, or the errors."""


class _OverHttp(Wire):
    """By Triton's client over HTTP."""

    def __enter__(self) -> Self:
        self._client = http_client.InferenceServerClient(
            self._addresses.http, concurrency=_AT_ONCE, network_timeout=120
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()


class _Http(_OverHttp):
    """HTTP, with tensors as bytes or as JSON."""

    binary: bool

    def ask(self, model: str, asks: Sequence[Ask], datatypes: Mapping[str, DataType]) -> list[Answer]:
        pending = []
        for each in asks:
            given = [
                http_client.InferInput(name, x.shape, f"{datatypes[name]}") for name, x in each.given.items()
            ]
            for port, x in zip(given, each.given.values(), strict=True):
                port.set_data_from_numpy(x, binary_data=self.binary)
            wanted = [http_client.InferRequestedOutput(name, self.binary) for name in _wanted(each, asks)]
            pending.append(self._client.async_infer(model, given, outputs=wanted))
        return [self._got(one, _wanted(each, asks)) for one, each in zip(pending, asks, strict=True)]

    def _got(self, pending: Any, wanted: Sequence[str]) -> Answer:
        try:
            result = pending.get_result()
        except InferenceServerException as error:
            return error
        return {name: _as_bytes(result.as_numpy(name)) for name in wanted}


class HttpBinary(_Http):
    """HTTP, tensors behind the JSON as bytes."""

    name, binary = "http_binary", True


class HttpJson(_Http):
    """HTTP, tensors as JSON."""

    name, binary = "http_json", False


class Grpc(Wire):
    """gRPC."""

    name = "grpc"

    def __enter__(self) -> Self:
        self._client = grpc_client.InferenceServerClient(self._addresses.grpc)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def ask(self, model: str, asks: Sequence[Ask], datatypes: Mapping[str, DataType]) -> list[Answer]:
        answers: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
        for at, each in enumerate(asks):
            given = [
                grpc_client.InferInput(name, x.shape, f"{datatypes[name]}") for name, x in each.given.items()
            ]
            for port, x in zip(given, each.given.values(), strict=True):
                port.set_data_from_numpy(x)
            self._client.async_infer(
                model,
                given,
                lambda result, error, at=at: answers.put((at, result, error)),
                outputs=[grpc_client.InferRequestedOutput(name) for name in _wanted(each, asks)],
            )
        got = {at: (result, error) for at, result, error in (answers.get(timeout=120) for _ in asks)}
        return [
            got[at][1] or {name: got[at][0].as_numpy(name) for name in _wanted(each, asks)}
            for at, each in enumerate(asks)
        ]


class SharedMemory(_OverHttp):
    """HTTP, with tensors of both sides in regions of system shared memory."""

    name = "shared_memory"

    def ask(self, model: str, asks: Sequence[Ask], datatypes: Mapping[str, DataType]) -> list[Answer]:
        regions = [_Region(self._client) for _ in asks]
        try:
            pending = []
            for region, each in zip(regions, asks, strict=True):
                expected = next(one.expected for one in asks if one.expected)
                places = {
                    **{name: _encoded(datatypes[name], x) for name, x in each.given.items()},
                    **{
                        name: bytes(len(_encoded(datatypes[name], y)))
                        for name, y in (each.expected or expected).items()
                    },
                }
                region.fill(places)
                given = [
                    http_client.InferInput(name, x.shape, f"{datatypes[name]}")
                    for name, x in each.given.items()
                ]
                wanted = [http_client.InferRequestedOutput(name) for name in _wanted(each, asks)]
                for port in (*given, *wanted):
                    port.set_shared_memory(region.name, len(places[port.name()]), region.offsets[port.name()])
                pending.append(self._client.async_infer(model, given, outputs=wanted))
            return [self._got(*each, datatypes) for each in zip(pending, asks, regions, strict=True)]
        finally:
            for region in regions:
                region.close()

    def _got(self, pending: Any, ask: Ask, region: _Region, datatypes: Mapping[str, DataType]) -> Answer:
        try:
            result = pending.get_result()
        except InferenceServerException as error:
            return error
        answer = {}
        for name, expected in (ask.expected or {}).items():
            output = result.get_output(name)
            assert "data" not in output
            data = region.bytes_at(name, len(_encoded(datatypes[name], expected)))
            answer[name] = _decoded(datatypes[name], data, expected.dtype).reshape(output["shape"])
        return answer


class _Region:
    """One region, which holds all tensors of a request."""

    def __init__(self, client: http_client.InferenceServerClient) -> None:
        self.name = f"tritium_suite_{next(_numbers)}"
        self.offsets: dict[str, int] = {}
        self._client = client
        self._handle: Any = None

    def fill(self, tensors: Mapping[str, bytes]) -> None:
        """Make the region of these bytes, and register it."""
        size = 0
        for name, data in tensors.items():
            self.offsets[name] = size
            size += len(data)
        self._handle = shm.create_shared_memory_region(self.name, f"/{self.name}", size)
        for name, data in tensors.items():
            shm.set_shared_memory_region(
                self._handle, [np.frombuffer(data, np.uint8)], offset=self.offsets[name]
            )
        self._client.register_system_shared_memory(self.name, f"/{self.name}", size)

    def bytes_at(self, name: str, size: int) -> bytes:
        """Return what lies at a tensor's place."""
        array = shm.get_contents_as_numpy(self._handle, np.uint8, [size], self.offsets[name])
        return bytes(array.tobytes())

    def close(self) -> None:
        """Take the region from the server, and remove it."""
        if self._handle is not None:
            self._client.unregister_system_shared_memory(self.name)
            shm.destroy_shared_memory_region(self._handle)


def _wanted(ask: Ask, beside: Sequence[Ask]) -> list[str]:
    """Return the outputs of a request; one that must fail wants those of the requests beside it."""
    return [*(ask.expected or next(each.expected for each in beside if each.expected))]


def _as_bytes(array: Array) -> Array:
    """Return an array with bytes in place of the text that JSON gives."""
    if array.dtype != object:
        return array
    words = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
    return np.array(words, object).reshape(array.shape)


def _encoded(datatype: DataType, x: Array) -> bytes:
    return bytes(serialize_byte_tensor(x).item()) if datatype is DataType.BYTES else x.tobytes()


def _decoded(datatype: DataType, data: bytes, kind: np.dtype[Any]) -> Array:
    if datatype is DataType.BYTES:
        return np.asarray(deserialize_bytes_tensor(data))
    return np.frombuffer(data, kind)


WIRES: Sequence[type[Wire]] = (HttpJson, HttpBinary, Grpc, SharedMemory)
