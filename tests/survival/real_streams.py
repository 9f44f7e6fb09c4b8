"""The gRPC clients in use, at work for long; as a program, one library in all its modes at once.

    python -m tests.survival.real_streams LIBRARY PORT SECONDS

asks the models of `lay_out` and prints JSON: the answers that each mode was owed, those that came, and the
failures. Each mode has its own connection, because the server counts what it tolerates by connection.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # two of the libraries run on nothing else
import json
import math
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass, field
from textwrap import dedent
from typing import Any

import grpc
import grpc.aio
import grpclib.client
import numpy as np
import tritonclient.grpc

from chaos.clients.grpc import INFER, STREAM
from chaos.clients.long_streams import ALONE, pinging
from protocols.grpc.generated.grpc_service_stub import GRPCInferenceServiceStub
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.survival.repository import WIDTH, Repository, instances

LIBRARIES = ("grpcio", "aio", "grpclib", "tritonclient")
RATES = (0, 1, 10, 100)
"""Requests a second; 0 for as many as go."""

_LARGE = 75_000  # elements
_PARTS = 100  # answers of a decoupled model to one request
_IN_FLIGHT = 8  # requests of a stream at full speed
_PATIENCE = 120.0  # seconds for one unary call, and for the last answers of a stream
_PINGING = pinging(2)

SERVER_FLAGS = (
    "--grpc-http2-min-recv-ping-interval-without-data=1000",
    "--grpc-keepalive-permit-without-calls=true",
)
"""What a server must be told for clients that ping every two seconds while they are idle."""

_REPEATING = """
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count, data = (tensor.as_numpy() for tensor in request.inputs())
            for number in range(count[0]):
                last = FINAL if number + 1 == count[0] else 0
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", data)]), flags=last)
"""
_REPEATING_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def lay_out(repository: Repository) -> None:
    """Put the models that are asked into `repository`."""
    repository.onnx_add_sub(config=instances(1))
    repository.onnx_identity()
    version = repository.path / "repeating" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(dedent(_REPEATING_CONFIG))
    (version / "model.py").write_text(_REPEATING)


@dataclass
class Mode:
    """One way to ask, and its result. A request has `parts` answers, and at most `most` are asked for."""

    kind: str
    size: str
    rate: int
    parts: int = 1
    owed: int = 0
    came: int = 0
    wrong: list[str] = field(default_factory=list)
    until: float = 0.0
    most: float = math.inf

    @property
    def inputs(self) -> list[tuple[str, np.ndarray[Any, Any]]]:
        """The tensors of a request, by name."""
        if self.kind == "decoupled":
            elements = 4 if self.size == "small" else _LARGE
            return [("COUNT", np.array([self.parts], np.int32)), ("X", np.ones(elements, np.float32))]
        if self.size == "large":
            return [("X", np.ones(_LARGE, np.float32))]
        return [(name, np.ones((1, WIDTH), np.float32)) for name in ("A", "B")]

    @property
    def model(self) -> str:
        """The name of the model to ask."""
        if self.kind == "decoupled":
            return "repeating"
        return "onnx_identity" if self.size == "large" else "onnx_add_sub"

    @property
    def request(self) -> pb.ModelInferRequest:
        """One request as a message."""
        message = pb.ModelInferRequest(model_name=self.model)
        for name, array in self.inputs:
            datatype = "INT32" if array.dtype == np.int32 else "FP32"
            message.inputs.add(name=name, datatype=datatype, shape=array.shape)
            message.raw_input_contents.append(array.tobytes())
        return message

    def ask(self) -> None:
        """A request is sent."""
        self.owed += self.parts

    def answered(self, response: Any, error: str = "") -> None:
        """An answer has come."""
        sent = sum(array.nbytes for _, array in self.inputs if array.dtype == np.float32)
        if error or sum(map(len, response.raw_output_contents)) != sent:
            self.wrong.append(error or f"an answer of {response.ByteSize()} bytes")
        self.came += 1

    def times(self) -> Iterator[float]:
        """Yield when each request is due, on the monotonic clock."""
        due = time.monotonic()
        if self.kind == "idle":  # one now, and one at the end
            yield due
            yield self.until
            return
        while due < self.until and self.owed < self.most:
            yield due
            due = max(due, time.monotonic() - 1) + 1 / self.rate if self.rate else time.monotonic()

    def paced(self) -> Iterator[None]:
        """Yield when the next request is due."""
        for due in self.times():
            time.sleep(max(0.0, due - time.monotonic()))
            yield

    async def paced_aio(self) -> AsyncIterator[None]:
        """Yield when the next request is due."""
        for due in self.times():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield


def modes(seconds: float) -> list[Mode]:
    """Return all modes to try at once, for `seconds` from now."""
    found = [
        Mode(kind, size, rate)
        for kind in ("unary", "stream")
        for size in ("small", "large")
        # 30 MB a second and client: more than a test's machine moves.
        for rate in RATES
        if not (size == "large" and rate == 100)
    ]
    found += [Mode("decoupled", "small", rate, parts=_PARTS) for rate in RATES[:2]]
    found += [Mode("decoupled", "large", 1, parts=4), Mode("idle", "small", 1), Mode("idle", "large", 1)]
    until = time.monotonic() + seconds
    for mode in found:
        mode.until = until
    return found


class Room:
    """How many requests of a stream may be in flight, over threads: a stream at full speed keeps a few."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._came = threading.Condition()

    def wait(self) -> None:
        """Wait until one more may be sent."""
        mode = self._mode
        with self._came:
            if not self._came.wait_for(lambda: mode.owed - mode.came < _IN_FLIGHT * mode.parts, _PATIENCE):
                raise TimeoutError(f"{mode.owed - mode.came} answers are owed for {_PATIENCE:g} s")

    def answered(self, response: Any, error: str) -> None:
        """Note an answer."""
        with self._came:
            self._mode.answered(response, error)
            self._came.notify()


