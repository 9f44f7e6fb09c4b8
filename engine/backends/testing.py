"""An in-memory batch, for testing backends without a server.

Nothing here is used when models are served: `LocalBatch` follows the rules that the worker's batch follows, over plain
arrays, so that a backend which passes its tests on one behaves on the other. A test reads::

    model = model_info(directory, inputs=[TensorInfo("X", DataType.FP32, [4])], outputs=[...], max_batch_size=8)
    backend = MyBackend()
    backend.load(model)
    [answer] = run(backend, model, [LocalRequest({"X": np.ones((2, 4), "f4")})])
    assert answer.outputs["Y"].tolist() == ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actors.messages.datatypes import DataType
from actors.messages.errors import ErrorCode, TritiumError
from engine.backends.base import Backend, Batch, BatchRequest, ModelInfo, TensorInfo

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import Union

    Array = np.ndarray[Any, Any]
    Output = tuple[str, DataType, Array]
    Parameter = Union[bool, int, float, str]


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
) -> ModelInfo:
    """Return what `Backend.load` takes, with defaults for what a test does not care about.

    The model directory is the parent of `version_directory`; its last component is the version where it is a number.
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
    )


class LocalAnswer:
    """What one request got: outputs by name, or a code and a message."""

    __slots__ = ("code", "datatypes", "message", "outputs", "parameters")

    def __init__(
        self,
        outputs: Sequence[Output] = (),
        *,
        parameters: Mapping[str, Parameter] | None = None,
        code: ErrorCode | None = None,
        message: str = "",
    ) -> None:
        self.outputs = {name: array for name, _, array in outputs}
        self.datatypes = {name: datatype for name, datatype, _ in outputs}
        self.parameters = parameters or {}
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"<LocalAnswer {self.outputs if self.code is None else (self.code, self.message)}>"


class LocalRequest(BatchRequest):
    """One request over the arrays in `inputs`, each [rows, *dims] where the model batches.

    BYTES inputs are object arrays of `bytes`, BF16 inputs `uint16` bit patterns. `answer` is None until it has one.
    Set `is_cancelled` to play a client that has left.
    """

    def __init__(
        self,
        inputs: Mapping[str, Array],
        *,
        id: str = "",  # noqa: A002  # the protocol's word
        requested_outputs: Sequence[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
        correlation_id: int | str = 0,
        flags: int = 0,
        timeout: int = 0,
        priority: int = 0,
    ) -> None:
        self.inputs = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
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
        self._datatypes: Mapping[str, DataType] = {}

    def join(self, model: ModelInfo) -> None:
        """Take what the model's configuration says about requests. `LocalBatch` calls this."""
        self._datatypes = {tensor.name: tensor.datatype for tensor in model.inputs}
        self.inputs = {name: self.inputs[name] for name in self._datatypes if name in self.inputs}
        self.requested_outputs = self.requested_outputs or [tensor.name for tensor in model.outputs]
        self.rows = len(next(iter(self.inputs.values()))) if model.max_batch_size and self.inputs else 1

    @property
    def input_names(self) -> Sequence[str]:
        """Inputs present, in the configuration's order."""
        return list(self.inputs)

    def input(self, name: str) -> Array:
        """Return an input."""
        return self.inputs[name]

    def input_datatype(self, name: str) -> DataType:
        """Return an input's datatype. Raises KeyError for an input the client did not send."""
        return self._datatypes[name] if name in self.inputs else _absent(name)

    def respond(self, outputs: Sequence[Output], parameters: Mapping[str, Parameter] | None = None) -> None:
        """Answer with copies of what was asked for. Raises RuntimeError at a second answer."""
        kept = [(name, dt, _copied(name, dt, a)) for name, dt, a in outputs if name in self.requested_outputs]
        self._settle(LocalAnswer(kept, parameters=parameters))

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer with an error. Raises RuntimeError at a second answer."""
        self._settle(LocalAnswer(code=code, message=message))

    def _settle(self, answer: LocalAnswer) -> None:
        if self.answer is not None:
            raise RuntimeError("this request has been answered already")
        self.answer = answer

    def cancelled(self) -> bool:
        """Whether `is_cancelled` was set."""
        return self.is_cancelled


class LocalBatch(Batch):
    """A batch of `requests`, which must carry the same inputs of the same dims and datatypes.

    Raises ValueError where they do not, or where a model without batching is given several.
    """

    def __init__(self, model: ModelInfo, requests: Sequence[LocalRequest]) -> None:
        for request in requests:
            request.join(model)
        if len(requests) != 1 and not model.max_batch_size:
            raise ValueError("a model without batching takes one request at a time")
        if len({tuple(request.inputs) for request in requests}) > 1:
            raise ValueError("the requests of a batch must carry the same inputs")
        self.requests: Sequence[LocalRequest] = requests  # type: ignore[mutable-override]  # never assigned again
        self.rows = sum(request.rows for request in requests)
        self._batches = bool(model.max_batch_size)
        self._stacked = {
            name: np.concatenate([request.inputs[name] for request in requests])
            if self._batches
            else requests[0].inputs[name]
            for name in requests[0].inputs
        }

    @property
    def input_names(self) -> Sequence[str]:
        """Inputs present, in the configuration's order."""
        return list(self._stacked)

    def stacked(self, name: str) -> Array:
        """Return an input of all requests."""
        return self._stacked[name]

    def allocate(self, name: str, datatype: DataType, shape: Sequence[int]) -> Array:
        """Return an uninitialised array."""
        if datatype is DataType.BYTES:
            raise ValueError(f"output '{name}' is of BYTES, which have no fixed size")
        return np.empty(shape, datatype.numpy)

    def respond(self, outputs: Sequence[Output]) -> None:
        """Answer every request with its rows."""
        for name, _, array in outputs:
            if self._batches and (not array.ndim or len(array) != self.rows):
                raise ValueError(
                    f"output '{name}' has shape {list(array.shape)}; a batch of {self.rows} rows needs [{self.rows}, ...]"
                )
        start = 0
        for request in self.requests:
            rows = slice(start, start + request.rows) if self._batches else slice(None)
            request.respond(
                [(name, datatype, array[rows] if array.ndim else array) for name, datatype, array in outputs]
            )
            start += request.rows

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer every request not yet answered with an error."""
        for request in self.requests:
            if request.answer is None:
                request.fail(code, message)


def run(backend: Backend, model: ModelInfo, requests: Sequence[LocalRequest]) -> list[LocalAnswer]:
    """Run one batch as a worker does, and return the answers in the requests' order.

    An exception from `execute` fails what is unanswered; so does returning without an answer.
    """
    batch = LocalBatch(model, requests)
    try:
        backend.execute(batch)
    except TritiumError as error:
        batch.fail(error.code, error.message)
    except Exception as error:  # noqa: BLE001  # the model's exception is its clients' answer, as in a worker
        batch.fail(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
    batch.fail(
        ErrorCode.INTERNAL, f"model '{model.name}' finished the batch without a response to this request"
    )
    return [request.answer for request in requests if request.answer is not None]


def _copied(name: str, datatype: DataType, array: Array) -> Array:
    if datatype is DataType.BYTES:
        elements = np.empty(array.size, dtype=object)
        elements[:] = [e if isinstance(e, bytes) else str(e).encode() for e in array.ravel().tolist()]
        return elements.reshape(array.shape)
    if array.dtype.itemsize != datatype.size:
        raise ValueError(f"output '{name}' holds elements of {array.dtype}, which are not {datatype}")
    return np.array(array, dtype=datatype.numpy, copy=True)


def _absent(name: str) -> DataType:
    raise KeyError(name)
