"""A download that may be interrupted: a file with holes, and a journal of what has been written to it.

The journal's records follow the bytes that they tell of, so that a killed process claims no bytes that aren't
there. A machine that crashes may lose the bytes and keep the record. A journal is therefore good only until
the next boot.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_HASHED: Final = 1 << 20  # bytes read at a time
JOURNAL: Final = ".journal"


class Partial:
    """The bytes of one object as far as they are here, under an exclusive lock until closed.

    `descriptor` is the lock's, on the file at `path`, and is owned from here on. Threads may write at once.
    """

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        self._journal_path = path.with_name(path.name + JOURNAL)
        self._lock = threading.Lock()
        self._journal = -1
        self._extents: list[tuple[int, int]] = []
        try:
            self._begin(self._recall())
        except BaseException:
            self.close()
            raise

    @property
    def held(self) -> int:
        """How many bytes are here."""
        with self._lock:
            return sum(stop - start for start, stop in self._extents)

    def missing(self, segment: int) -> list[tuple[int, int]]:
        """Return the ranges that aren't here yet, none longer than `segment`."""
        with self._lock:
            edges = [*self._extents, (self.size, self.size)]
        found: list[tuple[int, int]] = []
        at = 0
        for start, stop in edges:
            found += [(begin, min(begin + segment, start)) for begin in range(at, start, segment)]
            at = stop
        return found

    def write(self, at: int, chunk: bytes) -> None:
        """Put `chunk` at offset `at`, then note it. Raises OSError."""
        view = memoryview(chunk)
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], at + done)
        stop = at + len(chunk)
        with self._lock:
            os.write(self._journal, f"{at} {stop}\n".encode())
            self._extents = _merged([*self._extents, (at, stop)])

    def restart(self) -> None:
        """Forget every byte."""
        with self._lock:
            os.close(self._journal)
            self._journal = -1
            self._begin([])

    def digests(self, *, md5: bool) -> tuple[str, str]:
        """Return the SHA-256 and, if asked for, the MD5 of the whole file, in hex."""
        sha256, other = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        at = 0
        while chunk := os.pread(self._descriptor, _HASHED, at):
            at += len(chunk)
            sha256.update(chunk)
            if md5:
                other.update(chunk)
        return sha256.hexdigest(), other.hexdigest() if md5 else ""

    def flush(self) -> None:
        """Make the bytes last, whatever happens to the machine."""
        os.fsync(self._descriptor)

    def make_read_only(self) -> None:
        """Allow no more writes to the file."""
        os.fchmod(self._descriptor, 0o444)

    def discard(self) -> None:
        """Remove both files; the lock stays."""
        self.forget_journal()
        self.path.unlink(missing_ok=True)

    def forget_journal(self) -> None:
        """Remove the journal: the file has become an object."""
        self._journal_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the lock up, and keep what is here for another time."""
        for descriptor in (self._journal, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._descriptor = -1

    def _begin(self, extents: list[tuple[int, int]]) -> None:
        """Write a new journal that begins with `extents`, in place of any other."""
        if not extents:
            os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, self.size)
        self._extents = extents
        aside = self._journal_path.with_name(self._journal_path.name + ".new")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._journal = os.open(aside, flags, 0o600)
        lines = [self._title(), *(f"{start} {stop}" for start, stop in extents)]
        os.write(self._journal, "".join(f"{line}\n" for line in lines).encode())
        aside.replace(self._journal_path)

    def _title(self) -> str:
        """Return what a journal must begin with to be about this file, of this size, since this boot."""
        boot = _BOOT.read_text().strip() if _BOOT.exists() else os.urandom(8).hex()
        return f"{boot} {os.fstat(self._descriptor).st_ino} {self.size}"

    def _recall(self) -> list[tuple[int, int]]:
        """Return what a journal of earlier says is here, if it can be believed."""
        try:
            title, *lines = self._journal_path.read_text("ascii", "replace").split("\n")
        except FileNotFoundError:
            return []
        if title != self._title() or os.fstat(self._descriptor).st_size != self.size:
            return []
        found: list[tuple[int, int]] = []
        for line in lines[:-1]:  # the last is empty, or was cut short
            start, _, stop = line.partition(" ")
            if not (start.isdecimal() and stop.isdecimal() and int(start) < int(stop) <= self.size):
                return []
            found.append((int(start), int(stop)))
        return _merged(found)


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(extents):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged
