"""Requests, responses and what passes them, as a Python model sees them."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import TYPE_CHECKING

from engine.backends.python.tensors import Tensor, TritonModelException, unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn, Union

    from engine.backends.base import BatchRequest, Output
    from engine.backends.python.replies import Reply, StreamReply

    Parameter = Union[bool, int, float, str]

REQUEST_RELEASE_ALL = 1
REQUEST_RELEASE_RESCHEDULE = 2
RESPONSE_COMPLETE_FINAL = 1


class MemoryType(IntEnum):
    """Where a tensor lies, or should lie."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_CPU_PINNED = 1
    TRITONSERVER_MEMORY_GPU = 2


class TritonErrorCode(IntEnum):
    """What kind of failure a `TritonError` is."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """An error in place of a response's outputs."""

    UNKNOWN = TritonErrorCode.UNKNOWN
    INTERNAL = TritonErrorCode.INTERNAL
    NOT_FOUND = TritonErrorCode.NOT_FOUND
    INVALID_ARG = TritonErrorCode.INVALID_ARG
    UNAVAILABLE = TritonErrorCode.UNAVAILABLE
    UNSUPPORTED = TritonErrorCode.UNSUPPORTED
    ALREADY_EXISTS = TritonErrorCode.ALREADY_EXISTS
    CANCELLED = TritonErrorCode.CANCELLED

    def __init__(self, message: str, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> None:
        self._message = message
        self._code = TritonErrorCode(code)

    def message(self) -> str:
        """Return the text."""
        return self._message

    def code(self) -> TritonErrorCode:
        """Return the code."""
        return self._code


def _checked_parameters(parameters: Mapping[str, Parameter] | None) -> dict[str, Parameter]:
    for key, value in (parameters or {}).items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters or {})


class InferenceResponse:
    """The answer to one request: output tensors, or an error in their place."""

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        if any(tensor is None for tensor in output_tensors):
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = _checked_parameters(parameters) if parameters else None

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether this is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, if any."""
        return self._error

    def parameters(self) -> str:
        """Return the response parameters as JSON text."""
        return json.dumps(self._parameters or {})

    def given_parameters(self) -> Mapping[str, Parameter] | None:
        """Return the response parameters themselves, for the backend."""
        return self._parameters

    def as_outputs(self) -> list[Output]:
        """Return the outputs as `BatchRequest.respond` takes them."""
        return [tensor.as_output() for tensor in self._outputs]


class InferenceTrace:
    """A request's trace. This version records none for models to continue."""

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context, or None without one."""
        return None


class PreferredMemory:
    """Where the outputs of a BLS request should lie."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceRequest:
    """A request: one that the server gave to `execute`, or one made to be sent to another model."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        whose = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        if any(tensor is None for tensor in inputs):
            raise TritonModelException(f"Input tensor {whose}")
        if "" in requested_output_names:
            raise TritonModelException(f"Requested output name {whose}")
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._requested_outputs = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace or InferenceTrace()
        self._parameters = _checked_parameters(parameters)

    def inputs(self) -> list[Tensor]:
        """Return the input tensors; optional ones that the client left out are missing."""
        return self._inputs

    def request_id(self) -> str:
        """Return the client's id for the request, or an empty string."""
        return self._id

    def correlation_id(self) -> int | str:
        """Return the sequence's id, 0 if there is none."""
        return self._correlation_id

    def flags(self) -> int:
        """Return the sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the sequence flags."""
        self._flags = flags

    def timeout(self) -> int:
        """Return the timeout in microseconds, 0 if there is none."""
        return self._timeout

    def requested_output_names(self) -> list[str]:
        """Return the names of the outputs that the client wants, all of them if it named none."""
        return self._requested_outputs

    def parameters(self) -> str:
        """Return the request parameters as JSON text."""
        return json.dumps(dict(self._parameters))

    def trace(self) -> InferenceTrace:
        """Return the request's trace."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return False

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request after `execute`. Only a request that the server gave can be rescheduled."""
        if flags != REQUEST_RELEASE_ALL:
            unsupported("rescheduling a request of the model's own (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)")

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender that answers this request."""
        return InferenceResponseSender(None)

    def exec(self, decoupled: bool = False) -> NoReturn:
        """Run this request on another model: refused."""
        unsupported("BLS (InferenceRequest.exec)")

    async def async_exec(self, decoupled: bool = False) -> NoReturn:
        """Run this request on another model: refused."""
        unsupported("BLS (InferenceRequest.async_exec)")


class ServedRequest(InferenceRequest):
    """A request that the server gave to `execute`. Only the backend makes these."""

    def __init__(self, request: BatchRequest, reply: Reply | StreamReply) -> None:
        self._request = request
        self.reply = reply
        self._tensors: list[Tensor] | None = None
        self._own_flags: int | None = None
        self.rescheduled = False  # it is to run again when `execute` has returned

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request after `execute`: with RESCHEDULE it is run again (contract, scheduling.md 6.7).

        Raises TritonModelException for other flags.
        """
        if flags not in (REQUEST_RELEASE_ALL, REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"Release flags are TRITONSERVER_REQUEST_RELEASE_ALL or TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, got {flags}"
            )
        self.rescheduled = flags == REQUEST_RELEASE_RESCHEDULE

    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""
        if self._tensors is None:
            request = self._request
            self._tensors = [
                Tensor.over(name, request.input_datatype(name), request.input(name))
                for name in request.input_names
            ]
        return self._tensors

    def request_id(self) -> str:
        """Return the client's id."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """Return the sequence's id."""
        return self._request.correlation_id

    def flags(self) -> int:
        """Return the sequence flags."""
        return self._request.flags if self._own_flags is None else self._own_flags

    def set_flags(self, flags: int) -> None:
        """Set the sequence flags, as this model sees them."""
        self._own_flags = flags

    def timeout(self) -> int:
        """Return the timeout in microseconds."""
        return self._request.timeout

    def requested_output_names(self) -> list[str]:
        """Return the names of the outputs that the client wants."""
        return list(self._request.requested_outputs)

    def parameters(self) -> str:
        """Return the request parameters as JSON text."""
        return json.dumps(dict(self._request.parameters))

    def trace(self) -> InferenceTrace:
        """Return the request's trace."""
        return InferenceTrace()

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return self.reply.cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender that answers this request."""
        return InferenceResponseSender(self.reply)


class InferenceResponseSender:
    """Answers one request, from any thread. `execute` returns None in that request's place."""

    def __init__(self, reply: Reply | StreamReply | None) -> None:
        self._reply = reply
        if reply is not None:
            reply.sender_made()

    def __del__(self) -> None:
        if self._reply is not None:
            self._reply.sender_dropped()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send the response; the final flag may come with it or after it.

        That of a decoupled model may send any number of them, and waits where the client is slow to take them.
        """
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if self._reply is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send takes an InferenceResponse, got {type(response)}")
        self._reply.send(response, final=flags == RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._reply is not None and self._reply.cancelled()


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input tensor of a request, or None."""
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output tensor of a response, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)
