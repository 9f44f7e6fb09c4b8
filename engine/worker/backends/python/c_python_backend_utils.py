"""The module `c_python_backend_utils`, which Triton has for the compiled part of `pb_utils`.

It holds the same objects under that name.
"""

from __future__ import annotations

from engine.worker.backends.python.calling import ResponseIterator
from engine.worker.backends.python.control import is_model_ready, load_model, unload_model
from engine.worker.backends.python.exchange import (
    InferenceRequest,
    InferenceResponseSender,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from engine.worker.backends.python.metrics import Metric, MetricFamily, MetricKind
from engine.worker.backends.python.responses import InferenceResponse, TritonError
from engine.worker.backends.python.tensors import Tensor, TritonModelException
from engine.worker.backends.python.triton_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    Logger,
)

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "unload_model",
]

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
