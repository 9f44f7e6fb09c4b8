"""Triton's trace file: finished traces as a JSON array (contract, observability.md section 3.2).

It blocks, and belongs to one thread at a time.

Traces of a setting without a log frequency and without a count go to `<file>` as they end, and that is a
complete array after each write: the `]` at its end is written anew. Other traces wait until there are as many
as belong into one of `<file>.0`, `<file>.1` and so on; those that are left when their setting ends go to the
next of these, or to `<file>` if the setting has no log frequency. What waits is kept in memory up to
`IN_MEMORY` bytes, and beyond that in a file without a name.

A file that can't be written costs the traces that were to go there. They are counted, and the first loss is
logged. What was in the file before stays as it was.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from actors.tracing.policy.sampling import Sampler
from actors.tracing.policy.writing import objects_of
from actors.tracing.sinks import TraceSink
from actors.values.events import Event, Log
from actors.values.tracing.traces import FinishedTrace

IN_MEMORY: Final = 4 * 1024 * 1024

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_MODE: Final = 0o666  # as others make files: the umask says who may read them
_END: Final = b"]"
_AT_ONCE: Final = 256 * 1024  # bytes


class _Waiting:
    """Traces of one setting that wait for their file."""

    __slots__ = ("count", "text")

    def __init__(self) -> None:
        self.count = 0
        self.text = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115  closed by `TraceFiles`

    def add(self, text: bytes) -> None:
        if self.count:
            self.text.write(b",")
        self.text.write(text)
        self.count += 1


class _Array:
    """A file with a JSON array that grows."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._descriptor = os.open(path, _FLAGS, _MODE)
        self._seekable = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._size = 0  # without the bracket at the end

    def add(self, elements: IO[bytes]) -> None:
        """Append what is in a file: elements with commas between.

        Raises OSError, and then the array is what it was.
        """
        at = self._size
        part = (b"," if at else b"[") + elements.read(_AT_ONCE)
        try:
            while part:
                following = elements.read(_AT_ONCE)
                last = _END if self._seekable and not following else b""
                self._write(part + last, at)
                at += len(part)
                part = following
        except OSError:
            if self._seekable:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                    if self._size:
                        self._write(_END, self._size)
            raise
        self._size = at

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            if self._seekable:
                count = os.pwrite(self._descriptor, view, at)
            else:
                count = os.write(self._descriptor, view)
            view, at = view[count:], at + count

    def close(self) -> None:
        """End the array."""
        try:
            if not self._seekable and self._size:
                self._write(_END, self._size)
        finally:
            os.close(self._descriptor)


class TraceFiles(TraceSink):
    """Writes the traces of all settings, which have one file name in common."""

    def __init__(self, path: str, log: Log) -> None:
        self.lost = 0
        self._path = path
        self._log = log
        self._array: _Array | None = None
        self._index = 0  # of the next numbered file
        self._waiting: dict[Sampler, _Waiting] = {}
        self._trouble = ""

    def write(self, traces: Sequence[FinishedTrace]) -> None:
        """See `TraceSink.write`."""
        for trace in traces:
            sampler = trace.setting
            assert isinstance(sampler, Sampler)
            text = ",".join(objects_of(trace)).encode()
            if sampler.setting.log_frequency == 0 and sampler.setting.count < 0:
                self._append(BytesIO(text), 1)
            else:
                self._keep(sampler, text)
            sampler.collected += 1
        for sampler in [each for each in self._waiting if each.settled]:
            if sampler.left == 0:
                self._save(sampler, numbered=True)
            elif sampler.retired:
                self._save(sampler, numbered=sampler.setting.log_frequency > 0)

    def close(self) -> None:
        """See `TraceSink.close`."""
        for sampler in list(self._waiting):
            self._save(sampler, numbered=sampler.setting.log_frequency > 0)
        array, self._array = self._array, None
        if array is not None:
            try:
                array.close()
            except OSError as error:
                self._failed(error, 0)

    def _keep(self, sampler: Sampler, text: bytes) -> None:
        waiting = self._waiting.get(sampler)
        if waiting is None:
            waiting = self._waiting[sampler] = _Waiting()
        try:
            waiting.add(text)
        except OSError as error:  # of the file without a name
            del self._waiting[sampler]
            self._failed(error, waiting.count + 1)
            with suppress(OSError):
                waiting.text.close()
            return
        if waiting.count == sampler.setting.log_frequency:
            self._save(sampler, numbered=True)

    def _save(self, sampler: Sampler, *, numbered: bool) -> None:
        """Write the traces of a setting that wait: into the next numbered file, or behind the others."""
        waiting = self._waiting.pop(sampler)
        waiting.text.seek(0)
        if numbered:
            self._save_numbered(waiting)
        else:
            self._append(waiting.text, waiting.count)
        waiting.text.close()

    def _save_numbered(self, waiting: _Waiting) -> None:
        path = Path(f"{self._path}.{self._index}")
        self._index += 1
        try:
            with path.open("wb") as file:
                file.write(b"[")
                shutil.copyfileobj(waiting.text, file)
                file.write(_END)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            self._failed(error, waiting.count)
        else:
            self._went_well()

    def _append(self, elements: IO[bytes], count: int) -> None:
        try:
            if self._array is None:
                self._array = _Array(self._path)
            self._array.add(elements)
        except OSError as error:
            self._failed(error, count)
        else:
            self._went_well()

    def _failed(self, error: OSError, count: int) -> None:
        self.lost += count
        trouble = error.strerror or str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            self._log(Event.TRACES_LOST, level="error", file=self._path, error=trouble)

    def _went_well(self) -> None:
        self._trouble = ""
