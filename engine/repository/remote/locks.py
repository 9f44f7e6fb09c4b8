"""Locks between processes that share a cache.

`flock` binds to an open file: it counts between threads too, and ends with the process whatever ends it. The
exclusive holder of a lock file may remove or rename it. A process that waited for it meanwhile holds nothing,
and starts over.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def take(path: Path, *, exclusive: bool, wait: bool) -> int | None:
    """Return a descriptor that holds the lock on the file at `path`, made if need be.

    Closing it gives the lock up. Without `wait`, returns None if another holder has it. Raises OSError.
    """
    operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, operation)
            if _is(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def make_exclusive(descriptor: int) -> bool:
    """Turn a shared lock into an exclusive one.

    Returns False if others share it. Then the lock may be lost: close it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
