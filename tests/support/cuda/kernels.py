"""For models of tests on the stand-in for the driver: device memory, and kernels that work on it.

The stand-in's device memory is mapped into the process that has or opens it, so numpy can play a kernel.
Models have a copy of this file beside theirs, so it imports nothing of ours.
"""

import ctypes
from contextlib import contextmanager

import numpy as np

CUDA = 2  # kDLCUDA
DRIVER = ctypes.CDLL("libcuda.so.1")
PYTHON = ctypes.PyDLL(None)  # not `ctypes.pythonapi`, whose functions' types others set
PYTHON.PyCapsule_New.restype = ctypes.py_object
PYTHON.PyCapsule_New.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
PYTHON.PyCapsule_GetPointer.restype = ctypes.c_void_p
PYTHON.PyCapsule_GetPointer.argtypes = ctypes.py_object, ctypes.c_char_p


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


@contextmanager
def context(device):
    """Have the driver's calls go to a device."""
    found = ctypes.c_void_p()
    assert DRIVER.cuInit(0) == DRIVER.cuDevicePrimaryCtxRetain(ctypes.byref(found), device) == 0
    assert DRIVER.cuCtxPushCurrent_v2(found) == 0
    try:
        yield
    finally:
        DRIVER.cuCtxPopCurrent_v2(ctypes.byref(found))


class Array:
    """FP32 elements in fresh memory of a device. It exports itself by DLPack."""

    def __init__(self, device, shape):
        self.device = device
        self.shape = tuple(shape)
        self.nbytes = 4 * int(np.prod(shape))
        address = ctypes.c_uint64()
        with context(device):
            assert DRIVER.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(self.nbytes)) == 0
        self.address = address.value
        self._sizes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        self._managed = Managed(self.address, CUDA, device, len(self.shape), 2, 32, 1, self._sizes)

    def __del__(self):
        with context(self.device):
            DRIVER.cuMemFree_v2(ctypes.c_uint64(self.address))

    def __dlpack__(self):
        # It has no deleter: the caller keeps the array until the capsule has been used.
        return PYTHON.PyCapsule_New(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self):
        return CUDA, self.device

    @property
    def values(self):
        """What a kernel sees of it."""
        return seen(self.address, self.shape)


def seen(address, shape):
    """What a kernel sees of FP32 elements on a device."""
    data = (ctypes.c_ubyte * (4 * int(np.prod(shape)))).from_address(address)
    return np.frombuffer(memoryview(data), np.float32).reshape(shape)


def sent(device, host):
    """A copy on the device of an array in host memory."""
    array, host = Array(device, host.shape), np.ascontiguousarray(host)
    with context(device):
        source = ctypes.c_void_p(host.ctypes.data)
        size = ctypes.c_size_t(host.nbytes)
        assert DRIVER.cuMemcpyHtoD_v2(ctypes.c_uint64(array.address), source, size) == 0
    return array


def given(tensor):
    """What a kernel sees of a `pb_utils.Tensor` on the GPU."""
    capsule = tensor.to_dlpack()
    held = Managed.from_address(PYTHON.PyCapsule_GetPointer(capsule, b"dltensor"))
    assert (held.device, held.code, held.bits) == (CUDA, 2, 32)
    return seen(held.data + held.byte_offset, held.shape[: held.ndim])
