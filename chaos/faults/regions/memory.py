"""An object in shared memory as one client has it, and what else is open for it.

It is read and written by its descriptor, as the server does it: a page that another client has cut off would
end this process, too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

FOLDER: Final = Path("/dev/shm")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The object with this key, open. As a context manager it is closed and unlinked after the block."""

    def __init__(self, key: str, nbytes: int, *, there: bool = False) -> None:
        """Make an object of `nbytes` zeros, or open one that is `there`. Raises OSError."""
        self.key = key
        self.nbytes = nbytes
        self.path = FOLDER / key.lstrip("/")
        made = 0 if there else os.O_CREAT | os.O_EXCL
        self._fileno = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | made, 0o600)
        if not there:
            self.resize(nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self.unlink()

    def close(self) -> None:
        """Let go of it, and leave its name."""
        os.close(self._fileno)

    @property
    def size(self) -> int:
        """Its size now, in bytes."""
        return os.fstat(self._fileno).st_size

    def resize(self, nbytes: int) -> None:
        """Cut it off, or make it longer by zeros."""
        os.ftruncate(self._fileno, nbytes)

    def unlink(self) -> None:
        """Take its name away, if it has one."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def put(self, at: int, numbers: npt.NDArray[np.int32]) -> None:
        """Write numbers at byte `at`."""
        os.pwrite(self._fileno, numbers.tobytes(), at)

    def take(self, at: int, rows: int) -> npt.NDArray[np.int32]:
        """Return so many numbers from byte `at` on; 0 for those that are not there."""
        data = os.pread(self._fileno, 4 * rows, at)
        return np.frombuffer(data.ljust(4 * rows, b"\0"), np.int32)


def held_open(pid: int, names: str) -> list[str]:
    """Return what a process has open in shared memory whose name begins with `names`, unlinked or not."""
    links: list[Any] = []
    for entry in Path("/proc", str(pid), "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(entry))
    return [each for each in links if each.startswith(str(FOLDER / names))]
