"""The program that reaches one GPU's memory for the server: `python …/devices/program.py <fd> <gpu>`.

The server loads no driver: one that faults would take it along. This process opens regions of CUDA shared
memory by their handles, and copies between them and a window of host memory that it shares with the server.
Each packet on the socket is a JSON order and gets one in return. It ends when the socket does.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import sys
from array import array
from pathlib import Path
from typing import Any, Final

_LARGEST: Final = 4096


class _Opened:
    """The allocations that are open: their addresses by the server's numbers for them."""

    def __init__(self, driver: Any, device: int, window: mmap.mmap) -> None:
        self._driver = driver
        self._device = device
        self._host = ctypes.addressof(ctypes.c_char.from_buffer(window))
        self._found: dict[int, int] = {}

    def open(self, number: int, handle: str) -> dict[str, object]:
        """Open an allocation, and tell its bytes."""
        address, size = self._driver.open_exported(self._device, bytes.fromhex(handle))
        self._found[number] = address
        return {"size": size}

    def close(self, number: int) -> dict[str, object]:
        """Let go of a region."""
        address = self._found.pop(number)
        self._driver.close_exported(self._device, address)
        return {}

    def read(self, number: int, at: int, nbytes: int) -> dict[str, object]:
        """Copy from a region to the window."""
        address = self._found[number]
        self._driver.copy_to_host(self._device, address + at, self._host, nbytes)
        return {}

    def write(self, number: int, at: int, nbytes: int) -> dict[str, object]:
        """Copy from the window to a region."""
        address = self._found[number]
        self._driver.copy_to_device(self._device, self._host, address + at, nbytes)
        return {}

    def usable(self) -> bool:
        """Whether the device answers still: some errors take the process's context with them."""
        try:
            self._driver.synchronize(self._device)
        except RuntimeError:  # as CudaError is
            return False
        return True


def main() -> None:
    """Carry out orders until the server's end of the socket closes."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = str(Path(__file__).parents[3])
    from engine.worker.devices import cuda

    window = _window(connection)
    opened: _Opened | None = None
    while packet := connection.recv(_LARGEST):
        order = json.loads(packet)
        try:
            if opened is None:
                opened = _Opened(cuda.driver(), int(sys.argv[2]), window)
            answer = getattr(opened, order.pop("do"))(**order)
        except cuda.CudaError as error:
            answer = {"refused": str(error)} if opened is None or opened.usable() else {"lost": str(error)}
        connection.send(json.dumps(answer).encode())


def _window(connection: socket.socket) -> mmap.mmap:
    """Return the memory that the server shares with this process; its descriptor is the first packet's."""
    packet, ancillary, _, _ = connection.recvmsg(_LARGEST, socket.CMSG_SPACE(4))
    descriptors = array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    window = mmap.mmap(descriptors[0], json.loads(packet)["window"])
    os.close(descriptors[0])
    return window


if __name__ == "__main__":
    main()
