"""Unpacks a packed environment, such as conda-pack makes, without trusting it to stay where it is put.

No member is ever written through a link. Directories and files come first, hard links to these next, and
symbolic links last, when all directories that these lie in have been made. A name that needs two of them is
refused. Where links lead is checked once all of them are there, because the way of one may go over another.
None may lead out, except the link of a packed virtual environment to its Python. Set-user-id bits, devices
and owners are not taken over. Times are, since compiled modules are only used while the times of their
sources are unchanged.

The module `tarfile` reads what a header says is long in one piece, and searches it in quadratic time. So it
reads from a `_Meter`, which bounds each header and everything together.
Standard library only.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import posixpath
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, cast

from engine.environments.budget import unfolded_bytes
from engine.environments.layout import EnvironmentFailed, bare_environ

MOST_BYTES: Final = 64 * 1024**3  # unpacked; a CUDA framework with everything it likes takes about ten
MOST_MEMBERS: Final = 2_000_000
SPARE_BYTES: Final = 1024**3  # of the file system, which must be left when it is unpacked
_INTERPRETER: Final = re.compile(r"bin/python[0-9.]*")  # of a packed venv it is a link to the machine's own
_CHUNK: Final = 1024 * 1024
_LONGEST_HEADER: Final = 16 * 1024  # a path has at most 4 KiB, and a header holds two
_MAGIC: Final[tuple[tuple[bytes, type[gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]], ...]] = (
    (b"\x1f\x8b", gzip.GzipFile),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x5d\x00\x00", lzma.LZMAFile),
)
_RELOCATE_SECONDS: Final = 600.0


def unpack(
    archive: Path,
    directory: Path,
    progress: Callable[[int], None] = lambda members: None,
    *,
    most_bytes: int = MOST_BYTES,
    most_members: int = MOST_MEMBERS,
    unfolded: Callable[[int], int] = unfolded_bytes,
) -> None:
    """Unpack a tar file (gzip, bzip2, xz or none) into `directory`, which exists and is empty.

    `progress` is called with the number of members so far. Raises EnvironmentFailed, also for an archive of
    more than `most_bytes` (unpacked) or `most_members`, or
    one that unfolds to more than `unfolded` of its size.
    """
    try:
        with _opened(archive) as file:
            meter = _Meter(file, unfolded(archive.stat().st_size), archive)
            with tarfile.open(fileobj=cast("IO[bytes]", meter), mode="r:") as tar:
                unpacking = _Unpacking(tar, meter, directory, progress)
                unpacking.run(most_bytes=most_bytes, most_members=most_members)
    except MemoryError as error:
        raise EnvironmentFailed(f"'{archive}' is not unpacked: it takes too much memory") from error
    except (
        tarfile.TarError,
        EOFError,
        OSError,
        ValueError,
        OverflowError,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise EnvironmentFailed(f"unpacking '{archive}' failed: {error}") from error
        raise EnvironmentFailed(
            f"'{archive}' can't be unpacked: {error}", hint="pack it as conda-pack does, as a .tar.gz"
        ) from error


def relocate(directory: Path) -> None:
    """Have conda's files name the place where they are now, if conda-pack has brought what does that.

    Raises EnvironmentFailed if it fails.
    """
    script = directory / "bin" / "conda-unpack"
    python = directory / "bin" / "python"
    if not (script.is_file() and python.exists()):
        return
    environ = bare_environ()
    try:
        done = subprocess.run(
            [str(python), str(script)],
            env={**environ, "PATH": os.pathsep.join((str(directory / "bin"), environ["PATH"]))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_RELOCATE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailed(f"'{script}' can't be run: {error}") from error
    if done.returncode:
        raise EnvironmentFailed(f"'{script}' fails: {done.stderr[-2000:].decode(errors='replace').strip()}")


def _opened(archive: Path) -> IO[bytes]:
    """Open a tar file to be read, whatever it is packed by."""
    with archive.open("rb") as file:
        begin = file.read(8)
    for magic, open_ in _MAGIC:
        if begin.startswith(magic):
            return cast("IO[bytes]", open_(archive))
    return archive.open("rb")


class _Meter:
    """The unfolded file as `tarfile` reads it: each header is bounded, and so is everything together."""

    def __init__(self, file: IO[bytes], most: int, archive: Path) -> None:
        self._file = file
        self._most = most
        self._archive = archive
        self.at_once = _LONGEST_HEADER
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes. Raises EnvironmentFailed if it is too many."""
        if size > self.at_once:
            raise self.refused(f"it has a header of {size} bytes, and {self.at_once} are the most")
        content = self._file.read(size)
        if self._file.tell() > self._most:
            raise self.refused(f"it unfolds to more than {self._most} bytes, {_TOO_MUCH}")
        return content

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go on at `position`; what lies between is unfolded and counts."""
        assert whence == os.SEEK_SET
        if position > self._most:
            raise self.refused(f"it unfolds to more than {self._most} bytes, {_TOO_MUCH}")
        return self._file.seek(position)

    def refused(self, why: str) -> EnvironmentFailed:
        """Return why the archive is not unpacked."""
        return EnvironmentFailed(f"'{self._archive}' is not unpacked: {why}")


_TOO_MUCH: Final = "which is more than an archive of its size holds"


class _Unpacking:
    """One archive on its way to one directory."""

    def __init__(
        self,
        tar: tarfile.TarFile,
        meter: _Meter,
        directory: Path,
        progress: Callable[[int], None],
    ) -> None:
        self._tar = tar
        self._meter = meter
        self._refused = meter.refused
        self._directory = directory
        self._progress = progress
        self._left = shutil.disk_usage(directory).free - SPARE_BYTES
        self._hard: list[tuple[str, str]] = []
        self._symbolic: list[tuple[str, str]] = []

    def run(self, *, most_bytes: int, most_members: int) -> None:
        """Unpack everything."""
        self._left = min(most_bytes, self._left)
        count = 0
        while (member := self._tar.next()) is not None:
            # `tarfile` would keep them all.
            self._tar.members = []  # type: ignore[attr-defined]  # it is documented to be a list of them
            count += 1
            if count > most_members:
                raise self._refused(f"it has more than {most_members} members")
            self._take(member)
            if count % 1000 == 0:
                self._progress(count)
        self._read_to_the_end()
        for name, target in self._hard:
            self._link(name, target)
        for path, (name, target) in [(self._place(each[0]), each) for each in self._symbolic]:
            try:
                path.symlink_to(target)
            except FileExistsError:
                raise self._refused(f"'{name}' is a link and something else as well") from None
        self._check_links()

    def _read_to_the_end(self) -> None:
        """Have the compressed file's own checksum compared, which comes behind the last member."""
        self._meter.at_once = _CHUNK
        while self._meter.read(_CHUNK):
            continue

    def _check_links(self) -> None:
        paths = [(name, self._directory / name) for name, _ in self._symbolic]
        pythons = {os.path.realpath(path) for name, path in paths if _is_python(name, os.readlink(path))}
        root = os.path.realpath(self._directory)
        for name, path in paths:
            real = os.path.realpath(path)
            if not (Path(real).is_relative_to(root) or real in pythons):
                raise self._refused(f"'{name}' leads out of it, to '{real}'")

    def _take(self, member: tarfile.TarInfo) -> None:
        name = self._inside(member.name, member.name)
        if not name:
            return  # the directory itself
        if member.isdir():
            self._place(name).mkdir(exist_ok=True)
        elif member.isreg():
            self._write(member, self._place(name))
        elif member.islnk():
            self._hard.append((name, self._inside(member.linkname, member.name)))
        elif member.issym():
            if not _is_python(name, member.linkname):
                self._inside(posixpath.join(posixpath.dirname(name), member.linkname), member.name)
            self._symbolic.append((name, member.linkname))
        else:
            raise self._refused(f"'{member.name}' is neither a file nor a directory nor a link")

    def _inside(self, path: str, whose: str) -> str:
        """Return `path` without detours, empty for the directory itself. Raises if it leads out."""
        normal = posixpath.normpath(path)
        if posixpath.isabs(normal) or normal.split("/")[0] == ".." or "\0" in normal:
            raise self._refused(f"'{whose}' leads out of it, to '{path}'")
        return "" if normal == "." else normal

    def _place(self, name: str) -> Path:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _write(self, member: tarfile.TarInfo, path: Path) -> None:
        self._left -= abs(member.size)
        if self._left < 0:
            raise self._refused("it takes more room than there is, or than an environment may")
        source = self._tar.extractfile(member)
        assert source is not None  # it is a regular file
        path.unlink(missing_ok=True)  # a later member of the same name replaces an earlier one
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700 if member.mode & 0o100 else 0o600
        )
        with source, open(descriptor, "wb") as file:
            self._meter.at_once = _CHUNK
            shutil.copyfileobj(source, file, _CHUNK)
            self._meter.at_once = _LONGEST_HEADER
            os.fchmod(file.fileno(), member.mode & 0o755 | 0o600)
        os.utime(path, (member.mtime, member.mtime))

    def _link(self, name: str, target: str) -> None:
        path = self._place(name)
        path.unlink(missing_ok=True)
        try:
            path.hardlink_to(self._directory / target)
        except OSError as error:
            raise self._refused(f"'{name}' is a link to '{target}': {error.strerror}") from error


def _is_python(name: str, target: str) -> bool:
    return _INTERPRETER.fullmatch(name) is not None and posixpath.isabs(target)
