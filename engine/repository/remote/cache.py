"""What was downloaded, by content, shared by all models, repositories and processes of a directory.

    objects/<sha256>            the bytes, read-only; hard-linked into the model directories that use them
    records/<sha256>            size, modification time and inode when the bytes were last known to be right
    index/<identity>            which bytes an object of a storage was (`RemoteObject.identity`)
    partial/<identity>          a download under way, locked by its downloader (`partials`)
    staging/, models/           directories under construction and in use (`trees`)
    adopting                    locked while a download becomes an object

Nothing is changed where it lies. Files are written aside and renamed, so that a reader sees all of one or
nothing. A worker with a user id of its own may pass on to its model below `models`, where the server gives
such ids, and list nothing else. A model that writes to its own files writes to the cache. An object that was
altered in that way no longer fits its record. It is read again, and thrown away if it is not what its name
says. An object is in use while a second name links to it. The others are dropped, longest unused first, when
the whole grows beyond its bound. A record's own modification time is when its object was last used.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from actors.values.errors import InvalidArgument
from engine.processes import users
from engine.repository.remote.locks import take
from engine.repository.remote.partials import JOURNAL, Partial

DEFAULT_LIMIT: Final = 64 << 30  # bytes

_SHA256_DIGITS: Final = 64
_BLOCK: Final = 512  # bytes; the unit of st_blocks whatever the file system's own
MODELS: Final = "models"
_FOLDERS: Final = ("objects", "records", "index", "partial", "staging", MODELS)


def make_private(root: Path, folders: Iterable[str]) -> None:
    """Make a directory for models, and `folders` in it.

    Raises InvalidArgument if others could write to it, OSError.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The owner of a link may lead it elsewhere at any time.
    found, link = root.stat(), root.lstat()
    own = {found.st_uid, link.st_uid} <= {os.geteuid(), 0}
    if not own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidArgument(
            f"the model cache {root} can be written by others than this server's user; "
            f"models are code: give it a directory of its own, mode 700"
        )
    for folder in folders:
        (root / folder).mkdir(mode=0o700, exist_ok=True)


