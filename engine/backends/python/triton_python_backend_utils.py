"""The module that Python models import as `pb_utils` (contract, python_backend.md).

It is put into `sys.modules` under the name `triton_python_backend_utils` before a model is imported. What this version does not
offer (BLS, decoupled responses, loading models, custom metrics, completing a configuration) raises `TritonModelException`
when it is used, and never at import.
"""

from __future__ import annotations

import json
import sys
import threading
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.messages.datatypes import BY_CONFIG_NAME, BY_NUMBER, DataType, from_numpy_dtype
from actors.messages.errors import ErrorCode
from actors.messages.tensors import pack_bytes, unpack_bytes
from engine.backends.python import dlpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn, Union

    from engine.backends.base import BatchRequest

    Array = np.ndarray[Any, Any]
    Parameter = Union[bool, int, float, str]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class MemoryType(IntEnum):
    """Where a tensor lies, or should lie."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_CPU_PINNED = 1
    TRITONSERVER_MEMORY_GPU = 2


TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU


class TritonModelException(Exception):  # noqa: N818  # the contract's name
    """Raised by this module's functions and classes."""


def _unsupported(what: str) -> NoReturn:
    raise TritonModelException(f"{what} is not supported by this version of Tritium")


# --- the model behind the module ------------------------------------------------------------------------------------


class Host:
    """What the module's functions know of the model that calls them."""

    def __init__(self, directory: str, log: Callable[[str, str], None]) -> None:
        self.directory = directory  # the version directory
        self.log = log


class _Hosts(threading.local):
    """The model that a thread belongs to. A thread that the model started belongs to the model loaded last."""

    last: Host | None = None  # shared: an attribute of the class
    current: Host | None = None


_hosts = _Hosts()


def attach(host: Host) -> None:
    """Bind the module to a model, for the calling thread. The backend calls this."""
    _Hosts.last = _hosts.current = host


def _host() -> Host:
    host = _hosts.current or _Hosts.last
    if host is None:
        raise TritonModelException("triton_python_backend_utils works only within a model that a server has loaded")
    return host


def get_model_dir() -> str:
    """Return the version directory of the calling model."""
    return _host().directory


