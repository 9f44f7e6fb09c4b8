"""One interface for the gRPC clients in use: tritonclient's two, stubs of grpcio, grpclib with our stubs.

A case is written once, against `Client`. Its arguments and results are numpy arrays, dictionaries and
`Refused`, whichever library it wraps.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # two of the clients run on nothing else
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Queue
from typing import Any

import grpc
import grpclib.client
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.json_format import MessageToDict
from grpclib.exceptions import GRPCError
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from protocols.grpc.generated.grpc_service_stub import GRPCInferenceServiceStub
from protocols.kserve.proto import grpc_service_pb2

SERVICE = "/inference.GRPCInferenceService/"
PATIENCE = 30.0  # seconds, where a case names no other
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Refused(Exception):
    """An error from the server: the status's name, empty for an error within a stream, and its details."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


@dataclass(frozen=True)
class Tensor:
    """An input with its datatype in the protocol's words."""

    datatype: str
    array: np.ndarray

    @property
    def raw(self) -> bytes:
        """The elements in binary layout."""
        if self.datatype == "BYTES":
            packed = serialize_byte_tensor(self.array)
            return packed.item() if packed.size else b""
        return self.array.tobytes()


def array(datatype: str, shape: Sequence[int], raw: bytes) -> np.ndarray:
    """Return the tensor that `raw` is in binary layout."""
    if datatype == "BYTES":
        flat = deserialize_bytes_tensor(raw)
    else:
        flat = np.frombuffer(raw, triton_to_np_dtype(datatype))
    return flat.reshape(shape)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One inference. `outputs` maps each wanted output to a number of classes, or 0 for the whole output."""

    model: str
    inputs: Mapping[str, Tensor]
    version: str = ""
    id: str = ""
    outputs: Mapping[str, int] | None = None
    parameters: Mapping[str, bool | int | float | str] | None = None
    timeout: int | None = None  # the queue's, in microseconds
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of it."""

    model: str
    version: str
    id: str
    outputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, object] = field(default_factory=dict)


