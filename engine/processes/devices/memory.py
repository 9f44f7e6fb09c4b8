"""Device memory of clients, as `actors.regions` asks for it: one process for each GPU that a region is on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from actors.regions.devices import DeviceError, DeviceMemory, Devices
from actors.serving.policy.gpus.visible import needs_names
from actors.values.hardware.gpus import Gpu
from actors.values.tensors import Buffer
from engine.processes.devices.process import DeviceLost, DeviceProcess, DeviceRefused
from engine.processes.gpus.nvml import VISIBLE


class GpuDevices(Devices):
    """The GPUs of this machine, by the numbers that workers know them by. Its calls block.

    `CUDA_VISIBLE_DEVICES` of the server numbers them for its workers, and for this.
    """

    def __init__(self, gpus: Sequence[Gpu], *, environ: Mapping[str, str]) -> None:
        """`gpus` are all of them."""
        self._gpus = gpus
        self._environ = environ
        self._lock = threading.Lock()
        self._processes: dict[int, DeviceProcess] = {}

    def open(self, raw_handle: bytes, device_id: int) -> DeviceMemory:
        """See `Devices`."""
        count = len(self._gpus)
        if not 0 <= device_id < count:  # a process for each number that clients make up has no end
            raise DeviceError(f"there is no GPU {device_id}; this server has {count}, counted from 0")
        with self._lock:
            process = self._processes.get(device_id)
            if process is None:
                process = self._processes[device_id] = self._start(device_id)
        try:
            number, nbytes = process.open(raw_handle)
        except (DeviceRefused, DeviceLost) as error:
            raise DeviceError(str(error)) from error
        return _Allocation(process, number, nbytes)

    def _start(self, device_id: int) -> DeviceProcess:
        if not needs_names(self._gpus):
            return DeviceProcess(device_id, environ=self._environ)
        environ = {**self._environ, VISIBLE: self._gpus[device_id].name}
        return DeviceProcess(device_id, environ=environ, ordinal=0)


class _Allocation(DeviceMemory):
    def __init__(self, process: DeviceProcess, number: int, nbytes: int) -> None:
        self._process = process
        self._number = number
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        """See `DeviceMemory`."""
        return self._nbytes

    def read(self, at: int, nbytes: int) -> Buffer:
        """See `DeviceMemory`."""
        found = np.empty(nbytes, np.uint8).data
        try:
            self._process.read_into(self._number, at, found)
        except (DeviceRefused, DeviceLost) as error:
            raise DeviceError(str(error)) from error
        return found

    def write(self, at: int, data: Buffer) -> None:
        """See `DeviceMemory`."""
        try:
            self._process.write(self._number, at, memoryview(data))
        except (DeviceRefused, DeviceLost) as error:
            raise DeviceError(str(error)) from error

    def close(self) -> None:
        """See `DeviceMemory`. Returns at once: a thread waits for the driver."""
        threading.Thread(target=self._close, name="device-close", daemon=True).start()

    def _close(self) -> None:
        try:
            self._process.close(self._number)
        except DeviceRefused:
            return  # the server counts the region as gone all the same
