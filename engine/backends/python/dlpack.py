"""DLPack capsules for numpy arrays, bfloat16 included.

NumPy speaks DLPack but knows no bfloat16, and takes objects but no bare capsules. Both gaps are closed by writing into the
capsule's own header (`DLManagedTensor`, dlpack.h): a bfloat16 tensor passes through numpy as 16-bit integers.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

CPU = 1  # kDLCPU
HOST_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost: what numpy can read
_UINT, _BFLOAT = 1, 4  # DLDataTypeCode


class _Header(ctypes.Structure):
    """The beginning of DLManagedTensor, as far as it is needed."""

    _fields_: ClassVar = [  # type: ignore[mutable-override]  # ctypes reads it once
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def is_capsule(value: object) -> bool:
    """Whether `value` is a PyCapsule."""
    return type(value).__name__ == "PyCapsule"


def _header(capsule: object) -> _Header:
    """Return the capsule's header, in place. Raises ValueError for a capsule that was consumed or holds something else."""
    return _Header.from_address(_get_pointer(capsule, b"dltensor"))


def capsule_device(capsule: object) -> tuple[int, int]:
    """Return a capsule's (device type, device id). Raises ValueError for one that is no fresh DLPack capsule."""
    header = _header(capsule)
    return header.device_type, header.device_id


class _Exporter:
    """What numpy takes in place of a bare capsule. One use."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return capsule_device(self._capsule)


def export(array: Array, *, bfloat16: bool) -> object:
    """Return a capsule over the memory of `array`, which it keeps alive. Read-only arrays are copied first.

    With `bfloat16` the array is of `uint16` bit patterns.
    """
    if not array.flags.writeable:
        array = array.copy()
    capsule: object = array.__dlpack__()
    if bfloat16:
        _header(capsule).code = _BFLOAT
    return capsule


def consume(capsule: object) -> tuple[Array, bool]:
    """Return an array over a capsule's memory, and whether its `uint16` elements are bfloat16.

    Raises ValueError for a capsule already consumed, BufferError or RuntimeError where numpy lacks the element type.
    """
    header = _header(capsule)
    bfloat16 = header.code == _BFLOAT and header.bits == 16
    if bfloat16:
        header.code = _UINT
    exporter: Any = _Exporter(capsule)
    return np.from_dlpack(exporter), bfloat16
