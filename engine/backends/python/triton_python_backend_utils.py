"""The module that Python models import as `pb_utils` (contract, python_backend.md).

It is put into `sys.modules` under the name `triton_python_backend_utils` before a model is imported. What this version does not
offer (BLS, loading models, custom metrics) raises `TritonModelException`
when it is used, and never at import.
"""

from __future__ import annotations

import sys
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any

from engine.backends.python.completion import ModelConfig
from engine.backends.python.exchange import (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    TritonError,
    TritonErrorCode,
    get_input_tensor_by_name,
    get_output_tensor_by_name,
)
from engine.backends.python.tensors import (
    Tensor,
    TritonModelException,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "LogLevel",
    "Logger",
    "MemoryType",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonErrorCode",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU


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
        raise TritonModelException(
            "triton_python_backend_utils works only within a model that a server has loaded"
        )
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


# What a later version offers is refused where it is used, so that a model which merely names it still loads.


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> NoReturn:
    """Load another model: refused."""
    unsupported("load_model")


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    """Unload another model: refused."""
    unsupported("unload_model")


def is_model_ready(model_name: str, model_version: str = "") -> NoReturn:
    """Ask for another model's readiness: refused."""
    unsupported("is_model_ready")


class MetricFamily:
    """A custom metric: refused."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"

    def __init__(self, name: str, description: str, kind: str) -> None:
        unsupported("MetricFamily")