class Cache:
    """The objects of a cache directory, which may hold `limit` bytes beside what is in use.

    Any thread may call.
    """

    def __init__(self, root: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self.root = root
        self._limit = limit

    def prepare(self) -> None:
        """Make the directory. Raises InvalidArgument if others could write to it, OSError."""
        make_private(self.root, _FOLDERS)
        for folder in (self.root, self.root / MODELS):
            users.let_through(folder)

    def find(self, identity: str, size: int) -> str | None:
        """Return the digest of the bytes that a storage's object was, if they are here and still right."""
        digest = self._read("index", identity).strip()
        if not digest:
            return None
        if not _is_digest(digest) or not self._is_right(digest, size):
            self.forget(identity)
            return None
        return digest

    def forget(self, identity: str) -> None:
        """Forget which bytes an object was; they stay for those that have them by another name."""
        (self.root / "index" / identity).unlink(missing_ok=True)

    def place(self, digest: str, target: Path) -> bool:
        """Put the object at `target`, where nothing is yet; False if it has been dropped meanwhile."""
        try:
            _link_or_copy(self._object(digest), target)
        except FileNotFoundError:
            return False
        self._used(digest)
        return True

    def partial(self, identity: str, size: int) -> Partial | None:
        """Return the download of an object, locked, as far as it came; None while another has the lock.

        If another has just finished it, `find` knows the object from now on.
        """
        path = self.root / "partial" / identity
        descriptor = take(path, exclusive=True, wait=False)
        if descriptor is None:
            return None
        partial = Partial(path, descriptor, size)
        try:
            with self._adopting():  # the path's former holder has told what became of it
                return partial
        except BaseException:
            partial.close()
            raise

    def adopt(self, partial: Partial, identity: str, digest: str, target: Path) -> None:
        """Make a complete download of a known digest an object, and link it to the unused path `target`."""
        if self._is_right(digest, partial.size) and self.place(digest, target):
            self._write("index", identity, digest)
            partial.discard()
        else:
            partial.flush()
            _link_or_copy(partial.path, target)  # before it can be dropped as unused
            with self._adopting():
                partial.forget_journal()  # before the path is free for another's
                partial.path.replace(self._object(digest))
                partial.make_read_only()
                self._record(digest)
                self._write("index", identity, digest)

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        lock = take(self.root / "adopting", exclusive=True, wait=True)
        assert lock is not None  # it was waited for
        try:
            yield
        finally:
            os.close(lock)

    def evict(self) -> None:
        """Drop what is unused, longest unused first, until the bound is kept."""
        unused = sorted([*self._unused_objects(), *self._partials()])
        total = sum(size for _, size, _ in unused)
        dropped = False
        for _, size, path in unused:
            if total <= self._limit:
                break
            drop = self._drop_object if path.parent.name == "objects" else self._drop_partial
            if drop(path):
                dropped = True
                total -= size
        if dropped:
            self._prune()

    def _unused_objects(self) -> Iterator[tuple[int, int, Path]]:
        """Yield when it was last used, its size and its path, of every object that nothing links to."""
        for path, found in self._files("objects"):
            if found.st_nlink == 1:
                yield self._last_used(path.name), found.st_size, path

    def _partials(self) -> Iterator[tuple[int, int, Path]]:
        """Yield the same of every download, with what it takes on the disk: holes take nothing."""
        for path, found in self._files("partial"):
            if JOURNAL not in path.name:
                yield found.st_mtime_ns, found.st_blocks * _BLOCK, path

    def _files(self, folder: str) -> Iterator[tuple[Path, os.stat_result]]:
        for path in (self.root / folder).iterdir():
            with suppress(FileNotFoundError):  # dropped by another process
                yield path, path.lstat()

    def _last_used(self, digest: str) -> int:
        try:
            return (self.root / "records" / digest).stat().st_mtime_ns
        except FileNotFoundError:  # a crash came between the object and its record
            return 0

    def _drop_object(self, path: Path) -> bool:
        # A process that links to it between the look and the removal keeps the bytes. A later one downloads
        # them again.
        path.unlink(missing_ok=True)
        (self.root / "records" / path.name).unlink(missing_ok=True)
        return True

    def _drop_partial(self, path: Path) -> bool:
        descriptor = take(path, exclusive=True, wait=False)
        if descriptor is None:
            return False
        try:
            path.with_name(path.name + JOURNAL).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
        return True

    def _prune(self) -> None:
        """Remove what the index says of bytes that are gone."""
        for entry in os.scandir(self.root / "index"):
            try:
                digest = Path(entry.path).read_text("ascii", "replace").strip()
            except OSError:
                continue
            if not _is_digest(digest) or not self._object(digest).exists():
                Path(entry.path).unlink(missing_ok=True)

    def _is_right(self, digest: str, size: int) -> bool:
        """Return whether the object is here as its name says.

        It is read only if it differs from when it was last seen.
        """
        path = self._object(digest)
        try:
            status = path.stat(follow_symlinks=False)
            if status.st_size == size and self._read("records", digest) == _seal_of(status):
                return True
            if status.st_size == size and _digest_of(path) == digest:
                self._record(digest)
                return True
        except FileNotFoundError:
            return False
        self._drop_object(path)
        return False

    def _record(self, digest: str) -> None:
        self._write("records", digest, _seal_of(self._object(digest).stat(follow_symlinks=False)))

    def _used(self, digest: str) -> None:
        with suppress(FileNotFoundError):  # dropped meanwhile; the link has kept the bytes
            os.utime(self.root / "records" / digest)

    def _object(self, digest: str) -> Path:
        return self.root / "objects" / digest

    def _read(self, folder: str, name: str) -> str:
        """Return the text of a small file, "" if it is not there."""
        try:
            return (self.root / folder / name).read_text("ascii", "replace")
        except FileNotFoundError:
            return ""

    def _write(self, folder: str, name: str, text: str) -> None:
        """Write a small file that is there as a whole or not at all.

        It may not outlive a crash of the machine. After such a crash an object is read again, or an index
        entry makes no sense.
        """
        aside = self.root / "staging" / f"{secrets.token_hex(8)}.new"
        aside.write_text(text, encoding="ascii")
        aside.replace(self.root / folder / name)


def _link_or_copy(source: Path, target: Path) -> None:
    """Give the file a second name, or copy it if the file system has no links or no more of them."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _seal_of(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_digest(text: str) -> bool:
    return len(text) == _SHA256_DIGITS and set(text) <= set("0123456789abcdef")
