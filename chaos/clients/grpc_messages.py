"""Inference over gRPC as messages, and what its statuses and texts mean."""

from __future__ import annotations

from typing import Final

import grpc

from chaos.clients.tensors import datatype, numbers, to_bytes
from chaos.record.history import End
from chaos.record.outcome import DISCONNECTED, NO_CONNECTION, UNREADABLE, WENT_AWAY
from chaos.record.records import Fail, Invoke, Unknown
from chaos.workload.answers import inputs, values
from protocols.kserve.proto import grpc_service_pb2 as pb

_NEVER_SENT: Final = ("failed to connect to all addresses", "Connection refused")
_BROKEN: Final = (
    "Socket closed",
    "Stream removed",
    "Connection reset",
    "Connection timed out",
    "Broken pipe",
    "recvmsg:",
    "sendmsg:",
    "GOAWAY received",
    "Transport closed",
    "Endpoint closing",
    "ping timeout",
    "keepalive watchdog timeout",
    "RST_STREAM",
)
_OURS: Final = ("Channel closed!", "Locally cancelled by application!")
"""Texts, or parts of them, that grpcio makes itself.

Its errors don't show otherwise whether the server has answered at all.
"""


def encode(invoke: Invoke) -> pb.ModelInferRequest:
    """Return a request's message. Deadline and tenant are not part of it: see `metadata`."""
    message = pb.ModelInferRequest(model_name=invoke.model, id=invoke.id)
    for name, array in inputs(invoke).items():
        message.inputs.add(name=name, datatype=datatype(array), shape=array.shape)
        message.raw_input_contents.append(to_bytes(array))
    if invoke.sequence:
        message.parameters["sequence_id"].int64_param = invoke.sequence
        message.parameters["sequence_start"].bool_param = invoke.start
        message.parameters["sequence_end"].bool_param = invoke.end
    if invoke.priority:
        message.parameters["priority"].uint64_param = invoke.priority
    return message


def metadata(invoke: Invoke) -> list[tuple[str, str]]:
    """Return the metadata: the tenant and, for every second request that has one, the deadline.

    If grpcio is given a deadline, it ends the call itself when that has passed, and it remains unknown
    whether the server would have ended it. If only the server is told, the server has to end it.
    """
    fields = [("x-tenant", invoke.tenant)] if invoke.tenant else []
    if invoke.deadline is not None and _server_alone(invoke):
        fields.append(("grpc-timeout", f"{max(1, int((invoke.deadline - invoke.t) * 1000))}m"))
    return fields


def timeout(invoke: Invoke) -> float | None:
    """Return the seconds after which grpcio is to end the call; None if grpcio must not end it."""
    if invoke.deadline is None or _server_alone(invoke):
        return None
    return invoke.deadline - invoke.t


def _server_alone(invoke: Invoke) -> bool:
    return invoke.n % 2 == 0


def read(invoke: Invoke, response: pb.ModelInferResponse) -> tuple[tuple[int, ...], int]:
    """Return what a response says, and its attempts.

    Raises ValueError for a response that can't be read, or that belongs to another request.
    """
    if response.id != invoke.id:
        raise ValueError(f"the answer to request '{response.id}' came")
    contents = response.raw_output_contents
    if len(contents) != len(response.outputs):
        raise ValueError(f"{len(response.outputs)} outputs with {len(contents)} contents")
    outputs = {
        output.name: numbers(output.datatype, list(output.shape), data)
        for output, data in zip(response.outputs, contents, strict=True)
    }
    attempts = response.parameters["attempts"].int64_param if "attempts" in response.parameters else 1
    return tuple(values(invoke.model, outputs)), attempts


def unreadable(invoke: Invoke, error: ValueError, at: float) -> Fail:
    """Return the end of a request whose answer can't be read."""
    return Fail(t=at, n=invoke.n, code=UNREADABLE, message=str(error))


def end_of_error(invoke: Invoke, error: grpc.RpcError, at: float, said: tuple[int, ...] = ()) -> End:
    """Return the end of a request whose call has failed, after the parts `said`."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.CANCELLED and details in _OURS:
        return Unknown(t=at, n=invoke.n, reason=f"{WENT_AWAY}: {details}")
    if code is grpc.StatusCode.UNAVAILABLE:
        if any(text in details for text in _NEVER_SENT):
            return Unknown(t=at, n=invoke.n, reason=f"{NO_CONNECTION}: {details}")
        if any(text in details for text in _BROKEN):
            return Unknown(t=at, n=invoke.n, reason=f"{DISCONNECTED}: {details}")
    return Fail(t=at, n=invoke.n, code=code.name, message=details, values=said)
