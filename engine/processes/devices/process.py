"""One GPU's memory, as the server reaches it: by a process of its own, which is started when it is needed.

Everything here waits; call it on threads only, any number at once. If the process dies, because the driver or
the device failed, the call under way fails, and the next one starts another, which opens all regions again by
their handles.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from actors.wire.arena import Segment
from engine.processes.family import Family
from engine.processes.programs import start

PROGRAM: Final = Path(__file__).parent / "program.py"
WINDOW: Final = 8 * 1024 * 1024
"""Bytes that are copied in one order."""

PATIENCE: Final = 30.0
"""Seconds for one order: a device that takes longer to copy so little is lost."""

_LARGEST: Final = 4096


class DeviceRefused(Exception):
    """The driver refuses a handle, or does not reach what it stands for."""


class DeviceLost(Exception):
    """The process, its driver or its device has failed; the next call tries anew."""


class DeviceProcess:
    """The regions of CUDA shared memory on the GPU that workers know as `device`."""

    def __init__(self, device: int, *, environ: Mapping[str, str], ordinal: int | None = None) -> None:
        """`ordinal` is its number as a process with `environ` counts; None: the same."""
        self._device = device
        self._ordinal = device if ordinal is None else ordinal
        self._environ = environ
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._known: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._family: Family | None = None
        self._line: socket.socket | None = None
        self._window: Segment | None = None

    @property
    def pid(self) -> int | None:
        """The process that has the device open, if there is one."""
        return None if self._process is None else self._process.pid

    def open(self, handle: bytes) -> tuple[int, int]:
        """Open an allocation by its handle; return a number for it, and its bytes.

        Raises DeviceRefused and DeviceLost.
        """
        with self._lock:
            number = next(self._numbers)
            self._known[number] = handle
            try:
                return number, self._opened(number)
            except BaseException:
                del self._known[number]
                if not self._known:
                    self._end()
                raise

    def close(self, number: int) -> None:
        """Let go of an allocation. The last one ends the process, which takes device memory itself.

        Raises DeviceRefused where the driver can't, and the region is closed all the same.
        """
        with self._lock:
            del self._known[number]
            try:
                if number in self._open:
                    del self._open[number]
                    self._ask(do="close", number=number)
            except DeviceLost:
                return  # it went with the process
            finally:
                if not self._known:
                    self._end()

    def read_into(self, number: int, at: int, view: memoryview) -> None:
        """Fill `view` from byte `at` of a region. Raises DeviceRefused and DeviceLost."""
        with self._lock:
            for start in range(0, len(view), WINDOW):
                piece = view[start : start + WINDOW]
                self._opened(number)
                self._ask(do="read", number=number, at=at + start, nbytes=len(piece))
                assert self._window is not None
                piece[:] = self._window.view[: len(piece)]

    def write(self, number: int, at: int, data: memoryview) -> None:
        """Write `data` to byte `at` of a region. Raises DeviceRefused and DeviceLost."""
        with self._lock:
            for start in range(0, len(data), WINDOW):
                piece = data[start : start + WINDOW]
                self._opened(number)
                assert self._window is not None
                self._window.view[: len(piece)] = piece
                self._ask(do="write", number=number, at=at + start, nbytes=len(piece))

    def end(self) -> None:
        """End the process. Idempotent."""
        with self._lock:
            self._end()

    def _opened(self, number: int) -> int:
        """Have an allocation open; return its bytes."""
        if number not in self._known:
            raise DeviceRefused("it has been unregistered")
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._start()
        if number not in self._open:
            told = self._ask(do="open", number=number, handle=self._known[number].hex())
            self._open[number] = int(told["size"])
        return self._open[number]

    def _start(self) -> None:
        try:
            window = self._window = Segment.create(WINDOW, "tritium-device")
            self._process, self._family, self._line = start(
                PROGRAM, str(self._ordinal), environ=self._environ, kind=socket.SOCK_SEQPACKET
            )
            self._line.settimeout(PATIENCE)
            socket.send_fds(self._line, [json.dumps({"window": WINDOW}).encode()], [window.fd])
            window.close_fd()
        except OSError as error:
            self._end()
            raise DeviceLost(f"GPU {self._device} can't be reached: {error.strerror or error}") from error

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._line is not None
        try:
            self._line.send(json.dumps(order).encode())
            packet = self._line.recv(_LARGEST)
        except OSError as error:
            self._end()
            raise DeviceLost(
                f"GPU {self._device} did not answer within {PATIENCE:g} s"
                if isinstance(error, TimeoutError)
                else f"the process that reaches GPU {self._device} has ended"
            ) from error
        if not packet:
            self._end()
            raise DeviceLost(f"the process that reaches GPU {self._device} has ended")
        answer = json.loads(packet)
        if "lost" in answer:
            self._end()
            raise DeviceLost(f"GPU {self._device} is lost to the process that reaches it: {answer['lost']}")
        if "refused" in answer:
            raise DeviceRefused(str(answer["refused"]))
        return dict(answer)

    def _end(self) -> None:
        process, self._process = self._process, None
        if self._line is not None:
            self._line.close()
            self._line = None
        if process is not None and self._family is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            self._family.kill()
            process.wait()
            self._family.end()
        self._open.clear()
        if self._window is not None:
            self._window.close_fd()
            self._window.close()
            self._window = None
