"""Whether an error tells of a lack of memory: SageMaker then unloads other models, and tries again.

Contract: deployment.md section 5.
"""

from __future__ import annotations

from typing import Final

_SIGNS: Final = (
    "CUDA out of memory",
    "CUDA_OUT_OF_MEMORY",
    "Out of memory",
    "Out Of Memory",
    "out of memory",
    "MemoryError",
    "OutOfMemory",
    "OOM",
    "Dst tensor is not initialized",
    "Src tensor is not initialized",
    "CNMEM_STATUS_OUT_OF_MEMORY",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate memory",
    "failed to allocate memory",
    "No space left on device",
    # Tritium's own: a worker that was killed for its memory.
    "lack of memory",
)

STATUS: Final = 507
"""Insufficient Storage (RFC 4918, section 11.5)."""


def tells_of_shortage(message: str) -> bool:
    """Whether an error's text is one that frameworks and the system have where memory is short."""
    return any(sign in message for sign in _SIGNS)
