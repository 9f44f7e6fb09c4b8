"""Clients as tasks: one that talks to the server's own interface, and ones that speak HTTP/1.1 and gRPC over sockets.

What goes over the sockets is written here by hand, so that the server's own code is on one side only.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import numpy as np
import trio
from hpack import Decoder

from actors.messages.datatypes import DataType
from actors.messages.errors import TritiumError
from actors.messages.requests import (
    FLAG_SEQUENCE_END,
    FLAG_SEQUENCE_START,
    InferRequest,
    InferResponse,
)
from actors.messages.tensors import Tensor
from chaos.simulation.models import MODELS
from chaos.simulation.outcomes import ANSWERED, GONE, LOST, Outcome
from chaos.simulation.scenario import Request
from chaos.simulation.workers import POISON, RAISE
from engine.tree import RunningServer
from protocols.kserve.proto import grpc_service_pb2 as pb

_STATUS: Final = {
    400: "INVALID_ARG",
    404: "NOT_FOUND",
    422: "POISONED",
    500: "INTERNAL",
    501: "UNSUPPORTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_GRPC_STATUS: Final = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARG",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    9: "POISONED",
    12: "UNSUPPORTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
}
_PIECE: Final = 65_536


class Lost(Exception):
    """The connection has ended without an answer."""


async def call(running: RunningServer, addresses: Mapping[str, bytes], request: Request) -> Outcome:
    """Send a request, wait for what comes of it, and return that. Never raises for what the server does."""
    outcome = Outcome(request, began=trio.current_time())
    ways: Mapping[str, Callable[[], Awaitable[None]]] = {
        "core": lambda: _ask_core(running, outcome),
        "http": lambda: _ask_http(addresses["http"], outcome),
        "grpc": lambda: _ask_grpc(addresses["grpc"], outcome),
    }
    with trio.move_on_after(request.patience or math.inf) as patience:
        try:
            await ways[request.wire]()
        except TritiumError as error:
            outcome.code, outcome.message = error.code.name, error.message
        except (Lost, OSError) as error:
            outcome.code, outcome.message = LOST, repr(error)
    if patience.cancelled_caught:
        outcome.code = GONE
    outcome.ended = trio.current_time()
    return outcome


def _parameters(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if request.poison:
        found[POISON] = request.poison
    if request.raises:
        found[RAISE] = True
    return found


def _shape(request: Request) -> list[int]:
    return [len(request.values), 1] if MODELS[request.model].kind in ("batched", "sequence") else [1]


# -- the server's own interface


class Port:
    """A reply port that counts. See `actors.messages.requests.ReplyPort`."""

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
        """The client has gone, or has read the answer; it may `hold` the memory for some seconds. What comes later is dropped."""
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
        parameters=_parameters(request),
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


async def _connect(address: bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(address)
            except BlockingIOError:  # the backlog is full
                await trio.sleep(0.01)
            else:
                return sock
    except BaseException:
        sock.close()
        raise


async def _send(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


async def _receive(sock: socket.socket) -> bytes:
    """Return what has come. Raises Lost at the end of the connection."""
    while True:
        try:
            data = sock.recv(_PIECE)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        if not data:
            raise Lost("the server has closed the connection")
        return data


def _body(request: Request) -> bytes:
    parameters = _parameters(request)
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout:
        parameters["timeout"] = round(request.timeout * 1e6)
    if request.sequence:
        parameters |= {
            "sequence_id": request.sequence,
            "sequence_start": request.start,
            "sequence_end": request.end,
        }
    tensor = {"name": "VALUE", "datatype": "INT32", "shape": _shape(request), "data": list(request.values)}
    return json.dumps({"id": request.id, "parameters": parameters, "inputs": [tensor]}).encode()


async def _ask_http(address: bytes, outcome: Outcome) -> None:
    request = outcome.request
    body = _body(request)
    head = (
        f"POST /v2/models/{request.model}/infer HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    sock = await _connect(address)
    try:
        await _send(sock, head.encode() + body)
        status, answer = await _read_answer(sock)
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()
    outcome.finals = 1
    if status != 200:
        outcome.code = _STATUS.get(status, f"HTTP {status}")
        outcome.message = str(answer.get("error", ""))
        return
    outcome.version = int(answer["model_version"])
    for tensor in answer["outputs"]:
        outcome.values += tensor["data"]
    outcome.code = ANSWERED


async def _read_answer(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _receive(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    while len(body) < length:
        body += await _receive(sock)
    if len(body) > length:
        raise Lost(f"{len(body) - length} bytes too many behind an answer")
    return int(lines[0].split()[1]), json.loads(body)


# -- gRPC: one unary call on a connection of its own

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_LARGE: Final = 2**30


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _headers(request: Request) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/inference.GRPCInferenceService/ModelInfer"),
        (":authority", "here"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    if request.deadline:
        fields.append(("grpc-timeout", f"{round(request.deadline * 1000)}m"))
    # Literals that no table remembers (RFC 7541, section 6.2.2).
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    """Return a string literal without Huffman coding, shorter than 127 bytes (RFC 7541, section 5.2)."""
    return bytes((len(text),)) + text.encode()


def _message(request: Request) -> bytes:
    asked = pb.ModelInferRequest(model_name=request.model, id=request.id)
    for name, value in _parameters(request).items():
        if isinstance(value, bool):
            asked.parameters[name].bool_param = value
        else:
            asked.parameters[name].string_param = value
    if request.priority:
        asked.parameters["priority"].uint64_param = request.priority
    if request.timeout:
        asked.parameters["timeout"].int64_param = round(request.timeout * 1e6)
    if request.sequence:
        asked.parameters["sequence_id"].int64_param = request.sequence
        asked.parameters["sequence_start"].bool_param = request.start
        asked.parameters["sequence_end"].bool_param = request.end
    asked.inputs.add(name="VALUE", datatype="INT32", shape=_shape(request))
    asked.raw_input_contents.append(np.array(request.values, dtype="<i4").tobytes())
    body: bytes = asked.SerializeToString()
    return b"\0" + len(body).to_bytes(4, "big") + body


async def _ask_grpc(address: bytes, outcome: Outcome) -> None:
    request = outcome.request
    sock = await _connect(address)
    try:
        settings = (4).to_bytes(2, "big") + _LARGE.to_bytes(4, "big")  # INITIAL_WINDOW_SIZE
        await _send(
            sock,
            _PREFACE
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW, 0, 0, _LARGE.to_bytes(4, "big"))
            + _frame(_HEADERS, _END_HEADERS, 1, _headers(request))
            + _frame(_DATA, _END_STREAM, 1, _message(request)),
        )
        body, trailers = await _read_call(sock)
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()
    outcome.finals = 1
    status = int(trailers.get("grpc-status", "2"))
    if status:
        outcome.code = _GRPC_STATUS.get(status, f"gRPC {status}")
        outcome.message = trailers.get("grpc-message", "")
        return
    answer = pb.ModelInferResponse.FromString(body[5:])
    outcome.version = int(answer.model_version)
    for raw in answer.raw_output_contents:
        outcome.values += np.frombuffer(raw, dtype="<i4").tolist()
    outcome.code = ANSWERED


async def _read_call(sock: socket.socket) -> tuple[bytes, dict[str, str]]:
    decoder, data, body = Decoder(), b"", b""
    headers: dict[str, str] = {}
    while True:
        while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3], "big"):
            data += await _receive(sock)
        length, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
        payload, data = data[9 : 9 + length], data[9 + length :]
        if kind == _SETTINGS and not flags & _ACK:
            await _send(sock, _frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            await _send(sock, _frame(_PING, _ACK, 0, payload))
        elif kind == _DATA:
            body += payload
        elif kind == _HEADERS:
            headers |= {str(name): str(value) for name, value in decoder.decode(payload)}
            if flags & _END_STREAM:
                return body, headers
        elif kind == _RST:
            raise Lost(f"the call was reset with code {int.from_bytes(payload, 'big')}")
