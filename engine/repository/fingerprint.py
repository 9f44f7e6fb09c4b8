"""What a model directory holds, by metadata and by content.

Metadata is cheap and tells that something was written. Content decides.

`survey` walks a model directory once. Its `stamp` names every file with its size, inode, and times, so that
any write changes it. A rewrite that restores size and modification time still moves the change time, which no
program can set. `contents` are digests of the bytes, and say whether a model is another one. A file is read
again only if its metadata changed (`Digests`).

Links are followed wherever they lead, as `Links.ANYWHERE` has it. With `Links.INSIDE` nothing outside of the
repository is ever read. Everything is opened through descriptors. After each open the kernel is asked where
the descriptor really leads, so that a link switched between check and use leads nowhere. A link out of the
repository is then a problem of the survey, and so is whatever else makes a directory unfit to be served.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from engine.models.layout import leads_out, leads_up, shown
from engine.models.links import DEEPEST, MOST_ENTRIES, Links
from engine.models.problems import Problem
from engine.provenance.manifest import MANIFEST, MARKER, SIGNATURE
from engine.repository.source import Contents, FetchCancelled, Stamp, contents_of, version_of

_CHUNK: Final = 1 << 20
_FRESH: Final = 2_000_000_000  # ns; FAT's times are the coarsest
_REMEMBERED: Final = 1_000_000

_BROKEN_MOUNT: Final = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNABORTED,
        errno.EREMOTEIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)


class LeadsOut(Exception):
    """A path leads out of the repository, or to the repository itself."""


class Unsettled(Exception):
    """A file changed while it was read. The message names it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"'{shown(path)}' changed while it was read")


