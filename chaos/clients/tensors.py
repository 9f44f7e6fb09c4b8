"""Tensors of the reference workload as both protocols carry them.

They are INT32, FP32 for forests, and BYTES where a request has poison in it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from chaos.workload.answers import Tensor

_TYPES: Final[Mapping[str, type[np.number[Any]]]] = {"INT32": np.int32, "FP32": np.float32}


def datatype(array: Tensor) -> str:
    """Return the protocol's name of an array's type."""
    return "BYTES" if array.dtype == np.object_ else next(n for n, t in _TYPES.items() if t == array.dtype)


def to_bytes(array: Tensor) -> bytes:
    """Return the raw contents of an array.

    Elements of BYTES carry their lengths: contract, binary tensor data extension.
    """
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(each)) + each for each in array.ravel())


def numbers(name: str, shape: list[int], data: bytes | memoryview | list[Any]) -> Tensor:
    """Return the array of an answer's contents, or of its elements in JSON.

    Raises ValueError if they don't fit, or if the datatype is none of those of all answers.
    """
    kind = _TYPES.get(name)
    if kind is None:
        raise ValueError(f"an output of {name}; models here answer with {' or '.join(_TYPES)}")
    read = np.array(data, kind) if isinstance(data, list) else np.frombuffer(data, kind)
    return read.reshape(shape)
