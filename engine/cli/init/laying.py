"""Puts the files of models where a repository has them: a model appears there whole, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Final

from engine.repository.bare.finding import BareModel, BareVersion
from engine.repository.bare.policy.formats import Engine

_CHUNK: Final = 8 * 1024 * 1024
_LONG: Final = 1.0  # seconds of copying after which progress is shown
_BETWEEN: Final = 0.2  # seconds between two lines of progress
_MOST_FILES: Final = 100_000


class Way(Enum):
    """How a file comes into the repository."""

    COPY = "copy"
    LINK = "link"  # a hard link; a symbolic one where that can't be
    POINT = "point"  # a symbolic link, for a plan that is thrown away


class NotLaidOut(Exception):
    """The files of a model can't be put there. The message says why."""


class Copying:
    """Copies or links files, and shows on a terminal how far a long copy is."""

    def __init__(self, way: Way) -> None:
        self.symbolic = False
        """Whether a symbolic link was made where a hard link was wanted."""
        self._way = way
        self._begun = self._shown = monotonic()
        self._done = self._total = 0
        self._visible = False

    def lay_out(self, model: BareModel, engine: Engine, directory: Path) -> None:
        """Make the model's directory. Raises NotLaidOut."""
        try:
            if self._way is Way.COPY:
                self._expect(model, directory)
            for version in model.versions:
                self._version(version, engine, directory / str(version.number))
        except OSError as error:
            raise NotLaidOut(f"{error.filename or directory}: {error.strerror or error}") from error
        finally:
            self._clear()

    def _expect(self, model: BareModel, directory: Path) -> None:
        sources = [piece.source for version in model.versions for piece in version.pieces]
        size = sum(os.path.getsize(path) for source in sources for path, _ in _files(source))
        free = shutil.disk_usage(directory.parent).free
        if size > free:
            raise NotLaidOut(
                f"it takes {as_size(size)}, and {as_size(free)} are free in {directory.parent};"
                " --link copies nothing"
            )
        self._done, self._total, self._begun = 0, size, monotonic()

    def _version(self, version: BareVersion, engine: Engine, directory: Path) -> None:
        directory.mkdir(parents=True)
        for piece in version.pieces:
            for path, inner in _files(piece.source):
                target = directory / (piece.target or engine.file) / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                self._bring(path, target)

    def _bring(self, source: Path, target: Path) -> None:
        if self._way is Way.COPY:
            self._copy(source, target)
            return
        if self._way is Way.LINK:
            try:
                # The file itself, where the source is a link, as in a cache of downloads.
                os.link(source.resolve(), target)
            except FileExistsError:
                raise
            except OSError:  # another file system, or files of another user
                self.symbolic = True
            else:
                return
        os.symlink(source.resolve(), target)

    def _copy(self, source: Path, target: Path) -> None:
        with source.open("rb") as taken, target.open("xb") as given:
            while chunk := taken.read(_CHUNK):
                given.write(chunk)
                self._done += len(chunk)
                self._progress(source)

    def _progress(self, source: Path) -> None:
        now = monotonic()
        if not sys.stderr.isatty() or now - self._begun < _LONG or now - self._shown < _BETWEEN:
            return
        self._shown = now
        self._visible = True
        percent = 100 * self._done // max(self._total, 1)
        sys.stderr.write(f"\r\x1b[Kcopying {source.name!a}: {percent}% of {as_size(self._total)}")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._visible = False


def _files(source: Path) -> Iterator[tuple[Path, str]]:
    """Yield the regular files of a file or folder, each with its path inside. Raises NotLaidOut."""
    if not source.is_dir():
        yield source, ""
        return
    count = 0
    for folder, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in sorted(names):
            count += 1
            if count > _MOST_FILES:
                raise NotLaidOut(f"{source} has more than {_MOST_FILES} files")
            path = Path(folder, name)
            if path.is_file():
                yield path, str(path.relative_to(source))


@contextmanager
def staging(repository: Path) -> Iterator[Path]:
    """Make a folder in which models are prepared, on the file system of `repository`, which is made too.

    It is beside the repository: a server may be watching that. Raises OSError.
    """
    repository.mkdir(parents=True, exist_ok=True)
    beside = repository.resolve().parent
    same = beside.stat().st_dev == repository.stat().st_dev and os.access(beside, os.W_OK)
    place = Path(tempfile.mkdtemp(prefix=".tritium-init-", dir=beside if same else repository))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def thrown_away() -> Iterator[Path]:
    """Make a folder for a plan."""
    with tempfile.TemporaryDirectory(prefix="tritium-init-") as folder:
        yield Path(folder)


def stand_in(model: Path, directory: Path) -> None:
    """Make `directory` look as the directory of a model does, by links. Raises OSError."""
    directory.mkdir()
    for each in model.iterdir():
        (directory / each.name).symlink_to(each.resolve())


def put_in_place(prepared: Path, final: Path) -> None:
    """Move a prepared model into the repository; what is there goes once the new one stands.

    Raises OSError.
    """
    if not os.path.lexists(final):
        prepared.rename(final)
        return
    aside = prepared.with_name(f"{prepared.name}.{secrets.token_hex(4)}")
    final.rename(aside)
    try:
        prepared.rename(final)
    except OSError:
        aside.rename(final)
        raise


def as_size(count: int) -> str:
    """Return a number of bytes for a reader."""
    size, units = float(count), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024 and unit != "GiB":
        size, unit = size / 1024, next(units)
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
