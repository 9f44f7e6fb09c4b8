"""The file of an audit log: appended to, chained, synced, rotated.

It blocks, and belongs to one thread at a time.

Several processes may append to one file: the server, and `tritium key`. Each holds a lock on the file while
it writes, and looks first whether the name leads to another file by now and what the last line is. So a file
that was moved away, by another process or by logrotate, is noticed without being told.

An action is begun only if there is room for its outcome as well: blocks behind the end of the file are taken
beforehand (fallocate(2) with FALLOC_FL_KEEP_SIZE). File systems that can't do that are written to without.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from engine.audit.records import LONGEST, End, Entry, Record, chained, digest_of, parse

MODE: Final = 0o600
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE
_STEP: Final = 64 * 1024  # bytes for which room is made at once
_TAIL: Final = 4 * LONGEST  # bytes in which the last whole line is looked for
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_CANNOT: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
_TRIES: Final = 500  # to lock a file that another process is writing to
_PAUSE: Final = 0.01  # seconds between them
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class AuditUnusable(Exception):
    """The file can't be an audit log, with a message for the operator: what is wrong, and what would work."""


class _Unfit(OSError):
    """What was opened is none. Its text goes on behind the name of the file."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, f"the file {text}")
        self.text = text


def _libc_fallocate() -> Callable[[int, int], None]:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def allocate(descriptor: int, size: int) -> None:
        if call(descriptor, _KEEP_SIZE, 0, size):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return allocate


class AuditFile:
    """An audit log at `path`.

    It is rotated before it grows over `size` bytes, and `keep` older ones are kept.

    `keep` 0: all of them. The file is made or opened at the first use.
    """

    def __init__(self, path: str, *, size: int, keep: int) -> None:
        self.path = path
        self._limit = size
        self._keep = keep
        self._descriptor = -1
        self._size = -1  # what the file had when this process last looked
        self._end = End()
        self._torn = False  # its last line has no end
        self._roomy = 0  # bytes up to which it has its blocks
        self._allocate: Callable[[int, int], None] | None = _libc_fallocate()

    def check(self) -> None:
        """Open the file.

        Raises AuditUnusable where it can't be an audit log; a full disk is no such reason.
        """
        try:
            with _Held(self):
                pass
        except OSError as error:
            if error.errno not in _FULL:
                raise AuditUnusable(_why_unusable(self.path, error)) from error

    def append(self, records: Sequence[Record], *, room: int | None = None) -> None:
        """Write `records` behind the others, and wait until the disk has them. Raises OSError, then for all.

        With `room`, that many bytes are kept for what comes later. Without it, what was kept is used.
        """
        if not records:
            return
        with _Held(self):
            lines, end = chained(records, self._end)
            if room is not None:
                if self._size and self._size + len(lines) > self._limit:
                    self._rotate(len(lines) + room)
                self._make_room(self._descriptor, self._size, len(lines) + room)
            self._write(b"\n" + lines if self._torn else lines)
            self._end = end
            os.fdatasync(self._descriptor)

    def close(self, *, trim: bool = True) -> None:
        """Let go of the file and, with `trim`, of the room that is kept in it for any process.

        The room stays while another process writes, which may need it.
        """
        if self._descriptor >= 0:
            if trim:
                # A file with the attribute `append only` keeps it as well.
                with suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)
            os.close(self._descriptor)
            self._descriptor = -1

    # Under the lock

    def open(self) -> None:
        """Have the file that the name leads to open and locked, and know its end. Raises OSError."""
        while True:
            if self._descriptor < 0:
                self._descriptor = _opened(self.path)
                self._size = -1
                self._roomy = 0
            _lock(self._descriptor)
            here = os.fstat(self._descriptor)
            # Also of a file that was moved away: another process may have written to it until then.
            if here.st_size != self._size:
                self._catch_up(here.st_size)
            if (here.st_dev, here.st_ino) == _inode_at(self.path):
                break
            self.close()

    def release(self) -> None:
        """Let others write."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _catch_up(self, size: int) -> None:
        """Find out the end of a log that others have written to."""
        entry, torn = _last_of(self._descriptor, size)
        if entry is None and not self._end.number:  # new, or just rotated by another hand
            entry = _last_of_path(f"{self.path}.1")
        if entry is not None:
            self._end = End(entry.number, digest_of(entry.line))
        self._size, self._torn, self._roomy = size, torn, 0

    def _write(self, content: bytes) -> None:
        written = os.write(self._descriptor, content)
        self._size += written
        self._torn = written < len(content)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _make_room(self, descriptor: int, size: int, more: int) -> None:
        """Have blocks for `more` bytes behind the first `size`. Raises OSError."""
        wanted = size + more
        largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)  # which fallocate(2) does not look at here
        if largest != resource.RLIM_INFINITY and wanted > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if wanted <= self._roomy or self._allocate is None:
            return
        try:
            try:
                self._allocate(descriptor, wanted + _STEP)
                self._roomy = wanted + _STEP
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._allocate(descriptor, wanted)
                self._roomy = wanted
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            self._allocate = None

    def _rotate(self, more: int) -> None:
        """Begin another file with room for `more` bytes. Where there is none, the old file goes on."""
        path, fresh = self.path, f"{self.path}.new"
        with suppress(FileNotFoundError):  # another process began to rotate, and ended
            os.unlink(fresh)
        descriptor, roomy = -1, self._roomy
        try:
            descriptor = os.open(fresh, _FLAGS | os.O_CREAT | os.O_EXCL, MODE)
            self._roomy = 0
            self._make_room(descriptor, 0, more)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _shift(path, self._keep)
            os.replace(fresh, path)
        except OSError:
            self._roomy = roomy
            if descriptor >= 0:
                os.close(descriptor)
                with suppress(OSError):
                    os.unlink(fresh)
            return
        self.close()
        self._descriptor, self._size, self._torn = descriptor, 0, False
        _sync_folder(path)


