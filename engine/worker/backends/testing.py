"""An in-memory batch, for testing backends without a server.

Nothing here is used when models are served. `LocalBatch` follows the same rules as the worker's batch, over
plain arrays, so that a backend which passes its tests on one behaves on the other. A test reads::

    model = model_info(
        directory, inputs=[TensorInfo("X", DataType.FP32, [4])], outputs=[...], max_batch_size=8
    )
    backend = MyBackend()
    backend.load(model)
    [answer] = run(backend, model, [LocalRequest({"X": np.ones((2, 4), "f4")})])
    assert answer.outputs["Y"].tolist() == ...

An input may also be a `DeviceArray`, for backends with `device_tensors`, and a request may have outputs stay
on the device (`device_outputs`). A test without a device can have such an array over host memory, by DLPack's
number for that: `DeviceArray(array, array.ctypes.data, array.shape, datatype, device=1, device_id=0)`.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, TritiumError
from engine.worker.backends.base import (
    Backend,
    Batch,
    BatchRequest,
    ModelInfo,
    ResponseSender,
    SenderClosed,
    TensorInfo,
)
from engine.worker.backends.raw import RawBatch, RawInput, RawOutput, Room, raw_input
from engine.worker.devices.arrays import DeviceArray
from engine.worker.joining import Joining

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping, Sequence

    from actors.values.requests import Parameter
    from actors.values.tensors import Array
    from engine.worker.backends.base import AnyOutput, Output
    from engine.worker.calls import Calls


def model_info(
    version_directory: str | os.PathLike[str] = ".",
    *,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    name: str = "model",
    artifact: str = "",
    max_batch_size: int = 0,
    parameters: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    kind: str = "CPU",
    device_id: int = 0,
    lanes: int = 1,
    threads: int = 1,
    log: Callable[[str, str], None] = lambda level, message: None,
    decoupled: bool = False,
    calls: Calls | None = None,
    gpu_memory: int = 0,
    gpu_share: float = 0.0,
) -> ModelInfo:
    """Return what `Backend.load` takes, with defaults for what a test does not care about.

    The model directory is the parent of `version_directory`. The last component of that is the version if it
    is a number.
    """
    directory = str(version_directory)
    parent, _, leaf = directory.rpartition("/")
    return ModelInfo(
        name=name,
        version=int(leaf) if leaf.isdigit() else 1,
        model_directory=parent or ".",
        version_directory=directory,
        artifact=artifact,
        max_batch_size=max_batch_size,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters or {},
        settings=settings or {},
        config=config or {},
        instance_name=f"{name}_0_0",
        kind=kind,
        device_id=device_id,
        lanes=lanes,
        threads=threads,
        log=log,
        decoupled=decoupled,
        calls=calls,
        gpu_memory=gpu_memory,
        gpu_share=gpu_share,
    )


class LocalAnswer:
    """What one request got: outputs by name, a code and a message, or that it runs again (`rescheduled`).

    `outputs` are in host memory. `on_device` are the names of those that would have stayed on the device: the
    backend gave them there, and the request has them among its `device_outputs`.
    """

    __slots__ = ("code", "datatypes", "message", "on_device", "outputs", "parameters", "rescheduled")

    def __init__(
        self,
        outputs: Sequence[Output] = (),
        *,
        parameters: Mapping[str, Parameter] | None = None,
        code: ErrorCode | None = None,
        message: str = "",
        rescheduled: bool = False,
        on_device: Collection[str] = (),
    ) -> None:
        self.rescheduled = rescheduled
        self.on_device = frozenset(on_device)
        self.outputs = {name: array for name, _, array in outputs}
        self.datatypes = {name: datatype for name, datatype, _ in outputs}
        self.parameters = parameters or {}
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"<LocalAnswer {self.outputs if self.code is None else (self.code, self.message)}>"


class LocalSender(ResponseSender):
    """The sender of a `LocalRequest`: what is sent is appended to the request's `parts`. It never waits."""

    def __init__(self, request: LocalRequest) -> None:
        self._request = request
        self._order = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the final response has been sent."""
        return self._closed

    def send(
        self,
        outputs: Sequence[Output],
        parameters: Mapping[str, Parameter] | None = None,
        *,
        final: bool = False,
    ) -> None:
        """Send a response. Raises SenderClosed."""
        self._add(LocalAnswer(self._request.kept(outputs), parameters=parameters), final=final)

    def fail(self, code: ErrorCode, message: str, *, final: bool = True) -> None:
        """Send an error. Raises SenderClosed."""
        self._add(LocalAnswer(code=code, message=message), final=final)

    def finish(self) -> None:
        """End the request. Raises SenderClosed."""
        self._add(None, final=True)

    def cancelled(self) -> bool:
        """Whether the request's `is_cancelled` was set."""
        return self._request.is_cancelled

    def abandon(self) -> bool:
        """Close it without a response: the request is to run again.

        False if the last response has been sent.
        """
        with self._order:
            if self._closed:
                return False
            self._closed = True
            return True

    def _add(self, answer: LocalAnswer | None, *, final: bool) -> None:
        with self._order:
            if self._closed:
                raise SenderClosed("the last response to this request has been sent already")
            self._closed = True  # also if the response can't be taken
            if answer is not None:
                self._request.take(answer)
            self._closed = final
        if final:
            self._request.ended.set()

    def __del__(self) -> None:
        if not self._closed:
            self.fail(ErrorCode.INTERNAL, "the model let go of a request without its final response")


