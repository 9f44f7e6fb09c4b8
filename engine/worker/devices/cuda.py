"""Device memory, through the driver that every framework with CUDA tensors has loaded already."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import uuid
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIBRARY = "libcuda.so.1"
_ENABLE_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and …_MINOR
_COMPUTE_CAPABILITY = (75, 76)
# Errors after which a process can use its device no more, whatever it does.
_LOST = (
    "ASSERT",
    "CONTEXT_IS_DESTROYED",
    "ECC_UNCORRECTABLE",
    "HARDWARE_STACK_ERROR",
    "ILLEGAL_ADDRESS",
    "ILLEGAL_INSTRUCTION",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "MISALIGNED_ADDRESS",
)

HANDLE_BYTES = 64
"""Length of the handle by which processes share device memory, `cudaIpcMemHandle_t`."""


class _IpcHandle(ctypes.Structure):
    """It is passed by value, so ctypes must know its size."""

    _fields_: ClassVar = [  # type: ignore[mutable-override]  # ctypes reads it once
        ("reserved", ctypes.c_ubyte * HANDLE_BYTES)
    ]


class CudaError(RuntimeError):
    """There is no driver, or it refuses what it is asked for."""

    @property
    def loses_device(self) -> bool:
        """Whether this process can't use the device any more."""
        return any(f"CUDA_ERROR_{name} " in str(self) for name in _LOST)


class Driver:
    """The CUDA driver of this process. Every method raises CudaError if the driver says no."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise CudaError(f"GPU memory can't be reached: {error}") from error
        self.call("cuInit", ctypes.c_uint(0))
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def copy_to_host(self, device: int, source: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` from device address `source` to host address `target`.

        The copy comes after everything that the device has to do.
        """
        with self.context(device):
            self.call("cuCtxSynchronize")
            self.call(
                "cuMemcpyDtoH_v2", ctypes.c_void_p(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
            )

    def copy_to_device(self, device: int, source: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` from host address `source` to device address `target`, and wait until that is done.

        The driver's call returns once it has taken the bytes, and another process may look for them at once.
        """
        with self.context(device):
            self.call(
                "cuMemcpyHtoD_v2", ctypes.c_uint64(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes)
            )
            self.call("cuCtxSynchronize")

    def synchronize(self, device: int) -> None:
        """Wait until the device has done everything, so that the next reader needs no stream of ours."""
        with self.context(device):
            self.call("cuCtxSynchronize")

    def allocate(self, device: int, nbytes: int) -> int:
        """Return the address of fresh device memory; `free` takes it back."""
        address = ctypes.c_uint64()
        with self.context(device):
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def free(self, device: int, address: int) -> None:
        """Give memory back."""
        with self.context(device):
            self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def copy_within(self, device: int, source: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` from one device address to another, and wait until that is done.

        The copy comes after everything that the device has to do.
        """
        with self.context(device):
            self.call("cuCtxSynchronize")
            self.call(
                "cuMemcpyDtoD_v2", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
            )
            self.call("cuCtxSynchronize")

    def device_count(self) -> int:
        """Return how many devices this process may use."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def uuid(self, device: int) -> str:
        """Return a device's UUID as `nvidia-smi` writes it, `GPU-…`: it is the same in every process."""
        handle, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self.call("cuDeviceGetUuid_v2", ctypes.byref(found), handle)
        return f"GPU-{uuid.UUID(bytes=bytes(found))}"

    def compute_capability(self, device: int) -> str:
        """Return which generation of GPU a device is, such as `8.6`."""
        handle, value = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        found = []
        for attribute in _COMPUTE_CAPABILITY:
            self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
            found.append(str(value.value))
        return ".".join(found)

    # -- memory of other processes (CUDA driver API, section "Memory management", cuIpc…)

    def export(self, device: int, address: int) -> bytes:
        """Return the handle, of `HANDLE_BYTES`, by which other processes open an allocation of this one."""
        handle = _IpcHandle()
        with self.context(device):
            self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle.reserved)

    def open_exported(self, device: int, handle: bytes) -> tuple[int, int]:
        """Open another process's allocation on this device; return its address here, and its bytes.

        `close_exported` ends that.
        """
        wanted = _IpcHandle()
        ctypes.memmove(wanted.reserved, handle, HANDLE_BYTES)
        address, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        with self.context(device):
            lazily = ctypes.c_uint(_ENABLE_PEER_ACCESS)
            self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), wanted, lazily)
            try:
                self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
            except CudaError:
                self.call("cuIpcCloseMemHandle", address)
                raise
        return address.value, size.value - (address.value - base.value)

    def close_exported(self, device: int, address: int) -> None:
        """Let go of another process's allocation."""
        with self.context(device):
            self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    @contextlib.contextmanager
    def context(self, device: int) -> Iterator[None]:
        """Make the device's primary context, which frameworks use, the calling thread's own for a while."""
        self.call("cuCtxPushCurrent_v2", self._contexts.get(device) or self._retain(device))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _retain(self, device: int) -> ctypes.c_void_p:
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._contexts[device] = context
        return context

    def call(self, function: str, *arguments: object) -> None:
        """Call a function of the driver's, which answers with a status. Most want a `context`."""
        status = getattr(self._library, function)(*arguments)
        if status:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(name))
            said = (name.value or b"an unknown error").decode()
            raise CudaError(f"the CUDA driver answers {said} to {function}")


_making = threading.Lock()
_made: list[Driver] = []


def driver() -> Driver:
    """Return the process's driver, loaded when it is first asked for. Raises CudaError without one."""
    with _making:
        if not _made:
            _made.append(Driver())
        return _made[0]
