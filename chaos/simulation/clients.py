"""Clients as tasks.

One talks to the server's own interface; others speak HTTP/1.1 and gRPC over sockets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import numpy as np
import trio

from actors.values.datatypes import DataType
from actors.values.errors import TritiumError
from actors.values.requests import (
    FLAG_SEQUENCE_END,
    FLAG_SEQUENCE_START,
    InferRequest,
    InferResponse,
    ReplyPort,
)
from actors.values.tensors import Tensor
from chaos.simulation.asking import STATUS, GrpcCall, ask_grpc
from chaos.simulation.outcomes import ANSWERED, GONE, LOST, Outcome
from chaos.simulation.plan import Request
from chaos.simulation.telling import ask_core, ask_openai
from chaos.simulation.world.models import MODELS
from chaos.simulation.world.workers import POISON, RAISE
from chaos.wires.http import Broken, ask
from engine.server.running import RunningServer
from protocols.kserve.proto import grpc_service_pb2 as pb


async def call(
    running: RunningServer,
    addresses: Mapping[str, bytes],
    request: Request,
    conversation: Conversation | None = None,
) -> Outcome:
    """Send a request, wait for its outcome, and return that. Never raises for what the server does.

    A request by stream is sent on the stream of the `conversation`; without one it has a stream of its own.
    """
    outcome = Outcome(request, began=trio.current_time())
    ways: Mapping[str, Callable[[], Awaitable[None]]] = {
        "core": lambda: _ask_core(running, outcome),
        "http": lambda: _ask_http(addresses["http"], outcome),
        "grpc": lambda: _ask_grpc(addresses["grpc"], outcome),
        "stream": lambda: _ask_stream(addresses["grpc"], outcome, conversation),
        "openai": lambda: ask_openai(addresses["openai"], outcome),
    }
    if request.told is not None and request.wire == "core":
        ways = {"core": lambda: ask_core(running, outcome)}
    with trio.move_on_after(request.patience or math.inf) as patience:
        try:
            await ways[request.wire]()
        except TritiumError as error:
            outcome.code, outcome.message = error.code.name, error.message
        except (Broken, OSError) as error:
            outcome.code, outcome.message = LOST, repr(error)
    if patience.cancelled_caught:
        outcome.code = GONE
    outcome.ended = trio.current_time()
    return outcome


def _own_parameters(request: Request) -> dict[str, Any]:
    """Return what its model is told by parameters."""
    return {name: value for name, value in ((POISON, request.poison), (RAISE, request.raises)) if value}


def _parameters(request: Request) -> dict[str, Any]:
    """Return all parameters, as they go over a wire."""
    found = _own_parameters(request)
    if request.priority:
        found["priority"] = request.priority
    if request.timeout:
        found["timeout"] = round(request.timeout * 1e6)
    if request.sequence:
        found |= {
            "sequence_id": request.sequence,
            "sequence_start": request.start,
            "sequence_end": request.end,
        }
    return found


def _shape(request: Request) -> list[int]:
    return [len(request.values), 1] if MODELS[request.model].kind in ("batched", "sequence") else [1]


# -- the server's own interface


class Port(ReplyPort):
    """A reply port that counts. See `actors.values.requests.ReplyPort`."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.over = trio.Event()
        self._leased: list[InferResponse] = []
        self._closed = False

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take one part."""
        outcome = self._outcome
        outcome.parts_after_final += outcome.finals > 0
        outcome.finals += final
        if isinstance(part, InferResponse):
            outcome.version = part.model_version
            for tensor in part.outputs:
                outcome.values += tensor.as_numpy().ravel().tolist()
            if final and not self._closed:
                self._leased.append(part)
            else:
                part.release()
        else:
            outcome.code, outcome.message = part.code.name, part.message
        if final:
            outcome.code = outcome.code or ANSWERED
            self.over.set()

    async def close(self, hold: float) -> None:
        """The client has gone, or has read the answer; it may `hold` the memory for some seconds.

        What comes later is dropped.
        """
        self._closed = True
        with trio.CancelScope(shield=True):
            await trio.sleep(hold if self._leased else 0)
        for response in self._leased:
            response.release()


async def _ask_core(running: RunningServer, outcome: Outcome) -> None:
    request, port = outcome.request, Port(outcome)
    now = trio.current_time()
    model = running.server.models.resolve(request.model)
    data = np.array(request.values, dtype="<i4").tobytes()
    asked = InferRequest(
        model_name=request.model,
        id=request.id,
        inputs=[Tensor("VALUE", DataType.INT32, _shape(request), data)],
        parameters=_own_parameters(request),
        priority=request.priority,
        timeout=request.timeout,
        deadline=now + request.deadline if request.deadline else math.inf,
        correlation_id=request.sequence,
        flags=FLAG_SEQUENCE_START * request.start | FLAG_SEQUENCE_END * request.end,
        reply=port,
        accepted_at=now,
    )
    try:
        await model.submit(asked)
        await port.over.wait()
    except trio.Cancelled:
        model.cancel(asked)
        raise
    finally:
        await port.close(request.hold)


# -- HTTP


def _body(request: Request) -> bytes:
    tensor = {"name": "VALUE", "datatype": "INT32", "shape": _shape(request), "data": list(request.values)}
    return json.dumps({"id": request.id, "parameters": _parameters(request), "inputs": [tensor]}).encode()


async def _ask_http(address: bytes, outcome: Outcome) -> None:
    request = outcome.request
    reply = await ask(address, "POST", f"/v2/models/{request.model}/infer", _body(request))
    status, answer = reply.status, reply.json()
    outcome.finals = 1
    if status != 200:
        outcome.code = STATUS.get(status, f"HTTP {status}")
        outcome.message = str(answer.get("error", ""))
        return
    outcome.version = int(answer["model_version"])
    for tensor in answer["outputs"]:
        outcome.values += tensor["data"]
    outcome.code = ANSWERED


# -- gRPC


# Of a parameter, by the type of its value.
_MEMBERS: Final = {bool: "bool_param", int: "int64_param", str: "string_param"}


def _message(request: Request) -> bytes:
    asked = pb.ModelInferRequest(model_name=request.model, id=request.id)
    parameters = _parameters(request)
    if _wants_end(request):
        parameters["triton_enable_empty_final_response"] = True
    for name, value in parameters.items():
        setattr(asked.parameters[name], _MEMBERS[type(value)], value)
    asked.inputs.add(name="VALUE", datatype="INT32", shape=_shape(request))
    asked.raw_input_contents.append(np.array(request.values, dtype="<i4").tobytes())
    body: bytes = asked.SerializeToString()
    return body


async def _ask_grpc(address: bytes, outcome: Outcome) -> None:
    request = outcome.request
    code, message, body = await ask_grpc(address, "ModelInfer", _message(request), deadline=request.deadline)
    outcome.finals = 1
    if code:
        outcome.code, outcome.message = code, message
    else:
        _take(outcome, pb.ModelInferResponse.FromString(body))
        outcome.code = ANSWERED


def _take(outcome: Outcome, answer: pb.ModelInferResponse) -> None:
    outcome.version = int(answer.model_version)
    for raw in answer.raw_output_contents:
        outcome.values += np.frombuffer(raw, dtype="<i4").tolist()


# -- gRPC streams

_FINAL: Final = "triton_final_response"
# The first error ends the stream, and is its status.
_TELL_CODES: Final = {"triton_grpc_error": "true"}


class Conversation:
    """One call of ModelStreamInfer, on which one request is sent after the other.

    It is a context manager; the first request opens the call.
    """

    def __init__(self, address: bytes, *, deadline: float = 0.0) -> None:
        self._address = address
        self._deadline = deadline
        self._stack = AsyncExitStack()
        self._call: GrpcCall | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def ask(self, outcome: Outcome, *, last: bool) -> None:
        """Send a request and take its answers; with the `last` request the call has to end well.

        Raises Broken, OSError.
        """
        if self._call is None:
            self._call = await self._stack.enter_async_context(
                GrpcCall.to(self._address, "ModelStreamInfer", deadline=self._deadline, metadata=_TELL_CODES)
            )
        await self._call.send(_message(outcome.request), last=last)
        while last or not outcome.finals:
            body = await self._call.receive()
            if body is None:
                self._ended(outcome, *self._call.status)
                return
            self._take(outcome, pb.ModelStreamInferResponse.FromString(body))
        outcome.code = ANSWERED

    def _take(self, outcome: Outcome, part: pb.ModelStreamInferResponse) -> None:
        answer = part.infer_response
        if part.error_message or answer.id != outcome.request.id:
            raise Broken(f"an answer that is none of {outcome.request.id}: {part.error_message} {answer.id}")
        outcome.parts_after_final += outcome.finals > 0
        outcome.finals += answer.parameters[_FINAL].bool_param
        _take(outcome, answer)

    @staticmethod
    def _ended(outcome: Outcome, code: str, message: str) -> None:
        if code:
            outcome.finals += 1
            outcome.code, outcome.message = code, message
            return
        # Only clients that ask for it are told of an end without a part, and only for decoupled models.
        if MODELS[outcome.request.model].kind == "decoupled" and not _wants_end(outcome.request):
            outcome.finals = outcome.finals or 1
        outcome.code = ANSWERED


async def _ask_stream(address: bytes, outcome: Outcome, conversation: Conversation | None) -> None:
    if conversation is not None:
        await conversation.ask(outcome, last=False)
        return
    async with Conversation(address, deadline=outcome.request.deadline) as own:
        await own.ask(outcome, last=True)


def _wants_end(request: Request) -> bool:
    return request.wire == "stream" and request.values[0] % 2 == 0
