"""An array in a GPU's memory, as backends take and give it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from actors.values.tensors import element_count
from engine.worker.devices import cuda

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.values.datatypes import DataType
    from actors.values.tensors import Array

CUDA = 2  # kDLCUDA, of DLPack's DLDeviceType
HOST_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost: what the CPU can read


class DeviceArray:
    """Elements in a GPU's memory, contiguous and in C order; `owner` keeps them alive."""

    __slots__ = ("address", "datatype", "device", "device_id", "owner", "shape")

    def __init__(
        self,
        owner: object,
        address: int,
        shape: Sequence[int],
        datatype: DataType,
        *,
        device_id: int,
        device: int = CUDA,
    ) -> None:
        self.owner = owner
        self.address = address
        self.shape = tuple(shape)
        self.datatype = datatype
        self.device = device  # DLDeviceType
        self.device_id = device_id  # as this process counts

    @property
    def nbytes(self) -> int:
        """How many bytes the elements take."""
        return element_count(self.shape) * self.datatype.size

    def to_host(self) -> Array:
        """Return a copy in host memory, once all pending writes to it are done; BF16 as `uint16`.

        Raises CudaError if the driver says no.
        """
        array = np.empty(self.shape, self.datatype.numpy)
        if not array.nbytes:
            return array
        if self.device in HOST_DEVICES:
            ctypes.memmove(array.ctypes.data, self.address, array.nbytes)
        else:
            cuda.driver().copy_to_host(self.device_id, self.address, array.ctypes.data, array.nbytes)
        return array

    def rows(self, start: int, end: int) -> DeviceArray:
        """Return rows `start` to `end` of it, in the same memory."""
        row = element_count(self.shape[1:]) * self.datatype.size
        return DeviceArray(
            self.owner,
            self.address + start * row,
            (end - start, *self.shape[1:]),
            self.datatype,
            device_id=self.device_id,
            device=self.device,
        )

    def copy_to(self, target: memoryview) -> None:
        """Copy the elements to host memory, `nbytes` of it. See `to_host`."""
        if not self.nbytes:
            return
        address = np.frombuffer(target, np.uint8).ctypes.data
        if self.device in HOST_DEVICES:
            ctypes.memmove(address, self.address, self.nbytes)
        else:
            cuda.driver().copy_to_host(self.device_id, self.address, address, self.nbytes)
