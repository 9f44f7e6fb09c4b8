"""Whether a model directory is whole, if something in it says so.

A manifest, `SHA256SUMS` as `sha256sum` prints it, stands in the model directory or in a version directory and
lists files below it. What it lists must be there and must match; otherwise the model is never served. It
vouches only for what it lists, so a model is known to be complete once manifests that match list all of its
files. What it lists must lie in the repository, or in the directory that the manifest itself lies in: no link
leads out of these, however far the server follows links otherwise.

A marker is the file `_SUCCESS` in the model directory. A tool that copies a model writes it last. It counts
for as long as nothing is newer than it. Change times decide that, because modification times are copied
along. A marker that doesn't count is as if it were not there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.catalog.settling import Complete, Completeness, Incomplete, Unknown
from actors.values.errors import ErrorCode
from engine.models.layout import shown
from engine.models.links import Links
from engine.models.problems import Problem
from engine.provenance.manifest import MANIFEST, MARKER
from engine.repository.fingerprint import (
    Digests,
    Identity,
    LeadsOut,
    Root,
    Survey,
    Unsettled,
    is_broken_mount,
    is_manifest,
    speaks_about_the_model,
    survey,
)
from engine.repository.source import read_manifest

_LARGEST_MANIFEST: Final = 64 * 1024 * 1024
_MOST_REASONS: Final = 5


def completeness(
    root: Root,
    found: Survey,
    digests: Digests,
    *,
    previous: Survey | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Completeness:
    """Return whether the model of a survey is known to be complete, or to be incomplete.

    A file that has grown or was rewritten in place since the `previous` survey is still being written. It is
    not read before two surveys agree on it; otherwise a large copy would be read anew at each look. `alive`
    is called now and then, while files are read. Raises OSError if the file system itself does not answer.
    """
    check = _Check(root, found, digests, alive)
    check.missing()
    if not check.mistakes:
        check.still_written(previous)
    if not check.mistakes:
        check.matching()
    if check.mistakes:
        return Incomplete(_bounded([mistake.message for mistake in check.mistakes]))
    marked = MARKER in found.files and not _newer_than_marker(found)
    return Complete() if marked or check.vouches_for_all else Unknown()


def verify_manifest(
    model_directory: Path,
    *,
    repository: Path | None = None,
    digests: Digests | None = None,
    links: Links = Links.INSIDE,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Problem]:
    """Return what is wrong with a model directory by its manifests; nothing if it has none.

    The `repository` is by default the directory that the model's stands in; `links` says how far those of the
    model are followed.
    With `digests` that were used to fetch the model, no file is read again. Once `cancelled`, the rest is not
    looked at. Reads files, so do not call it on the event loop.
    """
    try:
        with Root(repository or model_directory.parent, links) as root:
            found = survey(root, model_directory.name)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            check = _Check(root, found, digests or Digests(), lambda: None, cancelled)
            check.missing()
            check.matching()
    except OSError as error:
        reason = error.strerror or str(error)
        return [Problem(message=f"model directory can't be read: {reason}", path=model_directory)]
    return [
        Problem(
            message=mistake.message,
            path=model_directory / mistake.manifest,
            hint="copy the files again, or write the manifest anew",
            code=ErrorCode.INVALID_ARG,
        )
        for mistake in check.mistakes
    ]


@dataclass(frozen=True, slots=True)
class _Mistake:
    manifest: str
    message: str


class _Check:
    """What manifests say, compared with what is there. Paths are relative to the model directory."""

    def __init__(
        self,
        root: Root,
        found: Survey,
        digests: Digests,
        alive: Callable[[], None],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._root = root
        self._found = found
        self._digests = digests
        self._alive = alive
        self._cancelled = cancelled
        self.mistakes: list[_Mistake] = []
        self._listed: dict[str, dict[str, str]] = {}  # manifest -> path -> digest
        for path in filter(is_manifest, found.files):
            listed = self._read(path)
            if listed is not None:
                self._listed[path] = listed

    @property
    def vouches_for_all(self) -> bool:
        """Whether there is a manifest, and no file that none lists."""
        listed = {path for each in self._listed.values() for path in each}
        return bool(listed) and all(
            path in listed or speaks_about_the_model(path) for path in self._found.files
        )

    def missing(self) -> None:
        """Find what is listed and is not there."""
        for manifest, path, _ in self._entries():
            if self._leads_out(manifest, path):
                self._wrong(
                    manifest,
                    f"'{shown(path)}' is listed in {manifest} and is a link out of the model repository",
                )
            elif path not in self._found.files:
                self._wrong(manifest, f"'{shown(path)}' is listed in {manifest} and is not there")

    def still_written(self, previous: Survey | None) -> None:
        """Find files that are being written: they changed since the survey before, and are no other files."""
        for manifest, path, _ in self._entries():
            now = self._found.files.get(path)
            before = None if previous is None else previous.files.get(path)
            if (
                now is not None
                and before is not None
                and now != before
                and (now.device, now.inode) == (before.device, before.inode)
            ):
                self._wrong(manifest, f"'{shown(path)}' is still being written")

    def matching(self) -> None:
        """Find what differs from what is listed."""
        for manifest, path, expected in self._entries():
            identity = self._found.files.get(path)
            if identity is None or self._leads_out(manifest, path):
                continue
            if self._cancelled():
                return
            try:
                digest = self._digests.digest(
                    self._root, f"{self._found.name}/{path}", identity, alive=self._alive
                )
            except Unsettled as error:
                self._wrong(manifest, str(error))
            except (OSError, LeadsOut) as error:
                self._wrong(manifest, _unreadable(path, error))
            else:
                if digest != expected:
                    self._wrong(
                        manifest,
                        f"'{shown(path)}' does not match {manifest}: expected sha256 {expected}, found {digest}",
                    )

    def _leads_out(self, manifest: str, path: str) -> bool:
        """Whether a link that leads out is on the way from a manifest's directory to a file that it lists."""
        if not self._found.outside:
            return False
        start = len(manifest.removesuffix(MANIFEST))
        ends = (at for at, character in enumerate(f"{path}/") if character == "/" and at > start)
        return any(path[:end] in self._found.outside for end in ends)

    def _read(self, path: str) -> dict[str, str] | None:
        """Return what a manifest lists, except for itself: it can't hold its own digest."""
        directory = path.removesuffix(MANIFEST)
        try:
            if self._leads_out(path, path):
                raise LeadsOut(path)
            text = self._text(path)
            listed = {f"{directory}{name}": digest for name, digest in read_manifest(text).items()}
        except ValueError as error:
            self._wrong(path, f"{directory}{error}")
            return None
        except (OSError, LeadsOut) as error:
            self._wrong(path, _unreadable(path, error))
            return None
        if not listed:
            self._wrong(path, f"'{path}' is empty: it lists no file")
            return None
        listed.pop(path, None)
        return listed

    def _text(self, path: str) -> str:
        identity = self._found.files[path]
        if identity.size > _LARGEST_MANIFEST:
            raise ValueError(f"{MANIFEST}: it is larger than {_LARGEST_MANIFEST} bytes")
        with self._root.opened(f"{self._found.name}/{path}", os.O_RDONLY) as fd:
            with open(fd, "rb", closefd=False) as file:
                text = file.read(_LARGEST_MANIFEST)
            if Identity.of(os.fstat(fd)) != identity:
                raise ValueError(f"{MANIFEST}: it changed while it was read")
        return text.decode("utf-8", "surrogateescape")

    def _entries(self) -> Iterator[tuple[str, str, str]]:
        for manifest, listed in self._listed.items():
            for path, digest in listed.items():
                yield manifest, path, digest

    def _wrong(self, manifest: str, message: str) -> None:
        self.mistakes.append(_Mistake(manifest, message))


def _newer_than_marker(found: Survey) -> bool:
    """Whether anything came after the marker.

    The directory that it stands in changed with it, and by being moved here.
    """
    written = found.files[MARKER].ctime
    return any(identity.ctime > written for identity in found.files.values()) or any(
        changed > written for changed in found.directories.values()
    )


def _unreadable(path: str, error: OSError | LeadsOut) -> str:
    if isinstance(error, LeadsOut):
        return f"'{shown(path)}' is a link out of the model repository"
    if is_broken_mount(error):
        raise error
    return f"'{shown(path)}' can't be read: {error.strerror or error}"


def _bounded(reasons: list[str]) -> tuple[str, ...]:
    if len(reasons) <= _MOST_REASONS:
        return tuple(reasons)
    return (*reasons[:_MOST_REASONS], f"and {len(reasons) - _MOST_REASONS} more")
