"""Requests, and the senders of their responses, as a Python model sees them."""

from __future__ import annotations

import json
import operator
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from engine.worker.backends.python import calling
from engine.worker.backends.python.host import call_context, current_host
from engine.worker.backends.python.responses import InferenceResponse, checked_parameters, response_of
from engine.worker.backends.python.tensors import Tensor, TritonModelException, decoded

if TYPE_CHECKING:
    from asyncio import Future  # noqa: TID251  # for annotations: the user's coroutines are written for it
    from collections.abc import Mapping, Sequence

    from actors.values.requests import Parameter
    from engine.worker.backends.base import BatchRequest
    from engine.worker.backends.python.replies import BatchReplies, Reply, StreamReply
    from engine.worker.backends.python.tracing import Recording

REQUEST_RELEASE_ALL = 1
REQUEST_RELEASE_RESCHEDULE = 2
RESPONSE_COMPLETE_FINAL = 1

_TRACE_CONTEXT = ("traceparent", "tracestate")  # W3C Trace Context, section 3


class MemoryType(IntEnum):
    """Where a tensor lies, or should lie."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_CPU_PINNED = 1
    TRITONSERVER_MEMORY_GPU = 2


class InferenceTrace:
    """A request's trace, as far as a model can continue it."""

    __slots__ = ("_context", "_place", "_recording")

    def __init__(self, context: str | None = None) -> None:
        self._context = context
        self._recording: Recording | None = None
        self._place = 0

    @classmethod
    def of(cls, request: BatchRequest) -> InferenceTrace:
        """Return the trace of a request.

        Its W3C context names this execution. Where the server does not trace the request, it is what the
        client sent along as parameters.
        """
        parameters = request.parameters if request.trace is None else zip(_TRACE_CONTEXT, request.trace)
        given = dict(parameters)
        context = {key: given[key] for key in _TRACE_CONTEXT if key in given}
        trace = cls(json.dumps(context) if "traceparent" in context else None)
        running = call_context.get()
        if request.trace is not None and running is not None and request.origin is not None:
            trace._recording, trace._place = running.recording, request.origin[1]
        return trace

    def report_activity(self, name: str, timestamp_ns: int | None = None) -> None:
        """Have the request's trace tell of an activity of the model's.

        `<NAME>_START` and `<NAME>_END` make a span `<NAME>`; any other is an event. The time is of
        `time.monotonic_ns`, now if it is not given. Does nothing if the request is not traced.
        """
        if self._recording is not None:
            at = time.monotonic_ns() if timestamp_ns is None else timestamp_ns
            self._recording.report([self._place], name, operator.index(at))

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context as JSON text, or None without one."""
        return self._context


class PreferredMemory:
    """Where the outputs of a BLS request should lie."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


_REQUIRED: Any = object()  # these stand between arguments with defaults, so Python can't require them


def _require(**arguments: object) -> None:
    missing = [name for name, value in arguments.items() if value is _REQUIRED]
    if missing:
        raise TypeError(
            f"InferenceRequest needs {', '.join(missing)}, which a request to a model can't do without"
        )


def _not_all_tensors(inputs: Sequence[object], identity: str, model: str) -> Exception:
    if any(each is None for each in inputs):
        return _empty("Input tensor", identity, model)
    other = next(each for each in inputs if not isinstance(each, Tensor))
    return TypeError(f"InferenceRequest takes a list of Tensor objects, got {type(other)}")


def _empty(what: str, identity: str, model: str) -> TritonModelException:
    return TritonModelException(
        f"{what} for request with id '{identity}' and model name '{model}' should not be empty."
    )