class LocalRequest(BatchRequest):
    """One request over the arrays in `inputs`, each [rows, *dims] if the model batches.

    BYTES inputs are object arrays of `bytes`, BF16 inputs `uint16` bit patterns. Those given as `DeviceArray`
    lie on the device, where `device_outputs` had better stay. `answer` is None until it has one. Set
    `is_cancelled` to simulate a client that has left. What a decoupled model's sender sends is in `parts`;
    `ended` is set with the final one.
    """

    def __init__(
        self,
        inputs: Mapping[str, Array | DeviceArray],
        *,
        id: str = "",  # noqa: A002  # the protocol's word
        requested_outputs: Sequence[str] = (),
        device_outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
        correlation_id: int | str = 0,
        flags: int = 0,
        timeout: int = 0,
        priority: int = 0,
    ) -> None:
        self.inputs = {
            name: array if isinstance(array, DeviceArray) else np.ascontiguousarray(array)
            for name, array in inputs.items()
        }
        self._device_outputs = frozenset(device_outputs)
        self.id = id
        self.requested_outputs = requested_outputs
        self.parameters = parameters or {}
        self.correlation_id = correlation_id
        self.flags = flags
        self.timeout = timeout
        self.priority = priority
        self.rows = 1
        self.is_cancelled = False
        self.answer: LocalAnswer | None = None
        self.parts: list[LocalAnswer] = []
        self.ended = threading.Event()
        self._sender: weakref.ref[LocalSender] | None = None
        self._decoupled = False
        self._datatypes: Mapping[str, DataType] = {}
        self._joining: Joining | None = None

    def join(self, model: ModelInfo) -> None:
        """Take what the model's configuration says about requests. `LocalBatch` calls this."""
        self._decoupled = model.decoupled
        self._joining = Joining.of(model)
        self._datatypes = {tensor.name: tensor.datatype for tensor in model.inputs}
        self.inputs = {name: self.inputs[name] for name in self._datatypes if name in self.inputs}
        self.requested_outputs = self.requested_outputs or [tensor.name for tensor in model.outputs]
        first = next(iter(self.inputs.values()), None)
        self.rows = first.shape[0] if model.max_batch_size and first is not None else 1

    @property
    def input_names(self) -> Sequence[str]:
        """Inputs present, in the configuration's order."""
        return list(self.inputs)

    def input(self, name: str) -> Array:
        """Return an input."""
        if self._joining is not None and name in self._joining.padded:
            return self._joining.pad(name, [self.own(name)])
        return self.own(name)

    def own(self, name: str) -> Array:
        """Return an input as it was given; a copy in host memory if it lies on the device."""
        given = self.inputs[name]
        return given.to_host() if isinstance(given, DeviceArray) else given

    def device_input(self, name: str) -> DeviceArray | None:
        """Return an input that was given on the device, None for others."""
        given = self.inputs[name]
        return given if isinstance(given, DeviceArray) else None

    @property
    def device_outputs(self) -> frozenset[str]:
        """Those outputs that are asked for on the device."""
        return self._device_outputs

    def feeds(self) -> Mapping[str, Array]:
        """Return all inputs as `Batch.feeds` would."""
        return _feeds([self], self._joining, self.input)

    @property
    def shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of its own tensors."""
        return {name: array.shape for name, array in self.inputs.items()}

    def input_datatype(self, name: str) -> DataType:
        """Return an input's datatype. Raises KeyError for an input the client did not send."""
        return self._datatypes[name] if name in self.inputs else _absent(name)

    def respond(
        self, outputs: Sequence[AnyOutput], parameters: Mapping[str, Parameter] | None = None
    ) -> None:
        """Answer with copies of what was asked for. Raises RuntimeError at a second answer."""
        if self._joining is not None:
            self.settle(
                [
                    (name, dt, self._joining.share(name, array, self.shapes))
                    for name, dt, array in _in_host_memory(outputs)
                ],
                parameters,
            )
        else:
            self.settle(outputs, parameters)

    def settle(self, outputs: Sequence[AnyOutput], parameters: Mapping[str, Parameter] | None = None) -> None:
        """Answer with copies of those of its own outputs that were asked for. `LocalBatch` calls this."""
        stayed = {name for name, _, array in outputs if isinstance(array, DeviceArray)}
        on_device = stayed & self._device_outputs & set(self.requested_outputs)
        self._settle(LocalAnswer(self.kept(outputs), parameters=parameters, on_device=on_device))

    def kept(self, outputs: Sequence[AnyOutput]) -> list[Output]:
        """Return copies of those outputs that were asked for."""
        return [(name, dt, _copied(name, dt, a)) for name, dt, a in outputs if name in self.requested_outputs]

    def take(self, part: LocalAnswer) -> None:
        """Keep what a sender sent.

        A test's own class may raise SenderClosed here, as if the server had gone.
        """
        self.parts.append(part)

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer with an error. Raises RuntimeError at a second answer."""
        self._settle(LocalAnswer(code=code, message=message))

    def _settle(self, answer: LocalAnswer) -> None:
        if self.answer is not None:
            raise RuntimeError("this request has been answered already")
        if self.open:
            raise RuntimeError("this request is answered by its sender")
        self.answer = answer

    @property
    def open(self) -> bool:
        """Whether a sender answers it."""
        return self._sender is not None

    def sender(self) -> LocalSender:
        """Return the sender of a decoupled model's responses. Raises RuntimeError for a model that is not."""
        if not self._decoupled:
            raise RuntimeError("the model is not decoupled: answer with `respond` or `fail`")
        sender = None if self._sender is None else self._sender()
        if sender is None:
            if self.open or self.answer is not None:
                raise RuntimeError("this request has been answered already")
            sender = LocalSender(self)
            self._sender = weakref.ref(sender)
        return sender

    def reschedule(self) -> None:
        """Say that it is to run again.

        Raises RuntimeError if there is an answer, or if a sender has sent the last one.
        """
        sender = None if self._sender is None else self._sender()
        if self.open and (sender is None or not sender.abandon()):
            raise RuntimeError("this request has been answered already")
        self._sender = None
        self._settle(LocalAnswer(rescheduled=True))

    def fail_open(self, code: ErrorCode, message: str) -> None:
        """Have the sender end the request with an error, if it has not ended."""
        sender = None if self._sender is None else self._sender()
        if sender is not None and not sender.closed:
            sender.fail(code, message)

    def cancelled(self) -> bool:
        """Whether `is_cancelled` was set."""
        return self.is_cancelled


