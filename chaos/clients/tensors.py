"""Tensors of the reference workload as both protocols carry them.

They are int32, and BYTES where a request has poison in it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Tensor = npt.NDArray[Any]

_DTYPES: Final[dict[str, type[np.generic]]] = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


def datatype(array: Tensor) -> str:
    """Return the protocol's name of an array's type.

    Raises ValueError for a type that no model here takes.
    """
    if array.dtype == np.object_:
        return "BYTES"
    for name, dtype in _DTYPES.items():
        if array.dtype == dtype:
            return name
    raise ValueError(f"tensors of {array.dtype} can't be sent; int32, int64, float32 and objects (bytes) can")


def to_bytes(array: Tensor) -> bytes:
    """Return the raw contents of an array.

    Elements of BYTES carry their lengths: contract, binary tensor data extension.
    """
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(each)) + each for each in array.ravel())


def from_bytes(name: str, shape: list[int], data: bytes | memoryview) -> Tensor:
    """Return the array of a datatype.

    Raises ValueError if the bytes don't fit, or if the type is not a number's.
    """
    if name not in _DTYPES:
        raise ValueError(f"an output of {name}; models here answer with {', '.join(_DTYPES)}")
    return np.frombuffer(data, _DTYPES[name]).reshape(shape)


def from_list(name: str, shape: list[int], data: list[Any]) -> Tensor:
    """Return the array of elements that came as JSON. Raises ValueError if they don't fit."""
    if name not in _DTYPES:
        raise ValueError(f"an output of {name}; models here answer with {', '.join(_DTYPES)}")
    return np.array(data, _DTYPES[name]).reshape(shape)