class InferenceRequest:
    """A request: one that the server gave to `execute`, or one made to be sent to another model."""

    def __init__(
        self,
        request_id: str | bytes = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = _REQUIRED,
        requested_output_names: Sequence[str | bytes] = _REQUIRED,
        model_name: str | bytes = _REQUIRED,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Make a request to a model (contract section 4.2).

        `timeout` is in microseconds; version -1 is the policy's choice. Raises TritonModelException with the
        contract's texts, and TypeError if a required argument is missing.
        """
        if inputs is _REQUIRED or requested_output_names is _REQUIRED or model_name is _REQUIRED:
            _require(inputs=inputs, requested_output_names=requested_output_names, model_name=model_name)
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        identity: str = decoded("request_id", request_id)
        model: str = decoded("model_name", model_name)
        names: list[str] = [
            each if type(each) is str else decoded("a requested output's name", each)
            for each in requested_output_names
        ]
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                raise _not_all_tensors(inputs, identity, model)
        if "" in names:
            raise _empty("Requested output name", identity, model)
        self._id = identity
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._requested_outputs = names
        self._model_name = model
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace or InferenceTrace()
        self._parameters = checked_parameters(parameters)

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
        """Say what becomes of the request after `execute`.

        Only a request that the server gave can be rescheduled.
        """
        if flags != REQUEST_RELEASE_ALL:
            raise TritonModelException(
                "only a request that execute was given can be rescheduled (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)"
            )

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender that answers this request."""
        return InferenceResponseSender(None)

    def exec(
        self, decoupled: bool = False
    ) -> InferenceResponse | calling.ResponseIterator[InferenceResponse]:
        """Run this request on its model, and wait for the response; errors are in it, and not raised.

        With `decoupled`, an iterator gives any number of responses. Raises TritonModelException outside
        `execute`.
        """
        return self._call(decoupled=decoupled).run()

    def async_exec(
        self, decoupled: bool = False
    ) -> Future[InferenceResponse | calling.ResponseIterator[InferenceResponse]]:
        """Begin to run this request, and return what gives `exec`'s result when it is awaited.

        The call waits on one of `thread-pool-size` threads, and the event loop goes on. Raises RuntimeError
        without an event loop.
        """
        return self._call(decoupled=decoupled).run_async()

    def _call(self, *, decoupled: bool) -> calling.Call[InferenceResponse]:
        request = calling.prepare(
            self._model_name,
            [tensor.as_output() for tensor in self._inputs],
            version=self._model_version,
            requested_outputs=self._requested_outputs,
            request_id=self._id,
            correlation_id=self._correlation_id,
            flags=self._flags,
            timeout=self._timeout,
            parameters=self._parameters,
            trace=self._trace.get_context(),
            decoupled=decoupled,
        )
        return calling.Call(current_host(), request, response_of)


class ServedRequest(InferenceRequest):
    """A request that the server gave to `execute`.

    Only the backend makes these. It makes many, so nothing in them is made before it is used.
    """

    __slots__ = ("_index", "_own_flags", "_replies", "_request", "_start", "_tensors", "rescheduled")

    def __init__(self, request: BatchRequest, replies: BatchReplies, index: int, start: int) -> None:
        """`index` is its place in the batch, `start` its first row there."""
        self._request = request
        self._replies = replies
        self._index = index
        self._start = start
        self._tensors: list[Tensor] | None = None
        self._own_flags: int | None = None
        self.rescheduled = False  # it is to run again when `execute` has returned

    def _call(self, *, decoupled: bool) -> calling.Call[InferenceResponse]:
        raise TritonModelException(
            "a request that the server gave to execute can't be sent to a model: make a pb_utils.InferenceRequest with its inputs"
        )

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request after `execute`.

        With RESCHEDULE it is run again (contract, scheduling.md 6.7). Raises TritonModelException for other
        flags.
        """
        if flags not in (REQUEST_RELEASE_ALL, REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"Release flags are TRITONSERVER_REQUEST_RELEASE_ALL or TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, got {flags}"
            )
        self.rescheduled = flags == REQUEST_RELEASE_RESCHEDULE

    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""
        if self._tensors is None:
            self._tensors = self._replies.inputs_of(self._request, self._start)
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
        """Return the request's trace: what the server traces, or else what its client sent along."""
        return InferenceTrace.of(self._request)

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._replies.cancelled(self._index)

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender that answers this request."""
        return InferenceResponseSender(self._replies.reply_to(self._index))


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

        The sender of a decoupled model may send any number of responses, and waits if the client is slow to
        take them.
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
        metrics = current_host().metrics
        if metrics is not None:
            # A client that sees the response sees what was counted.
            metrics.flush()
        context = call_context.get()
        if context is not None and flags == RESPONSE_COMPLETE_FINAL:
            context.flush()
        self._reply.send(response, final=flags == RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._reply is not None and self._reply.cancelled()


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input tensor of a request, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None
