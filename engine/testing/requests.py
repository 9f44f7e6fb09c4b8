"""Requests that a test gives to a model, with what is to go wrong on the way, and the answers it gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.tensors import DevicePlace, DeviceTensor, Tensor
from engine.worker.backends.base import SenderClosed
from engine.worker.backends.testing import LocalAnswer, LocalRequest
from engine.worker.devices import cuda, dlpack
from engine.worker.devices.arrays import DeviceArray

Array = np.ndarray[Any, Any]
Parameter = bool | int | float | str


class InferenceFailed(Exception):
    """A request was answered with an error.

    `code` is its name, such as INVALID_ARG, and `message` what a client reads.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong while a request is answered.

    `cancelled`: the client has left before the model begins. `cancelled_after`: it leaves when it has had so
    many responses; `cancelled_in`: after so many seconds. `cut_off_after`: after so many responses every
    `send` raises, as if the server had gone.
    """

    cancelled: bool = False
    cancelled_after: int | None = None
    cancelled_in: float | None = None
    cut_off_after: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request.

    Inputs are arrays, or what one can be made of, with the batch dimension in front if the model batches.
    What lies on a CUDA device, such as a framework's tensor, is given there, as between the steps of an
    ensemble; `device_outputs` are those that had better stay there.

    `timeout` is in seconds, 0 for none; the model is told of it, and nothing ends by itself.
    """

    inputs: Mapping[str, Any]
    _: KW_ONLY
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    requested_outputs: Sequence[str] = ()
    device_outputs: Sequence[str] = ()
    correlation_id: int | str = 0
    flags: int = 0
    timeout: float = 0.0
    priority: int = 0
    fault: Fault = field(default_factory=Fault)


class Answer(Mapping[str, Array]):
    """One response: its outputs by name, as arrays of their own, its `parameters`, or instead an `error`.

    `on_device` are the names of those outputs that would have stayed on the device.
    """

    def __init__(self, answer: LocalAnswer) -> None:
        self._outputs = answer.outputs
        self.on_device = answer.on_device
        self.parameters: Mapping[str, Parameter] = dict(answer.parameters)
        self.rescheduled = answer.rescheduled  # no response: the request is to be run once more
        self.error = None if answer.code is None else InferenceFailed(answer.code.name, answer.message)

    @classmethod
    def refused(cls, code: ErrorCode, message: str) -> Self:
        """Return the answer to a request that never reaches the model."""
        return cls(LocalAnswer(code=code, message=message))

    def __getitem__(self, name: str) -> Array:
        if self.error is not None:
            raise self.error
        if name not in self._outputs:
            raise KeyError(f"no output '{name}': this response has {', '.join(self._outputs) or 'none'}")
        return self._outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        return f"<Answer {self._outputs if self.error is None else self.error}>"


class FaultyRequest(LocalRequest):
    """A request as the backend gets it, to which happens what its `Fault` says."""

    def __init__(self, request: Request, inputs: Mapping[str, Array | DeviceArray]) -> None:
        super().__init__(
            inputs,
            id=request.id,
            requested_outputs=request.requested_outputs,
            device_outputs=request.device_outputs,
            parameters=request.parameters,
            correlation_id=request.correlation_id,
            flags=request.flags,
            timeout=round(request.timeout * 1e6),
            priority=request.priority,
        )
        self.fault = request.fault
        self.is_cancelled = request.fault.cancelled or request.fault.cancelled_after == 0

    def take(self, part: LocalAnswer) -> None:
        """Keep a response, unless that is what goes wrong. Raises SenderClosed."""
        if self.fault.cut_off_after is not None and len(self.parts) >= self.fault.cut_off_after:
            # As far as can be known.
            self.ended.set()
            raise SenderClosed("the server has gone")
        super().take(part)
        if self.fault.cancelled_after is not None and len(self.parts) >= self.fault.cancelled_after:
            self.is_cancelled = True

    def responses(self) -> list[Answer]:
        """Return all responses there are."""
        given = [self.answer] if self.answer is not None else []
        return [Answer(each) for each in (*self.parts, *given)]


def as_array(value: Any, datatype: DataType) -> Array:
    """Return `value` as the array a client would send; an array is left as it is. Raises ValueError."""
    if datatype is DataType.BYTES:
        array = np.asarray(value, dtype=object)
        elements = np.empty(array.size, dtype=object)
        elements[:] = [each.encode() if isinstance(each, str) else each for each in array.ravel().tolist()]
        return elements.reshape(array.shape)
    return value if isinstance(value, np.ndarray) else np.asarray(value, datatype.numpy)


def on_device(value: Any) -> DeviceArray | None:
    """Return what lies on a CUDA device as an array there, once it is written; None for anything else.

    Raises ValueError if it is not contiguous, BufferError for elements that no datatype has, and CudaError if
    the device fails.
    """
    if isinstance(value, DeviceArray):
        return value
    if not hasattr(value, "__dlpack_device__") or value.__dlpack_device__()[0] not in dlpack.CUDA_DEVICES:
        return None
    array = dlpack.held(value.__dlpack__())
    if array is None:
        raise ValueError("it is not contiguous in C order")
    cuda.driver().synchronize(array.device_id)
    return array


def as_tensor(name: str, array: Array | DeviceArray) -> Tensor:
    """Return an input as a server has it that checks a request."""
    if not isinstance(array, DeviceArray):
        return Tensor.from_numpy(name, array)
    place = DevicePlace(b"", array.device_id, 0, array.nbytes)
    return DeviceTensor(name, array.datatype, array.shape, place)