# grpcio's threads


def _grpcio(mode: Mode, port: int) -> None:
    options = _PINGING if mode.kind == "idle" else (ALONE,)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        if mode.kind == "unary" or (mode.kind == "idle" and mode.size == "small"):
            infer = channel.unary_unary(
                INFER,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            request = mode.request
            for _ in mode.paced():
                mode.ask()
                mode.answered(infer(request, timeout=_PATIENCE))
            return
        stream = channel.stream_stream(
            STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        room = Room(mode)
        for response in stream(_requests(mode, room), timeout=mode.until - time.monotonic() + _PATIENCE):
            room.answered(response.infer_response, response.error_message)


def _requests(mode: Mode, room: Room) -> Iterator[pb.ModelInferRequest]:
    request = mode.request
    for _ in mode.paced():
        room.wait()
        mode.ask()
        yield request


# tritonclient's threads


def _tritonclient(mode: Mode, port: int) -> None:
    options = _PINGING if mode.kind == "idle" else (ALONE,)
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}", channel_args=list(options)) as client:
        inputs = []
        for name, array in mode.inputs:
            datatype = "INT32" if array.dtype == np.int32 else "FP32"
            inputs.append(tritonclient.grpc.InferInput(name, list(array.shape), datatype))
            inputs[-1].set_data_from_numpy(array)
        if mode.kind == "unary" or (mode.kind == "idle" and mode.size == "small"):
            for _ in mode.paced():
                mode.ask()
                mode.answered(client.infer(mode.model, inputs, client_timeout=_PATIENCE).get_response())
            return
        room = Room(mode)

        def on_answer(result: Any, error: Exception | None) -> None:
            room.answered(None if result is None else result.get_response(), str(error or ""))

        client.start_stream(on_answer)
        for _ in mode.paced():
            room.wait()
            mode.ask()
            client.async_stream_infer(mode.model, inputs)
        client.stop_stream()


# asyncio's clients


class AioRoom:
    """The same as `Room`, on one loop."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._came = asyncio.Event()

    async def wait(self) -> None:
        """Wait until one more may be sent."""
        while self._mode.owed - self._mode.came >= _IN_FLIGHT * self._mode.parts:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), _PATIENCE)

    def answered(self, response: Any, error: str) -> None:
        """Note an answer."""
        self._mode.answered(response, error)
        self._came.set()


async def _aio(mode: Mode, port: int) -> None:
    options = _PINGING if mode.kind == "idle" else (ALONE,)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        request = mode.request
        if mode.kind == "unary" or (mode.kind == "idle" and mode.size == "small"):
            infer = channel.unary_unary(
                INFER,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            async for _ in mode.paced_aio():
                mode.ask()
                mode.answered(await infer(request, timeout=_PATIENCE))
            return
        stream = channel.stream_stream(
            STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )(timeout=mode.until - time.monotonic() + _PATIENCE)
        room = AioRoom(mode)

        async def send() -> None:
            async for _ in mode.paced_aio():
                await room.wait()
                mode.ask()
                await stream.write(request)
            await stream.done_writing()

        sending = asyncio.create_task(send())
        async for response in stream:
            room.answered(response.infer_response, response.error_message)
        await sending


async def _grpclib(mode: Mode, port: int) -> None:
    channel = grpclib.client.Channel("127.0.0.1", port)
    try:
        stub = GRPCInferenceServiceStub(channel)
        request = mode.request
        if mode.kind == "unary" or (mode.kind == "idle" and mode.size == "small"):
            async for _ in mode.paced_aio():
                mode.ask()
                mode.answered(await stub.ModelInfer(request, timeout=_PATIENCE))
            return
        room = AioRoom(mode)
        limit = mode.until - time.monotonic() + _PATIENCE
        async with stub.ModelStreamInfer.open(timeout=limit) as stream:
            await stream.send_request()

            async def send() -> None:
                async for _ in mode.paced_aio():
                    await room.wait()
                    mode.ask()
                    await stream.send_message(request)
                await stream.end()

            sending = asyncio.create_task(send())
            async for response in stream:
                room.answered(response.infer_response, response.error_message)
            await sending
    finally:
        channel.close()


def stream_of_small_answers(port: int, most: int) -> Mode:
    """Have grpcio ask one stream for `most` answers, as fast as it can; return the outcome."""
    mode = Mode("stream", "small", 0, until=time.monotonic() + _PATIENCE, most=most)
    _guarded(_grpcio, mode, port)
    return mode


# All at once


def _run_threads(run: Callable[[Mode, int], None], all_modes: list[Mode], port: int) -> None:
    threads = [threading.Thread(target=_guarded, args=(run, mode, port)) for mode in all_modes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _guarded(run: Callable[[Mode, int], None], mode: Mode, port: int) -> None:
    try:
        run(mode, port)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the mode's outcome
        mode.wrong.append(repr(error))


async def _run_tasks(
    run: Callable[[Mode, int], Coroutine[Any, Any, None]], all_modes: list[Mode], port: int
) -> None:
    outcomes = await asyncio.gather(*(run(mode, port) for mode in all_modes), return_exceptions=True)
    for mode, outcome in zip(all_modes, outcomes, strict=True):
        if outcome is not None:
            mode.wrong.append(repr(outcome))


def main(library: str, port: int, seconds: float) -> None:
    """Ask by all modes of one library, and print the outcome of each. Other processes go first."""
    os.nice(19)
    all_modes = modes(seconds)
    match library:
        case "grpcio":
            _run_threads(_grpcio, all_modes, port)
        case "tritonclient":
            _run_threads(_tritonclient, all_modes, port)
        case "aio":
            asyncio.run(_run_tasks(_aio, all_modes, port))
        case "grpclib":
            asyncio.run(_run_tasks(_grpclib, all_modes, port))
        case _:
            raise SystemExit(f"{library} is none of {', '.join(LIBRARIES)}")
    print(json.dumps([asdict(mode) for mode in all_modes]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