class Identity(NamedTuple):
    """What changes when a file is written or replaced."""

    device: int
    inode: int
    size: int
    mtime: int  # ns
    ctime: int  # ns

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """Return the identity in what `stat` says."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @property
    def token(self) -> str:
        """The part that a stamp does not hold otherwise.

        The device is not in it, because a mount that returns may have another.
        """
        return f"{self.mtime:x}.{self.ctime:x}.{self.inode:x}"


class Root:
    """An open repository, out of which nothing is opened that `links` forbid.

    Close it, or use it as a context manager. Raises OSError if `path` is no directory that can be opened.
    """

    def __init__(self, path: Path, links: Links = Links.INSIDE) -> None:
        self.links = links
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._where = self.path = _where(self.fd)
            # Then it lies in another container.
            self.is_elsewhere = links is Links.ANYWHERE and not self._is_at(self.path)
            if self.is_elsewhere:
                self.path = str(path)
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def above(self) -> frozenset[tuple[int, int]]:
        """Return device and inode of the repository, and of each directory that it lies in."""
        found: set[tuple[int, int]] = set()
        path = "."
        with suppress(PermissionError):
            while True:
                status = os.stat(path, dir_fd=self.fd)
                if (status.st_dev, status.st_ino) in found:  # that of the root is the root
                    break
                found.add((status.st_dev, status.st_ino))
                path += "/.."
        return frozenset(found)

    @contextmanager
    def opened(self, path: str, flags: int, *, directory: int | None = None) -> Iterator[int]:
        """Open `path`, relative to the root or to an open `directory`, for the time of the block.

        Links are followed unless `flags` forbid it. Raises LeadsOut, and OSError.
        """
        fd = os.open(path, flags | os.O_NONBLOCK, dir_fd=self.fd if directory is None else directory)
        try:
            if self.links is Links.INSIDE and not self.holds(fd):
                raise LeadsOut(path)
            yield fd
        finally:
            os.close(fd)

    def holds(self, fd: int) -> bool:
        """Whether what is open lies in the repository, and is not the repository itself."""
        where = _where(fd)
        if _below(where, self._where):
            return True
        now = _where(self.fd)  # it may have been moved
        if now == self._where:
            return False
        there = os.stat(now)
        if (there.st_dev, there.st_ino) != self.identity:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.path)
        self._where = self.path = now
        return _below(where, now)

    def _is_at(self, path: str) -> bool:
        try:
            status = os.stat(path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.identity


class Survey(NamedTuple):
    """One walk over a model directory. Paths are relative to it, in POSIX form, as seen through links."""

    name: str
    files: Mapping[str, Identity]  # regular files
    directories: Mapping[str, int]  # modification times, ns
    others: Mapping[str, str]  # links to nowhere, pipes and so on; a stamp's token each
    problems: tuple[Problem, ...]
    outside: frozenset[str] = frozenset()  # links that lead out of the repository, and are followed

    @property
    def stamp(self) -> Stamp:
        """Equal stamps mean that nothing was written, added, removed or linked elsewhere in between."""
        entries = [(path, found.size, found.token) for path, found in self.files.items()]
        entries += [(f"{path}/", 0, "") for path in self.directories]
        entries += [(path, 0, token) for path, token in self.others.items()]
        return Stamp(tuple(sorted(entries)))


def survey(
    root: Root, name: str, *, alive: Callable[[], None] = lambda: None, most: int = MOST_ENTRIES
) -> Survey | None:
    """Walk over the model `name` of a repository, or return None if there is no such directory.

    `alive` is called with each directory. A model has at most `most` files and directories. Raises OSError if
    the file system itself does not answer.
    """
    walk = _Walk(root, name, alive, most)
    try:
        with root.opened(name, os.O_RDONLY | os.O_DIRECTORY) as fd:
            walk.directory(fd, "", ())
    except LeadsOut:
        walk.refuse("", leads_out(Path(root.path, name)))
    except OSError as error:
        _raise_if_broken(error)
        if error.errno != errno.EACCES:
            return None
        walk.unreadable("", error)
    return Survey(
        name, walk.files, walk.directories, walk.others, tuple(walk.problems), frozenset(walk.outside)
    )


class Digests:
    """SHA-256 of files, remembered for as long as a file's identity stays.

    Several threads may use it at once. A digest of a file that was written just now is not remembered, since
    a file can be written twice within one tick of its file system's clock. `wall_ns` is the clock that such
    times are compared with.
    """

    def __init__(self, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        self._known: OrderedDict[Identity, str] = OrderedDict()
        self.bytes_read = 0

    def digest(
        self, root: Root, path: str, identity: Identity, *, alive: Callable[[], None] = lambda: None
    ) -> str:
        """Return the digest (hex) of the file at `path`, relative to `root`.

        A survey found the file to be `identity`. `alive` is called before each piece and may raise. Raises
        Unsettled if the file is or becomes another, LeadsOut, and OSError if it can't be read.
        """
        with self._lock:
            known = self._known.get(identity)
            if known is not None:
                self._known.move_to_end(identity)
                return known
        fresh = abs(self._wall_ns() - max(identity.mtime, identity.ctime)) < _FRESH
        digest = self._read(root, path, identity, alive)
        if not fresh:
            with self._lock:
                self._known[identity] = digest
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return digest

    def _read(self, root: Root, path: str, identity: Identity, alive: Callable[[], None]) -> str:
        whole = hashlib.sha256()
        piece = bytearray(_CHUNK)
        view = memoryview(piece)
        with root.opened(path, os.O_RDONLY) as fd:
            if Identity.of(os.fstat(fd)) != identity:
                raise Unsettled(path)
            while True:
                alive()
                size = os.readv(fd, [piece])
                if not size:
                    break
                whole.update(view[:size])
                with self._lock:
                    self.bytes_read += size
            if Identity.of(os.fstat(fd)) != identity:
                raise Unsettled(path)
        return whole.hexdigest()


def contents(
    root: Root, found: Survey, digests: Digests, *, cancelled: Callable[[], bool] = lambda: False
) -> Contents:
    """Return the digests of what a survey found: of each version directory, and of everything else.

    Markers and manifests speak about a model and are no part of it. Raises FetchCancelled if `cancelled` says
    so, and the errors of `Digests.digest`.
    """

    def alive() -> None:
        if cancelled():
            raise FetchCancelled

    files = {
        path: digests.digest(root, f"{found.name}/{path}", identity, alive=alive)
        for path, identity in found.files.items()
        if not speaks_about_the_model(path)
    }
    return contents_of(files, directories=[path for path in found.directories if "/" not in path])


def speaks_about_the_model(path: str) -> bool:
    """Whether a file says that the model is complete, rather than being part of it."""
    return path in (MARKER, SIGNATURE) or is_manifest(path)


def is_manifest(path: str) -> bool:
    """Whether a file is a manifest: it stands in the model directory, or in a version directory."""
    directory, _, name = path.rpartition("/")
    return name == MANIFEST and (
        not directory or ("/" not in directory and version_of(directory) is not None)
    )


def is_broken_mount(error: OSError) -> bool:
    """Whether an error says nothing about a file, but that its file system does not work just now."""
    return error.errno in _BROKEN_MOUNT


class _Walk:
    """A survey that is being made."""

    def __init__(self, root: Root, name: str, alive: Callable[[], None], most: int) -> None:
        self._root = root
        self._name = name
        self._alive = alive
        self._most = most
        self.files: dict[str, Identity] = {}
        self.directories: dict[str, int] = {}
        self.others: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.outside: set[str] = set()
        self._entries = 0
        self._homes: list[str] = []  # where the model's directory is, and those that links have led to
        follows = root.links is Links.ANYWHERE
        self._above = root.above() if follows else frozenset()
        self._made_up = _made_up() if follows else frozenset()

    def directory(self, fd: int, prefix: str, above: tuple[tuple[int, int], ...]) -> None:
        """Walk over an open directory; `above` are those that led to it, to end loops of links."""
        self._alive()
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if self._is_refused(prefix.rstrip("/"), status):
            return
        if prefix:
            self.directories[prefix.rstrip("/")] = status.st_mtime_ns
        if identity in above:
            return
        self._homes += [] if above else [_where(fd)]
        if len(above) >= DEEPEST:
            self._too_much(prefix, f"directories are nested more than {DEEPEST} deep")
            return
        for name in sorted(os.listdir(fd)):
            self._entries += 1
            if self._entries > self._most:
                self._too_much("", f"there are more than {self._most} files in it")
                return
            path = prefix + name
            try:
                self._entry(fd, name, path, (*above, identity))
            except LeadsOut:
                self.refuse(path, leads_out(Path(self._root.path, self._name, path), name=path))
            except OSError as error:
                _raise_if_broken(error)
                if error.errno == errno.EACCES:
                    self.unreadable(path, error)
                # Else it was removed, or became something else, just now: the next survey will see.

    def _entry(self, fd: int, name: str, path: str, above: tuple[tuple[int, int], ...]) -> None:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            self._link(fd, name, path, above)
        elif stat.S_ISDIR(status.st_mode):
            with self._root.opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, directory=fd) as below:
                self.directory(below, f"{path}/", above)
        else:
            self._file(path, status)

    def _link(self, fd: int, name: str, path: str, above: tuple[tuple[int, int], ...]) -> None:
        try:
            with self._root.opened(name, os.O_PATH, directory=fd) as target:
                status = os.fstat(target)
                where = _where(target)
                if not any(_below(where, home) for home in self._homes) and not self._root.holds(target):
                    self.outside.add(path)
                if not stat.S_ISDIR(status.st_mode):
                    self._file(path, status)
                    return
                # The same directory, whatever has become of the link.
                with self._root.opened(f"/proc/self/fd/{target}", os.O_RDONLY | os.O_DIRECTORY) as below:
                    self._homes.append(where)
                    try:
                        self.directory(below, f"{path}/", above)
                    finally:
                        self._homes.pop()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                raise
            if self._root.links is Links.INSIDE and not self._leads_inside(fd, name):
                raise LeadsOut(path) from error
            self.others[path] = "a link to nothing"

    def _leads_inside(self, fd: int, name: str) -> bool:
        """Whether a link to nothing would lead to something inside, if that came to be."""
        target = os.path.realpath(os.path.join(_where(fd), os.readlink(name, dir_fd=fd)))
        return _below(target, self._root.path)

    def _is_refused(self, path: str, status: os.stat_result) -> bool:
        """Whether a link has led to what would never end; that is a problem then."""
        place = Path(self._root.path, self._name, path)
        if (status.st_dev, status.st_ino) in self._above:
            self.refuse(path, leads_up(place, name=path))
        elif status.st_dev in self._made_up:
            self.refuse(path, _leads_to_the_kernel(place, path or self._name))
        else:
            return False
        return True

    def _file(self, path: str, status: os.stat_result) -> None:
        if self._is_refused(path, status):
            return
        identity = Identity.of(status)
        if stat.S_ISREG(status.st_mode):
            self.files[path] = identity
        else:
            self.others[path] = f"{stat.S_IFMT(status.st_mode):o}.{identity.token}"

    def refuse(self, path: str, problem: Problem) -> None:
        """Record what keeps the directory from being served.

        It is part of the stamp, so that a repair is seen.
        """
        self.others[path] = problem.message
        self.problems.append(problem)

    def unreadable(self, path: str, error: OSError) -> None:
        """Take note of what can't be looked into."""
        reason = error.strerror or str(error)
        self.refuse(
            path,
            Problem(
                message=f"'{shown(path or self._name)}' can't be read: {reason}",
                path=Path(self._root.path, self._name, shown(path)),
            ),
        )

    def _too_much(self, prefix: str, message: str) -> None:
        if not any(problem.message == message for problem in self.problems):
            path = Path(self._root.path, self._name, shown(prefix))
            self.refuse(prefix, Problem(message=message, path=path, hint="is this a model directory?"))


def _made_up() -> frozenset[int]:
    """Return the devices whose files the kernel makes up as they are read, some without an end."""
    found: set[int] = set()
    for path in ("/proc", "/sys"):
        with suppress(OSError):
            found.add(os.stat(path).st_dev)
    with suppress(OSError):
        found.discard(os.stat("/").st_dev)  # nothing is mounted there
    return frozenset(found)


def _leads_to_the_kernel(place: Path, name: str) -> Problem:
    return Problem(
        message=f"'{shown(name)}' is a link to what the kernel makes up, and no file of a model",
        path=Path(shown(str(place))),
        hint="link a file or directory on a disk",
    )


def _raise_if_broken(error: OSError) -> None:
    if is_broken_mount(error):
        raise error


def _where(fd: int) -> str:
    """Return the path of what is open, as the kernel has it."""
    return os.readlink(f"/proc/self/fd/{fd}")


def _below(path: str, root: str) -> bool:
    return path.startswith(root if root.endswith("/") else f"{root}/")