class Client(ABC):
    """What the cases ask. Everything raises `Refused`."""

    compresses = True  # whether the client can compress its requests
    large = 16 * 1024 * 1024  # bytes of a tensor that it sends and reads in a fraction of a second

    @abstractmethod
    def __init__(self, address: str) -> None:
        """Connect to `host:port`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def live(self) -> bool:
        """ServerLive."""

    @abstractmethod
    def ready(self) -> bool:
        """ServerReady."""

    @abstractmethod
    def model_ready(self, name: str, version: str = "") -> bool:
        """ModelReady."""

    @abstractmethod
    def describe(self, rpc: str, **fields: Any) -> dict[str, Any]:
        """Call one of ServerMetadata, ModelMetadata, ModelConfig, ModelStatistics, RepositoryIndex.

        Returns the answer as JSON.
        """

    @abstractmethod
    def load(
        self,
        name: str,
        *,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """RepositoryModelLoad."""

    @abstractmethod
    def unload(self, name: str, *, headers: Mapping[str, str] | None = None) -> None:
        """RepositoryModelUnload."""

    @abstractmethod
    def infer(
        self,
        ask: Ask,
        *,
        within: float = PATIENCE,
        headers: Mapping[str, str] | None = None,
        compression: str | None = None,
    ) -> Answer:
        """ModelInfer."""

    @abstractmethod
    def stream(
        self, asks: Sequence[Ask], *, headers: Mapping[str, str] | None = None
    ) -> list[Answer | Refused]:
        """ModelStreamInfer with so many requests."""

    @abstractmethod
    def many(self, asks: Sequence[Ask]) -> list[Answer]:
        """ModelInfer, all of them at once; the answers in the order of the requests."""


# tritonclient


class TritonClient(Client):
    """tritonclient.grpc."""

    def __init__(self, address: str) -> None:
        self._client = self._open(address)

    def _open(self, address: str) -> Any:
        return triton.InferenceServerClient(address)

    def _ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        with _triton_errors():
            return self._await(lambda: getattr(self._client, name)(*arguments, **options))

    def _await(self, begin: Callable[[], Any]) -> Any:
        return begin()

    def close(self) -> None:
        self._ask("close")

    def live(self) -> bool:
        return self._ask("is_server_live")

    def ready(self) -> bool:
        return self._ask("is_server_ready")

    def model_ready(self, name: str, version: str = "") -> bool:
        return self._ask("is_model_ready", name, version)

    def describe(self, rpc: str, *, name: str = "", version: str = "", **_: Any) -> dict[str, Any]:
        match rpc:
            case "ServerMetadata":
                return self._ask("get_server_metadata", as_json=True)
            case "ModelMetadata":
                return self._ask("get_model_metadata", name, version, as_json=True)
            case "ModelConfig":
                return self._ask("get_model_config", name, version, as_json=True)
            case "ModelStatistics":
                return self._ask("get_inference_statistics", name, version, as_json=True)
            case "RepositoryIndex":
                return self._ask("get_model_repository_index", as_json=True)
        raise AssertionError(rpc)

    def load(self, name, *, config=None, files=None, headers=None) -> None:
        self._ask("load_model", name, headers=headers, config=config, files=files)

    def unload(self, name, *, headers=None) -> None:
        self._ask("unload_model", name, headers=headers)

    def infer(self, ask, *, within=PATIENCE, headers=None, compression=None) -> Answer:
        more = {"client_timeout": within, "headers": headers, "compression_algorithm": compression}
        return _from_triton(self._ask("infer", **_for_triton(ask), **more))

    def stream(self, asks, *, headers=None) -> list[Answer | Refused]:
        came: Queue[tuple[Any, Any]] = Queue()
        self._client.start_stream(lambda result, error: came.put((result, error)), headers=headers)
        try:
            for ask in asks:
                self._client.async_stream_infer(**_for_triton(ask))
            return [_streamed(*came.get(timeout=PATIENCE)) for _ in asks]
        finally:
            self._client.stop_stream()

    def many(self, asks) -> list[Answer]:
        came: list[Queue[tuple[Any, Any]]] = [Queue() for _ in asks]
        for ask, answers in zip(asks, came, strict=True):
            self._client.async_infer(
                **_for_triton(ask), callback=lambda result, error, put=answers.put: put((result, error))
            )
        return [_answered(*answers.get(timeout=PATIENCE)) for answers in came]


class AioTritonClient(TritonClient):
    """tritonclient.grpc.aio."""

    def _open(self, address: str) -> Any:
        self._runner = asyncio.Runner()

        async def open_on_the_loop() -> Any:
            return triton_aio.InferenceServerClient(address)

        return self._runner.run(open_on_the_loop())

    def _await(self, begin: Callable[[], Any]) -> Any:
        async def run() -> Any:
            begun = begin()
            return await begun if inspect.isawaitable(begun) else begun

        return self._runner.run(run())

    def close(self) -> None:
        super().close()
        self._runner.close()

    def stream(self, asks, *, headers=None) -> list[Answer | Refused]:
        async def requests():
            for ask in asks:
                yield _for_triton(ask)

        async def run() -> list[Answer | Refused]:
            answers = self._client.stream_infer(requests(), headers=headers)
            return [_streamed(*each) async for each in answers]

        with grpcio_errors():  # as it is: tritonclient lets it pass
            return self._runner.run(run())

    def many(self, asks) -> list[Answer]:
        async def run() -> list[Any]:
            return await asyncio.gather(*(self._client.infer(**_for_triton(ask)) for ask in asks))

        with _triton_errors():
            return list(map(_from_triton, self._runner.run(run())))


@contextmanager
def _triton_errors() -> Iterator[None]:
    try:
        yield
    except InferenceServerException as error:
        raise _refused(error) from error


def _refused(error: InferenceServerException) -> Refused:
    return Refused((error.status() or "").removeprefix("StatusCode."), error.message())


def _streamed(result: Any, error: Any) -> Answer | Refused:
    return _from_triton(result) if error is None else _refused(error)


def _answered(result: Any, error: Any) -> Answer:
    if error is not None:
        raise _refused(error)
    return _from_triton(result)


def _for_triton(ask: Ask) -> dict[str, Any]:
    inputs = []
    for name, tensor in ask.inputs.items():
        given = triton.InferInput(name, list(tensor.array.shape), tensor.datatype)
        given.set_data_from_numpy(tensor.array)
        inputs.append(given)
    outputs = None
    if ask.outputs is not None:
        outputs = [triton.InferRequestedOutput(name, class_count=n) for name, n in ask.outputs.items()]
    return {
        "model_name": ask.model,
        "inputs": inputs,
        "model_version": ask.version,
        "outputs": outputs,
        "request_id": ask.id,
        "parameters": None if ask.parameters is None else dict(ask.parameters),
        "timeout": ask.timeout,
        "priority": ask.priority,
    }


def _from_triton(result: Any) -> Answer:
    response = result.get_response()
    return Answer(
        model=response.model_name,
        version=response.model_version,
        id=response.id,
        outputs={output.name: result.as_numpy(output.name) for output in response.outputs},
        parameters=_parameters(response),
    )


# Stubs


class StubClient(Client):
    """Messages made by hand, with `messages`, a module of protobuf's."""

    messages: Any

    @abstractmethod
    def ask(self, rpc: str, request: Any, **options: Any) -> Any:
        """Make a unary call; `options` are `timeout`, `metadata` and `compression`."""

    @abstractmethod
    def exchange(self, requests: Sequence[Any], metadata: Mapping[str, str] | None) -> list[Any]:
        """Make a ModelStreamInfer call."""

    def _request(self, rpc: str, **fields: Any) -> Any:
        return getattr(self.messages, f"{rpc}Request")(**fields)

    def live(self) -> bool:
        return self.ask("ServerLive", self._request("ServerLive")).live

    def ready(self) -> bool:
        return self.ask("ServerReady", self._request("ServerReady")).ready

    def model_ready(self, name: str, version: str = "") -> bool:
        return self.ask("ModelReady", self._request("ModelReady", name=name, version=version)).ready

    def describe(self, rpc: str, **fields: Any) -> dict[str, Any]:
        return MessageToDict(self.ask(rpc, self._request(rpc, **fields)), preserving_proto_field_name=True)

    def load(self, name, *, config=None, files=None, headers=None) -> None:
        request = self._request("RepositoryModelLoad", model_name=name)
        if config is not None:
            request.parameters["config"].string_param = config
        for path, content in (files or {}).items():
            request.parameters[path].bytes_param = content
        self.ask("RepositoryModelLoad", request, metadata=headers)

    def unload(self, name, *, headers=None) -> None:
        self.ask(
            "RepositoryModelUnload",
            self._request("RepositoryModelUnload", model_name=name),
            metadata=headers,
        )

    def infer(self, ask, *, within=PATIENCE, headers=None, compression=None) -> Answer:
        request = infer_request(self.messages, ask)
        return self._answer(
            self.ask("ModelInfer", request, timeout=within, metadata=headers, compression=compression)
        )

    def stream(self, asks, *, headers=None) -> list[Answer | Refused]:
        answers = self.exchange([infer_request(self.messages, ask) for ask in asks], headers)
        return [
            Refused("", each.error_message) if each.error_message else self._answer(each.infer_response)
            for each in answers
        ]

    def _answer(self, response: Any) -> Answer:
        return Answer(
            model=response.model_name,
            version=response.model_version,
            id=response.id,
            outputs={
                output.name: array(output.datatype, output.shape, raw)
                for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
            },
            parameters=_parameters(response),
        )


