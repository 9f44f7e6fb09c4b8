"""Tensors of the reference workload as both protocols carry them.

They are INT32, and BYTES where a request has poison in it.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from chaos.workload.answers import Tensor


def datatype(array: Tensor) -> str:
    """Return the protocol's name of an array's type."""
    return "BYTES" if array.dtype == np.object_ else "INT32"


def to_bytes(array: Tensor) -> bytes:
    """Return the raw contents of an array.

    Elements of BYTES carry their lengths: contract, binary tensor data extension.
    """
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(each)) + each for each in array.ravel())


def numbers(name: str, shape: list[int], data: bytes | memoryview | list[Any]) -> Tensor:
    """Return the array of an answer's contents, or of its elements in JSON.

    Raises ValueError if they don't fit, or if the datatype is not the one of all answers.
    """
    if name != "INT32":
        raise ValueError(f"an output of {name}; models here answer with INT32")
    read = np.array(data, np.int32) if isinstance(data, list) else np.frombuffer(data, np.int32)
    return read.reshape(shape)
