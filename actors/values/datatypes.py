"""The fourteen tensor datatypes of the KServe v2 protocol and their Triton spellings.

Contract: model_config.md section 2. BF16 has no numpy type; its elements travel as the
`uint16` that holds their bits, so that nothing is rounded on the way.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np


class DataType(Enum):
    """A tensor's element type. `str(member)` is the protocol's name."""

    BOOL = ("BOOL", 1, 1, "?")
    UINT8 = ("UINT8", 2, 1, "u1")
    UINT16 = ("UINT16", 3, 2, "<u2")
    UINT32 = ("UINT32", 4, 4, "<u4")
    UINT64 = ("UINT64", 5, 8, "<u8")
    INT8 = ("INT8", 6, 1, "i1")
    INT16 = ("INT16", 7, 2, "<i2")
    INT32 = ("INT32", 8, 4, "<i4")
    INT64 = ("INT64", 9, 8, "<i8")
    FP16 = ("FP16", 10, 2, "<f2")
    FP32 = ("FP32", 11, 4, "<f4")
    FP64 = ("FP64", 12, 8, "<f8")
    BYTES = ("BYTES", 13, 0, "O")
    BF16 = ("BF16", 14, 2, "<u2")

    protocol_name: str
    number: int  # in ModelConfig's DataType enum
    size: int  # bytes an element takes; 0 for BYTES, whose elements vary
    numpy: np.dtype

    def __init__(self, protocol_name: str, number: int, size: int, numpy: str) -> None:
        self.protocol_name = protocol_name
        self.number = number
        self.size = size
        self.numpy = np.dtype(numpy)

    def __str__(self) -> str:
        return self.protocol_name

    @property
    def config_name(self) -> str:
        """The enum name used in `config.pbtxt`: `TYPE_FP32`, and `TYPE_STRING` for BYTES."""
        return "TYPE_STRING" if self is DataType.BYTES else "TYPE_" + self.protocol_name


BY_PROTOCOL_NAME: Final = {member.protocol_name: member for member in DataType}
BY_CONFIG_NAME: Final = {member.config_name: member for member in DataType}
BY_NUMBER: Final = {member.number: member for member in DataType}

_BY_NUMPY: Final = {
    member.numpy.str: member for member in DataType if member not in (DataType.BYTES, DataType.BF16)
}


def from_numpy_dtype(dtype: np.dtype) -> DataType | None:
    """Return the datatype that holds arrays of `dtype`, or None if there is none.

    Object and fixed-width string arrays are BYTES. BF16 is never inferred.
    """
    if dtype.kind in "OSU":
        return DataType.BYTES
    return _BY_NUMPY.get(dtype.newbyteorder("<").str)