class GrpcioStubs(StubClient):
    """grpcio without generated code, and tritonclient's messages."""

    messages = service_pb2

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=UNLIMITED)

    def close(self) -> None:
        self.channel.close()

    def begin(
        self, rpc: str, request: Any, *, timeout=PATIENCE, metadata=None, compression=None
    ) -> grpc.Future:
        """Begin a unary call: a future, which can be cancelled."""
        method = self.channel.unary_unary(
            SERVICE + rpc,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(self.messages, f"{rpc}Response").FromString,
        )
        return method.future(
            request,
            timeout=timeout,
            metadata=tuple((metadata or {}).items()),
            compression=_COMPRESSION[compression],
        )

    def ask(self, rpc, request, **options) -> Any:
        return self._result(self.begin(rpc, request, **options))

    def _result(self, call: grpc.Future) -> Any:
        with grpcio_errors():
            return call.result(PATIENCE)

    def exchange(self, requests, metadata) -> list[Any]:
        method = self.channel.stream_stream(
            SERVICE + "ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        with grpcio_errors():
            return list(method(iter(requests), timeout=PATIENCE, metadata=tuple((metadata or {}).items())))

    def many(self, asks) -> list[Answer]:
        calls = [self.begin("ModelInfer", infer_request(service_pb2, ask)) for ask in asks]
        return [self._answer(self._result(call)) for call in calls]


_COMPRESSION = {
    None: grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}


@contextmanager
def grpcio_errors() -> Iterator[None]:
    """Turn grpcio's errors into `Refused`."""
    try:
        yield
    except grpc.RpcError as error:
        raise Refused(error.code().name, error.details()) from error


class GrpclibStubs(StubClient):
    """grpclib, with the stubs and messages that Tritium ships."""

    messages = grpc_service_pb2
    compresses = False
    large = 2 * 1024 * 1024  # it is pure Python

    def __init__(self, address: str) -> None:
        self._runner = asyncio.Runner()
        host, _, port = address.rpartition(":")

        async def open_on_the_loop() -> grpclib.client.Channel:
            return grpclib.client.Channel(host, int(port))

        self._channel = self._runner.run(open_on_the_loop())
        self._stub = GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()
        self._runner.close()

    def _run(self, asked: Any) -> Any:
        try:
            return self._runner.run(asked)
        except GRPCError as error:
            raise Refused(error.status.name, error.message or "") from error
        except TimeoutError as error:  # grpclib does not wait for the server to say so
            raise Refused("DEADLINE_EXCEEDED", "Deadline Exceeded") from error

    def ask(self, rpc, request, *, timeout=PATIENCE, metadata=None, compression=None, **_) -> Any:
        assert compression is None, "grpclib compresses nothing"

        async def ask() -> Any:
            return await getattr(self._stub, rpc)(request, timeout=timeout, metadata=metadata)

        return self._run(ask())

    def exchange(self, requests, metadata) -> list[Any]:
        async def exchange() -> list[Any]:
            async with self._stub.ModelStreamInfer.open(timeout=PATIENCE, metadata=metadata) as stream:
                await stream.send_request()
                for request in requests:
                    await stream.send_message(request)
                await stream.end()
                return [answer async for answer in stream]

        return self._run(exchange())

    def many(self, asks) -> list[Answer]:
        async def many() -> list[Any]:
            infer = partial(self._stub.ModelInfer, timeout=PATIENCE)
            return await asyncio.gather(*(infer(infer_request(grpc_service_pb2, ask)) for ask in asks))

        return list(map(self._answer, self._run(many())))


def infer_request(messages: Any, ask: Ask) -> Any:
    """Return `ask` as a ModelInferRequest of the module `messages`, its tensors raw."""
    request = messages.ModelInferRequest(model_name=ask.model, model_version=ask.version, id=ask.id)
    for name, tensor in ask.inputs.items():
        request.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.array.shape)
        request.raw_input_contents.append(tensor.raw)
    for name, classes in (ask.outputs or {}).items():
        output = request.outputs.add(name=name)
        if classes:
            output.parameters["classification"].int64_param = classes
    for key, value in (ask.parameters or {}).items():
        setattr(request.parameters[key], _PARAMETER_FIELDS[type(value)], value)
    if ask.timeout is not None:
        request.parameters["timeout"].int64_param = ask.timeout
    if ask.priority:
        request.parameters["priority"].uint64_param = ask.priority
    return request


_PARAMETER_FIELDS = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}


def _parameters(response: Any) -> dict[str, object]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in response.parameters.items()
    }


CLIENTS: dict[str, type[Client]] = {
    "tritonclient": TritonClient,
    "tritonclient-aio": AioTritonClient,
    "grpcio": GrpcioStubs,
    "grpclib": GrpclibStubs,
}
