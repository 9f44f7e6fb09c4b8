"""Model directories in a cache: built from links, named by content, removed with their last user.

    staging/<random>/<name>       one under construction; `<random>.lock` is held by its builder
    models/<digest>/<name>        one in use; `<digest>.lease` is shared by all who use it, in any process
    models/<digest>.<random>      one being removed

A lock ends with its process. So what is no longer locked was left by a crash, and is swept.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from engine.repository.remote.locks import make_exclusive, take

_LEASE: Final = ".lease"
_LOCK: Final = ".lock"


class Staging:
    """A directory under construction, until it is published or discarded."""

    def __init__(self, folder: Path, name: str) -> None:
        self._lock_path = folder / f"{secrets.token_hex(8)}{_LOCK}"
        self._outer = self._lock_path.with_suffix("")
        lock = take(self._lock_path, exclusive=True, wait=True)
        assert lock is not None  # it was waited for
        self._lock = lock
        self.root = self._outer / name
        self.root.mkdir(parents=True)
        self._making = threading.Lock()
        self._discarded = False

    def path(self, relative: str) -> Path:
        """Return where a file belongs, its directories made.

        Raises FileNotFoundError once it is discarded.
        """
        target = self.root / relative
        with self._making:
            if self._discarded:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.root))
            target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def discard(self) -> None:
        """Remove what is left of it."""
        with self._making:
            self._discarded = True
        shutil.rmtree(self._outer, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)


class Trees:
    """The model directories of one cache, as one process uses them. Any thread may call."""

    def __init__(self, root: Path) -> None:
        self._models = root / "models"
        self._staging = root / "staging"
        self._lock = threading.Lock()
        self._leases: dict[str, tuple[int, int]] = {}  # digest: descriptor, users

    def stage(self, name: str) -> Staging:
        """Begin the directory of the model `name`. The caller publishes or discards it."""
        return Staging(self._staging, name)

    def publish(self, staging: Staging, digest: str) -> Path:
        """Put a complete directory in its place and return that, for one more user.

        One that is there already stays, in use as it may be, and what was altered in it is replaced.
        """
        self._lease(digest)
        try:
            target = self._models / digest / staging.root.name
            target.parent.mkdir(exist_ok=True)
            # Whatever the umask: a worker may have a user id of its own.
            for folder in (target.parent, *(Path(path) for path, _, _ in os.walk(staging.root))):
                folder.chmod(0o755)
            try:
                staging.root.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
                _mend(staging.root, target)
        except BaseException:
            self._let_go(digest)
            raise
        return target

    def release(self, path: Path) -> None:
        """One user less of a directory that was published; an unknown directory is ignored."""
        if path.parent.parent == self._models:
            self._let_go(path.parent.name)

    def sweep(self) -> None:
        """Remove what crashed processes left."""
        for lock_path in self._staging.glob(f"*{_LOCK}"):
            lock = take(lock_path, exclusive=True, wait=False)
            if lock is not None:
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock_path.unlink(missing_ok=True)
                os.close(lock)
        for lease_path in self._models.glob(f"*{_LEASE}"):
            lease = take(lease_path, exclusive=True, wait=False)
            if lease is not None:
                self._remove(lease_path.name.removesuffix(_LEASE), lease)
        for left in self._models.glob("*.*"):
            if not left.name.endswith(_LEASE):
                shutil.rmtree(left, ignore_errors=True)

    def _lease(self, digest: str) -> None:
        with self._lock:
            descriptor, users = self._leases.get(digest, (-1, 0))
            if not users:
                taken = take(self._models / f"{digest}{_LEASE}", exclusive=False, wait=True)
                assert taken is not None  # it was waited for
                descriptor = taken
            self._leases[digest] = (descriptor, users + 1)

    def _let_go(self, digest: str) -> None:
        with self._lock:
            descriptor, users = self._leases.get(digest, (-1, 0))
            if users > 1:
                self._leases[digest] = (descriptor, users - 1)
            elif users == 1:
                del self._leases[digest]
                if make_exclusive(descriptor):
                    self._remove(digest, descriptor)
                else:
                    os.close(descriptor)

    def _remove(self, digest: str, lease: int) -> None:
        """Remove the directories of `digest`, whose exclusive lease this takes over."""
        aside = self._models / f"{digest}.{secrets.token_hex(4)}"
        with suppress(OSError):
            (self._models / digest).rename(aside)
        with suppress(OSError):
            (self._models / f"{digest}{_LEASE}").unlink()
        os.close(lease)
        shutil.rmtree(aside, ignore_errors=True)


def _mend(good: Path, target: Path) -> None:
    """Replace every file of `target` that isn't as in `good`. What a model added of its own stays."""
    for folder, folders, files in os.walk(good):
        here = Path(folder)
        there = target / here.relative_to(good)
        for name in folders:
            (there / name).mkdir(exist_ok=True)
        for name in files:
            if not _is_same(here / name, there / name):
                (here / name).replace(there / name)


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two files are the same bytes, without reading them: a link, or a copy of equal time."""
    try:
        first, second = one.stat(follow_symlinks=False), other.stat(follow_symlinks=False)
    except OSError:
        return False
    alike = (first.st_size, first.st_mtime_ns) == (second.st_size, second.st_mtime_ns)
    return alike and stat.S_ISREG(second.st_mode)
