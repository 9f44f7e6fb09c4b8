"""The module that Python models import as `pb_utils` (contract, python_backend.md).

It is put into `sys.modules` under the name `triton_python_backend_utils` before a model is imported. What
needs a server raises `TritonModelException` if there is none, and never at import.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Any

from engine.worker.backends.python.completion import ModelConfig
from engine.worker.backends.python.control import is_model_ready, load_model, unload_model
from engine.worker.backends.python.exchange import (
    InferenceRequest,
    InferenceResponseSender,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    get_input_tensor_by_name,
)
from engine.worker.backends.python.host import current_host
from engine.worker.backends.python.metrics import MetricFamily
from engine.worker.backends.python.responses import (
    InferenceResponse,
    TritonError,
    TritonErrorCode,
    get_output_tensor_by_name,
)
from engine.worker.backends.python.tensors import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    TritonModelException,
    as_text,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
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


def get_model_dir() -> str:
    """Return the version directory of the calling model."""
    return current_host().directory


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


# Defined in the class it would hide the type of `log`'s argument.
Logger.LogLevel = LogLevel  # type: ignore[attr-defined]


def _log(level: LogLevel, message: str) -> None:
    frame = sys._getframe(2)  # noqa: SLF001  # the caller of a Logger method
    file = frame.f_code.co_filename.rpartition("/")[2]
    text = as_text("a message for the log", message)
    current_host().log(level.value, f"{file}:{frame.f_lineno}] {text}")


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
