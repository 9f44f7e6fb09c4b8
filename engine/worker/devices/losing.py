"""What goes wrong on a GPU beside a model's own mistakes: no memory is left, or the context is lost.

A kernel that fails (an illegal access, an assertion) takes the process's CUDA context with it. From then on
every call fails, in whichever framework made the first: nothing would ever succeed there again. Each framework
words that in its own way, and a model may pass on only half of it. So the driver is asked, which every
framework uses: it answers every call with such an error.
"""

from __future__ import annotations

import ctypes
import os
import re

from engine.worker.devices import cuda

_SHORT = re.compile(
    r"CUDA out of memory|out of memory|OutOfMemory|OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|Failed to allocate memory for requested buffer"
    r"|Available memory of \d+ is smaller than requested bytes",
    re.IGNORECASE,
)
# Errors of the driver after which a context can't be used (CUDA driver API, CUresult), and MPS's of a client.
_LOST = re.compile(
    r"CUDA_ERROR_(?:ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|CONTEXT_IS_DESTROYED|ILLEGAL_ADDRESS"
    r"|LAUNCH_TIMEOUT|ASSERT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC"
    r"|LAUNCH_FAILED|CONTAINED|EXTERNAL_DEVICE|TENSOR_MEMORY_LEAK|MPS_CLIENT_TERMINATED|MPS_RPC_FAILURE"
    r"|UNKNOWN)\b"
)


def is_short(message: str) -> bool:
    """Whether an error says that no memory of the GPU was left."""
    return _SHORT.search(message) is not None


def why_lost(device: int) -> str:
    """Return the driver's word that this process can't use a GPU any longer; empty while it can.

    It waits for what the GPU has to do. A process that has not used that GPU has lost nothing.
    """
    try:
        ctypes.CDLL(cuda.LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""  # nothing in this process has loaded the driver
    try:
        driver = cuda.driver()
        if driver.in_use(device):
            driver.synchronize(device)
    except cuda.CudaError as error:
        return str(error) if _LOST.search(str(error)) else ""
    return ""
