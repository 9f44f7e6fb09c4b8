"""Writes an auth file: one edit after another, each whole or not at all.

The lock is one on the folder, so that nothing is left behind and the file itself may be exchanged. A new
version is written beside the file, with its mode, owner and access list, and renamed over it. Of a symbolic
link, the file that it leads to is exchanged.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Final

from engine.identity.editing import HEAD
from engine.identity.loading import read_text

_ACL: Final = "system.posix_acl_access"
_NO_ACL: Final = frozenset({errno.ENODATA, errno.ENOTSUP})

_READ_ONLY: Final = (
    "it lies on a read-only file system, as Kubernetes' secrets and config maps do: edit a copy, and "
    "update the secret from that"
)
_REASONS: Final = {
    errno.EROFS: _READ_ONLY,
    errno.EBUSY: "it is mounted by itself, so it can't be exchanged: edit it where it comes from",
    errno.EBADF: "this file system has no locks on folders: edit a copy on another one",
}


class NotStored(Exception):
    """The file can't be written. The message says why, and what would work."""


def edit_file(path: str, edit: Callable[[str], str], *, create: bool = False) -> bool:
    """Give the auth file at `path` the text that `edit` makes of its own, under a lock.

    With `create`, a file that is not there is made, with mode 0600. Returns whether it was. Whatever `edit`
    raises leaves the file as it was. Raises NotStored, and AuthFileError if the file can't be read.
    """
    target = os.path.realpath(path)
    with _told(path), _locked(os.path.dirname(target)):
        new = create and not os.path.exists(target)
        text = "" if new else read_text(target)
        edited = edit(text or HEAD if create else text)
        if edited != text:
            _exchange(target, edited, like=None if new else os.stat(target))
    return new


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Turn errors of the operating system into texts for the operator."""
    try:
        yield
    except OSError as error:
        told = _REASONS.get(error.errno or 0) or f"{error.strerror}: {error.filename or path}"
        raise NotStored(f"{path}: can't be written: {told}") from error


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Keep others that edit files of this folder waiting. The kernel ends the lock with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(target: str, text: str, like: os.stat_result | None) -> None:
    """Write `text` beside `target` with the mode and owner of `like`, and put it in the place of `target`."""
    folder, name = os.path.split(target)
    beside = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            if like is not None:
                _resemble(file.fileno(), target, like)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


def _resemble(descriptor: int, target: str, like: os.stat_result) -> None:
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.fchown(descriptor, like.st_uid, like.st_gid)
        except PermissionError as error:
            raise NotStored(
                f"{target}: it belongs to user {like.st_uid} and group {like.st_gid}, which the new version "
                "has to keep: run the command as that user or as root"
            ) from error
    os.fchmod(descriptor, like.st_mode & 0o7777)
    try:
        os.setxattr(descriptor, _ACL, os.getxattr(target, _ACL))
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
