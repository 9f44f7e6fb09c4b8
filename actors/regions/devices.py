"""The seam to memory of GPUs. A machine with one brings `Devices`; all of its calls block, but `close`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from actors.values.regions import Region
from actors.values.tensors import Buffer


class DeviceError(Exception):
    """The driver has refused something. The text is the driver's."""


class DeviceMemory(ABC):
    """One allocation of a client that the server has opened."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Its size."""

    @abstractmethod
    def read(self, at: int, nbytes: int) -> Buffer:
        """Return a copy of `nbytes` from byte `at`. Raises DeviceError."""

    @abstractmethod
    def write(self, at: int, data: Buffer) -> None:
        """Copy `data` to byte `at`. Raises DeviceError."""

    @abstractmethod
    def close(self) -> None:
        """Close the handle, or begin to: it is called on the loop, and must not wait. Raises DeviceError."""


class Devices(ABC):
    """Opens what clients have allocated on the GPUs of this machine."""

    @abstractmethod
    def open(self, raw_handle: bytes, device_id: int) -> DeviceMemory:
        """Open the allocation with this `cudaIpcMemHandle_t`. Raises DeviceError."""


class DeviceRegion(Region):
    """One registered region of CUDA shared memory. It has no descriptor, so `fileno` is -1 all its life."""

    __slots__ = ("memory",)

    def __init__(
        self, name: str, byte_size: int, device_id: int, memory: DeviceMemory, handle: bytes = b""
    ) -> None:
        """`handle` is the client's, by which workers can open the memory as well."""
        super().__init__(name, "", 0, byte_size, -1)
        self.device_id = device_id
        self.handle = handle
        self.memory = memory