class LocalRawBatch(RawBatch):
    """The bytes of a `LocalBatch`: copies, from and to its arrays."""

    def __init__(self, batch: LocalBatch) -> None:
        self._batch = batch

    def inputs(self) -> Sequence[RawInput]:
        """Return copies of all inputs."""
        requests = self._batch.requests
        return [
            raw_input(name, [request.input(name) for request in requests]) for name in self._batch.input_names
        ]

    def room(self, nbytes: int) -> Room:
        """Return memory of its own."""
        return Room.apart(nbytes)

    def respond(self, outputs: Sequence[RawOutput], room: Room) -> None:
        """Answer every request with copies of its rows."""
        self._batch.respond([output.array(room) for output in outputs])

    def respond_to(
        self,
        index: int,
        outputs: Sequence[RawOutput],
        room: Room,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Answer one request with copies."""
        self._batch.requests[index].respond([output.array(room) for output in outputs], parameters)


class LocalBatch(Batch):
    """A batch of `requests`, which must carry the same inputs of the same datatypes.

    Their dims must be the same, too, if the input is neither ragged nor padded, and an input lies on the
    device for all of them or for none. Raises ValueError if they do not, or if a model without batching is
    given several.
    """

    def __init__(self, model: ModelInfo, requests: Sequence[LocalRequest]) -> None:
        for request in requests:
            request.join(model)
        if len(requests) != 1 and not model.max_batch_size:
            raise ValueError("a model without batching takes one request at a time")
        if len({tuple(request.inputs) for request in requests}) > 1:
            raise ValueError("the requests of a batch must carry the same inputs")
        kinds = {tuple(name for name in of.inputs if of.device_input(name)) for of in requests}
        if len(kinds) > 1:
            raise ValueError(
                "an input of a batch must lie on the device for all of its requests, or for none"
            )
        self._device_inputs = frozenset(kinds.pop())
        # It is never assigned again.
        self.requests: Sequence[LocalRequest] = requests  # type: ignore[mutable-override]
        self.rows = sum(request.rows for request in requests)
        self._batches = bool(model.max_batch_size)
        self._joining = joining = Joining.of(model)
        apart = self._device_inputs if joining is None else self._device_inputs | joining.flat
        self._stacked = {name: self._join(name) for name in requests[0].inputs if name not in apart}

    def _join(self, name: str) -> Array:
        parts = [request.own(name) for request in self.requests]
        if self._joining is not None and name in self._joining.padded:
            return self._joining.pad(name, parts)
        return np.concatenate(parts) if self._batches else parts[0]

    @property
    def input_names(self) -> Sequence[str]:
        """Inputs present, in the configuration's order."""
        return list(self.requests[0].inputs)

    @property
    def device_inputs(self) -> frozenset[str]:
        """Inputs that lie on the device."""
        return self._device_inputs

    @property
    def raw(self) -> LocalRawBatch:
        """The batch as copies of its bytes."""
        return LocalRawBatch(self)

    def stacked(self, name: str) -> Array:
        """Return an input of all requests. See `Batch.stacked`."""
        return self._stacked[name] if name in self._stacked else self._join(name)

    def feeds(self) -> Mapping[str, Array]:
        """Return all inputs of all requests. See `Batch.feeds`."""
        return _feeds(self.requests, self._joining, self.stacked)

    def allocate(self, name: str, datatype: DataType, shape: Sequence[int]) -> Array:
        """Return an uninitialised array."""
        if datatype is DataType.BYTES:
            raise ValueError(f"output '{name}' is of BYTES, which have no fixed size")
        return np.empty(shape, datatype.numpy)

    def respond(self, outputs: Sequence[AnyOutput]) -> None:
        """Answer every request with its rows. See `Batch.respond`."""
        joining = self._joining
        if joining is not None:
            sizes = [request.rows for request in self.requests]
            shapes = {name: [of.shapes[name] for of in self.requests] for name in self.input_names}
            columns = [
                [(name, datatype, own) for own in joining.shares(name, array, shapes, sizes)]
                for name, datatype, array in _in_host_memory(outputs)
            ]
            for index, request in enumerate(self.requests):
                request.settle([column[index] for column in columns])
            return
        for name, _, array in outputs:
            if self._batches and array.shape[:1] != (self.rows,):
                raise ValueError(
                    f"output '{name}' has shape {list(array.shape)}; a batch of {self.rows} rows needs"
                    f" [{self.rows}, ...]"
                )
        start = 0
        for request in self.requests:
            end = start + request.rows
            request.settle(
                [
                    (name, dt, _rows(array, start, end) if self._batches else array)
                    for name, dt, array in outputs
                ]
            )
            start = end

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer every request not yet answered with an error."""
        for request in self.requests:
            if request.open:
                request.fail_open(code, message)
            elif request.answer is None:
                request.fail(code, message)


def run(backend: Backend, model: ModelInfo, requests: Sequence[LocalRequest]) -> list[LocalAnswer]:
    """Run one batch as a worker does, and return the answers in the requests' order.

    Requests that a decoupled model's senders answer have none: look at their `parts` and `ended`.

    An exception from `execute` fails what is unanswered; so does returning without an answer. Raises
    ValueError for inputs on the device if the backend does not take such.
    """
    batch = LocalBatch(model, requests)
    if batch.device_inputs and not backend.device_tensors:
        raise ValueError(
            f"the backend '{backend.name}' has `device_tensors = False`: a worker never gives it inputs on"
            f" the device, such as {', '.join(sorted(batch.device_inputs))}"
        )
    try:
        backend.execute(batch)
    except TritiumError as error:
        batch.fail(error.code, error.message)
    except Exception as error:  # noqa: BLE001  # the model's exception is its clients' answer, as in a worker
        batch.fail(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
    for request in requests:
        if request.answer is None and not request.open:
            message = f"model '{model.name}' finished the batch without a response to this request"
            request.fail(ErrorCode.INTERNAL, message)
    return [request.answer for request in requests if request.answer is not None]


def _feeds(
    requests: Sequence[LocalRequest], joining: Joining | None, whole: Callable[[str], Array]
) -> Mapping[str, Array]:
    names = requests[0].input_names
    if joining is None:
        return {name: whole(name) for name in names}
    feeds = {
        name: np.concatenate([request.own(name).reshape(-1) for request in requests])
        if name in joining.flat
        else whole(name)
        for name in names
    }
    feeds.update(joining.made_of({name: [of.shapes[name] for of in requests] for name in names}))
    return feeds


def _in_host_memory(outputs: Sequence[AnyOutput]) -> list[Output]:
    return [
        (name, datatype, array.to_host() if isinstance(array, DeviceArray) else array)
        for name, datatype, array in outputs
    ]


def _rows(array: Array | DeviceArray, start: int, end: int) -> Array | DeviceArray:
    return array.rows(start, end) if isinstance(array, DeviceArray) else array[start:end]


def _copied(name: str, datatype: DataType, array: Array | DeviceArray) -> Array:
    if isinstance(array, DeviceArray):
        if array.datatype is not datatype:
            raise ValueError(f"output '{name}' is {array.datatype} on the device, not {datatype}")
        return array.to_host()
    if datatype is DataType.BYTES:
        elements = np.empty(array.size, dtype=object)
        elements[:] = [e if isinstance(e, bytes) else str(e).encode() for e in array.ravel().tolist()]
        return elements.reshape(array.shape)
    if array.dtype.itemsize != datatype.size:
        raise ValueError(f"output '{name}' holds elements of {array.dtype}, which are not {datatype}")
    return np.array(array, dtype=datatype.numpy, copy=True)


def _absent(name: str) -> DataType:
    raise KeyError(name)
