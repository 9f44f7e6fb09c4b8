"""The files of trusted keys, read again when they change, so that a revoked key counts no more at once."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.provenance.trust import KeysUnusable, Trust

_LARGEST: Final = 1 << 20  # bytes of one file


class TrustedFiles:
    """What files of trusted keys say now. Any thread may ask.

    A file that can't be read, or says something else, makes all of them unusable: what it revokes would
    count again otherwise. What is no regular file, such as /dev/fd/3, is read once.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._paths = [Path(path) for path in paths]
        self._lock = threading.Lock()
        self._texts: dict[Path, tuple[tuple[int, ...], str]] = {}
        self._trust: Trust | None = None

    def trust(self) -> Trust:
        """Return the keys that count now. Raises KeysUnusable. It reads files: not on the event loop."""
        with self._lock:
            changed = [path for path in self._paths if self._reread(path)]
            if changed or self._trust is None:
                self._trust = None
                trust = Trust()
                for path in self._paths:
                    trust = trust.with_file(str(path), self._texts[path][1])
                if not trust.usable:
                    raise KeysUnusable(f"{', '.join(map(str, self._paths))}: no key there counts")
                self._trust = trust
            return self._trust

    def _reread(self, path: Path) -> bool:
        """Read a file if it is not as it was; return whether that was so."""
        known = self._texts.get(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if known is not None and (known[0] == _identity(status) or not stat.S_ISREG(status.st_mode)):
                    return False
                with open(fd, "rb", closefd=False) as file:
                    data = file.read(_LARGEST + 1)
            finally:
                os.close(fd)
        except OSError as error:
            self._trust = None
            raise KeysUnusable(f"the trusted keys {path} can't be read: {error.strerror or error}") from error
        if len(data) > _LARGEST:
            raise KeysUnusable(f"the trusted keys {path} have more than {_LARGEST} bytes")
        try:
            self._texts[path] = (_identity(status), data.decode("utf-8"))
        except UnicodeDecodeError:
            raise KeysUnusable(f"the trusted keys {path} are no UTF-8 text") from None
        return True


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