class LogLevel(Enum):
    """Levels of `Logger.log`."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    VERBOSE = "verbose"


class Logger:
    """Write to the server's log, with the model's file and line."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log `message` at `level`."""
        _log(level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at INFO."""
        _log(LogLevel.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at WARNING."""
        _log(LogLevel.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at ERROR."""
        _log(LogLevel.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at VERBOSE."""
        _log(LogLevel.VERBOSE, message)


def _log(level: LogLevel, message: str) -> None:
    frame = sys._getframe(2)  # noqa: SLF001  # the caller of a Logger method
    file = frame.f_code.co_filename.rpartition("/")[2]
    _host().log(level.value, f"{file}:{frame.f_lineno}] {message}")


# --- datatypes and bytes --------------------------------------------------------------------------------------------

_NUMPY_TYPES: dict[DataType, Any] = {
    datatype: datatype.numpy.type for datatype in DataType if datatype is not DataType.BF16
}
_NUMPY_TYPES[DataType.BOOL] = bool  # as Triton says it


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a configuration's data type, `TYPE_FP32` for one. Raises KeyError for others and BF16."""
    return _NUMPY_TYPES[BY_CONFIG_NAME[triton_type_string]]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type of a data type's enum number, or None."""
    return _NUMPY_TYPES.get(BY_NUMBER.get(data_type, DataType.BF16))


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the enum number of a numpy type, or None."""
    datatype = _datatype_of(np.dtype(data_type))
    return None if datatype is None else datatype.number


def _datatype_of(dtype: np.dtype[Any]) -> DataType | None:
    return None if dtype.kind == "U" else from_numpy_dtype(dtype)


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """Return the elements in C order, each as a 4-byte little-endian length and its bytes; `str` elements as UTF-8.

    An empty array gives `()`, one that is neither of objects nor of bytes gives None.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return pack_bytes(input_tensor.ravel(order="C").tolist())


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """Return the elements of a serialised tensor as a one-dimensional object array of `bytes`."""
    count = at = 0
    while at < len(encoded_tensor):
        at += 4 + int.from_bytes(encoded_tensor[at : at + 4], "little")
        count += 1
    elements = np.empty(count, dtype=object)
    elements[:] = unpack_bytes(encoded_tensor, "encoded_tensor", count)
    return elements


# --- the configuration, as `json.loads(args["model_config"])` -------------------------------------------------------


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return an input's part of the configuration, or None."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return an output's part of the configuration, or None."""
    return _by_name(model_config.get("output", ()), name)


def _by_name(entries: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether the configuration makes the model decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


# --- tensors --------------------------------------------------------------------------------------------------------


class Tensor:
    """A named tensor over a numpy array. Input tensors are valid only during `execute`."""

    __slots__ = ("_array", "_datatype", "_name")

    def __init__(self, name: str, array: Array) -> None:
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor '{name}' takes a numpy array, got {type(array)}")
        datatype = _datatype_of(array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._datatype = datatype
        self._array = array if array.flags.c_contiguous else array.copy(order="C")

    @classmethod
    def _make(cls, name: str, datatype: DataType, array: Array) -> Tensor:
        """Return a tensor without the checks; `datatype` may be BF16, over `uint16` bit patterns."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._array = array
        return tensor

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> Array:
        """Return the array, not a copy. Elements of BYTES are `bytes` in inputs."""
        if self._datatype is DataType.BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._array

    def shape(self) -> list[int]:
        """Return the shape, batch dimension included."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the datatype's enum number."""
        return self._datatype.number

    def is_cpu(self) -> bool:
        """Whether the tensor lies in CPU memory: always, in this version."""
        return True

    def to_dlpack(self) -> object:
        """Return a DLPack capsule over the tensor's memory."""
        if self._datatype is DataType.BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.export(self._array, bfloat16=self._datatype is DataType.BF16)

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Return a tensor over the memory of a DLPack capsule, or of an object that exports one. CPU memory only."""
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if dlpack.is_capsule(tensor):
            device, _ = dlpack.capsule_device(tensor)
        elif hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
            device, _ = tensor.__dlpack_device__()
        else:
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and"
                " `__dlpack_device__` attributes"
            )
        if device not in dlpack.HOST_DEVICES:
            _unsupported(f"tensor '{name}' lies on a device (copy it to the CPU first): a tensor in GPU memory")
        try:
            array, bfloat16 = dlpack.consume(tensor if dlpack.is_capsule(tensor) else tensor.__dlpack__())
        except (BufferError, RuntimeError) as error:
            raise TritonModelException(f"tensor '{name}': {error}") from error
        if not array.flags.c_contiguous:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are"
                " supported."
            )
        datatype = DataType.BF16 if bfloat16 else _datatype_of(array.dtype)
        if datatype is None:
            raise TritonModelException(f"tensor '{name}': DLPack elements of {array.dtype} are not supported.")
        return Tensor._make(name, datatype, array)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input tensor of a request, or None."""
    return next((tensor for tensor in inference_request.inputs() if tensor._name == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output tensor of a response, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor._name == name), None)


# --- requests and responses -----------------------------------------------------------------------------------------


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
        """Say what becomes of the request after `execute`: only `TRITONSERVER_REQUEST_RELEASE_ALL` here."""
        if flags != TRITONSERVER_REQUEST_RELEASE_ALL:
            _unsupported("rescheduling a request (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)")

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender that answers this request."""
        return InferenceResponseSender(None)

    def exec(self, *, decoupled: bool = False) -> NoReturn:
        """Run this request on another model: refused."""
        _unsupported("BLS (InferenceRequest.exec)")

    async def async_exec(self, *, decoupled: bool = False) -> NoReturn:
        """Run this request on another model: refused."""
        _unsupported("BLS (InferenceRequest.async_exec)")


class ServedRequest(InferenceRequest):
    """A request that the server gave to `execute`. Only the backend makes these."""

    def __init__(self, request: BatchRequest, lock: threading.Lock) -> None:
        self._request = request
        self._reply = Reply(request, lock)
        self._tensors: list[Tensor] | None = None
        self._own_flags: int | None = None
        self._sender: InferenceResponseSender | None = None

    @property
    def reply(self) -> Reply:
        """What has become of the request."""
        return self._reply

    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""
        if self._tensors is None:
            request = self._request
            self._tensors = [
                Tensor._make(name, request.input_datatype(name), request.input(name)) for name in request.input_names
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
        return self._request.cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender that answers this request."""
        return InferenceResponseSender(self._reply)


class Reply:
    """The one answer of a request, from whichever side it comes: `execute`'s list or a sender on any thread.

    `lock` is the batch's: answers are written into memory that the batch's requests share.
    """

    __slots__ = ("_lock", "_request", "answered", "closed", "settled", "senders")

    def __init__(self, request: BatchRequest, lock: threading.Lock) -> None:
        self._request = request
        self._lock = lock
        self.answered = False
        self.closed = False  # for senders
        self.senders = 0  # in the model's hands
        self.settled: threading.Event | None = None  # set when answered, or when nobody is left to answer
