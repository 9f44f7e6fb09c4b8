"""DLPack capsules for numpy arrays, bfloat16 included, and for memory of devices.

NumPy speaks DLPack but knows no bfloat16, and takes objects but no bare capsules. Both gaps are closed by
writing into the capsule's own header (`DLManagedTensor`, dlpack.h): a bfloat16 tensor passes through numpy as
16-bit integers. NumPy knows nothing of device memory. A capsule over that is described and held, and shared
by capsules of our own making.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from actors.values.datatypes import DataType
from engine.worker.devices.arrays import CUDA, DeviceArray

if TYPE_CHECKING:
    from actors.values.tensors import Array

CPU = 1  # kDLCPU
CUDA_DEVICES = (CUDA, 13)  # kDLCUDA, kDLCUDAManaged: what the CUDA driver can read
_UINT, _BFLOAT = 1, 4  # DLDataTypeCode

_DATATYPES = {
    (0, 8): DataType.INT8,
    (0, 16): DataType.INT16,
    (0, 32): DataType.INT32,
    (0, 64): DataType.INT64,
    (1, 8): DataType.UINT8,
    (1, 16): DataType.UINT16,
    (1, 32): DataType.UINT32,
    (1, 64): DataType.UINT64,
    (2, 16): DataType.FP16,
    (2, 32): DataType.FP32,
    (2, 64): DataType.FP64,
    (_BFLOAT, 16): DataType.BF16,
    (6, 8): DataType.BOOL,
}
_CODE_OF = {datatype: code for (code, _), datatype in _DATATYPES.items()}


class _Header(ctypes.Structure):
    """DLTensor, the beginning of DLManagedTensor."""

    _fields_: ClassVar = [  # type: ignore[mutable-override]  # ctypes reads it once
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_: ClassVar = [  # type: ignore[mutable-override]  # ctypes reads it once
        ("tensor", _Header),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
# For a capsule that is being destroyed, which must not be touched as an object any more.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def is_capsule(value: object) -> bool:
    """Whether `value` is a PyCapsule."""
    return type(value).__name__ == "PyCapsule"


def _header(capsule: object) -> _Header:
    """Return the capsule's header, in place.

    Raises ValueError for a capsule that was consumed or holds something else.
    """
    return _Header.from_address(_get_pointer(capsule, b"dltensor"))


def capsule_device(capsule: object) -> tuple[int, int]:
    """Return a capsule's (device type, device id). Raises ValueError if it is no fresh DLPack capsule."""
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

    Raises ValueError for a capsule already consumed, and BufferError or RuntimeError if numpy lacks the
    element type.
    """
    header = _header(capsule)
    bfloat16 = header.code == _BFLOAT and header.bits == 16
    if bfloat16:
        header.code = _UINT
    exporter: Any = _Exporter(capsule)
    return np.from_dlpack(exporter), bfloat16


def held(capsule: object) -> DeviceArray | None:
    """Return the memory of a fresh capsule, which it goes on to own; None if it is not contiguous in C order.

    Raises BufferError for elements that no datatype has, ValueError for a capsule that was used.
    """
    header = _header(capsule)
    datatype = _DATATYPES.get((header.code, header.bits)) if header.lanes == 1 else None
    if datatype is None:
        raise BufferError(f"DLPack elements of code {header.code} and {header.bits} bits are not supported")
    shape = tuple(header.shape[: header.ndim])
    if header.strides and not _is_contiguous(shape, header.strides[: header.ndim]):
        return None
    address = (header.data or 0) + header.byte_offset
    return DeviceArray(
        capsule, address, shape, datatype, device_id=header.device_id, device=header.device_type
    )


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def share(memory: DeviceArray) -> object:
    """Return a fresh capsule over `memory`; its owner lives until the last user of the capsule is done."""
    shape = (ctypes.c_int64 * max(1, len(memory.shape)))(*memory.shape)
    managed = _Managed(
        _Header(
            memory.address,
            memory.device,
            memory.device_id,
            len(memory.shape),
            _CODE_OF[memory.datatype],
            memory.datatype.size * 8,
            1,
            shape,
            None,
            0,
        ),
        None,
        _delete,
    )
    address = ctypes.addressof(managed)
    _shared[address] = managed, shape, memory.owner
    capsule: object = _new(address, _NAME, _destroy)
    return capsule


# What a capsule is called until its tensor is taken. The bytes must outlive all capsules.
_NAME = b"dltensor"
_shared: dict[int, object] = {}


@_Deleter  # type: ignore[untyped-decorator]  # ctypes makes these types
def _delete(address: int) -> None:
    """The consumer of a tensor no longer needs it."""
    _shared.pop(address, None)


@_Destructor  # type: ignore[untyped-decorator]  # ctypes makes these types
def _destroy(capsule: int) -> None:
    """A capsule is gone; if its tensor was never taken, so is that."""
    if _is_valid(capsule, _NAME):
        _shared.pop(_pointer_of(capsule, _NAME), None)