class _Held:
    """The file open and locked around a block."""

    def __init__(self, file: AuditFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        try:
            self._file.open()
        except BaseException:
            self._file.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._file.release()


def _lock(descriptor: int) -> None:
    """Lock a file. Raises OSError where another process does not let go of it: its wait can't be ended."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
        else:
            return
    raise OSError(errno.EAGAIN, "another process holds its lock")


def _opened(path: str) -> int:
    """Return a descriptor of the file at `path`, made if it is not there.

    Raises OSError, also for a file that can't be an audit log: another may take its place at any time.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        descriptor = os.open(path, _FLAGS | os.O_CREAT, MODE)
        _sync_folder(path)
    found = os.fstat(descriptor)
    complaint = ""
    if not stat.S_ISREG(found.st_mode):
        complaint = "is no regular file: name a file on a disk"
    elif found.st_mode & _OTHERS_WRITE:
        complaint = "may be written by other users: `chmod go-w` it"
    if complaint:
        os.close(descriptor)
        raise _Unfit(complaint)
    return descriptor


def _why_unusable(path: str, error: OSError) -> str:
    if isinstance(error, _Unfit):
        return f"the audit log '{path}' {error.text}"
    if error.errno == errno.ELOOP:
        return f"the audit log '{path}' is a symbolic link, and links are not followed: name the file itself"
    folder = os.path.dirname(os.path.abspath(path))
    if error.errno == errno.ENOENT:
        return f"the audit log '{path}' can't be made: there is no directory '{folder}': make it first"
    return f"the audit log '{path}' can't be opened: {error.strerror}"


def _inode_at(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _last_of(descriptor: int, size: int) -> tuple[Entry | None, bool]:
    """Return the last record of a file of `size` bytes, and whether its last line has no end."""
    start = max(0, size - _TAIL)
    content = os.pread(descriptor, size - start, start)
    for line in reversed(content.split(b"\n")):
        entry = parse(line) if line else None
        if entry is not None:
            return entry, not content.endswith(b"\n")
    return None, bool(content) and not content.endswith(b"\n")


def _last_of_path(path: str) -> Entry | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _last_of(descriptor, os.fstat(descriptor).st_size)[0]
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _shift(path: str, keep: int) -> None:
    """Give the file a second name, `path.1`, and the older ones the next numbers. Raises OSError.

    The name `path` leads to a file at every moment, so that no other process makes one meanwhile.
    """
    here = _inode_at(path)
    if here == _inode_at(f"{path}.1"):  # a process ended between the two names
        os.unlink(f"{path}.1")
    last = 1
    while os.path.lexists(f"{path}.{last}") and last != keep:
        last += 1
    for number in range(last, 1, -1):
        os.replace(f"{path}.{number - 1}", f"{path}.{number}")
    if keep == 1:
        with suppress(FileNotFoundError):
            os.unlink(f"{path}.1")
    try:
        os.link(path, f"{path}.1", follow_symlinks=False)
    except OSError:  # a file system without links
        os.replace(path, f"{path}.1")


def _sync_folder(path: str) -> None:
    """Have the names in the folder of `path` outlive a crash of the machine, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
