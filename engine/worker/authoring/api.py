"""What `import tritium` gives to the author of a model. It runs on Python 3.9 with numpy."""

from __future__ import annotations

from engine.worker.authoring.declaring import model
from engine.worker.authoring.linking import linked as linked  # for the repositories that `tritium run` writes
from engine.worker.authoring.requests import Instance, Request, RequestError
from engine.worker.authoring.tensors import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    FP32,
    FP64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    Array,
    DeclarationError,
)
from engine.worker.backends.python.host import span

__all__ = [
    "BF16",
    "BOOL",
    "BYTES",
    "FP16",
    "FP32",
    "FP64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "Array",
    "DeclarationError",
    "Instance",
    "Request",
    "RequestError",
    "model",
    "span",
]
