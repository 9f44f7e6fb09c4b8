"""What a requirements file stands for, as a digest: two files of one digest are installed alike.

Other requirements and constraints files that it names count with their content, as do local packages that are
installed by their path. What an index or a `--find-links` directory offers does not count: an environment
stays what it was when it was built.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from engine.environments.layout import FORMAT, EnvironmentFailed
from engine.models.links import Links

FILE_NAME: Final = "requirements.txt"

_INCLUDES: Final = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?=\S))(.+)")
_EDITABLE: Final = re.compile(r"(?:-e|--editable)(?:\s|=)")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_LOCAL: Final = re.compile(r"(?:[^\s@/]+\s*@\s*)?(?:file:(?://(?:localhost)?)?)?(?P<path>[^\s;#\[]+)")
_PACKED: Final = (".whl", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".zip")
# Within a package's directory.
_LEFT_BY_BUILDS: Final = re.compile(r"build|__pycache__|.+\.egg-info|\.git|\.hg")
_LARGEST_FILE: Final = 4 * 1024 * 1024  # bytes of one requirements file
_MOST_FILES: Final = 20_000  # of all that counts
_CHUNK: Final = 1024 * 1024


def find(version_directory: Path, model_directory: Path) -> Path | None:
    """Return the requirements file of a version: its own before the model's; None if there is neither."""
    candidates = (version_directory / FILE_NAME, model_directory / FILE_NAME)
    return next((path for path in candidates if path.is_file()), None)


def digest(path: Path, *, root: Path, links: Links = Links.INSIDE) -> str:
    """Return the SHA-256 (hex) of what decides what `path` installs: its files, this Python, this machine.

    `root` is the model repository, which files that it includes must not lie outside of, unless `links` lead
    there. Raises EnvironmentFailed.
    """
    return _Digest(root, links).of(path)


class _Digest:
    """One digest in the making."""

    def __init__(self, root: Path, links: Links) -> None:
        self._root = root.resolve()
        self._links = links
        self._seen: set[Path] = set()
        # An environment gets the server's numpy if nothing in it wants another.
        numpy = metadata.version("numpy")
        about = (FORMAT, sys.implementation.cache_tag, sys.base_prefix, platform.machine(), numpy)
        self._hash = hashlib.sha256(repr(about).encode())

    def of(self, path: Path) -> str:
        self._add_list(path)
        return self._hash.hexdigest()

    def _add_list(self, path: Path) -> None:
        if self._is_known(path):
            return
        try:
            if path.exists() and not path.is_file():
                raise EnvironmentFailed(f"'{path}' is no file")
            if path.stat().st_size > _LARGEST_FILE:
                raise EnvironmentFailed(f"'{path}' is larger than {_LARGEST_FILE} bytes")
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise EnvironmentFailed(f"'{path}' is no UTF-8 text: {error.reason}") from error
        except OSError as error:
            raise EnvironmentFailed(f"'{path}' can't be read: {error.strerror or error}") from error
        lines = list(_lines(text))
        self._hash.update(repr(lines).encode())
        for line in lines:
            self._follow(line, path)

    def _follow(self, line: str, within: Path) -> None:
        if _EDITABLE.match(line):
            raise EnvironmentFailed(
                f"'{within}' asks for an editable install: '{line}'",
                hint="an environment is built once and kept; name the package by its path, without -e",
            )
        if (included := _INCLUDES.fullmatch(line)) is not None:
            name = included.group(1)
            if "://" in name:
                raise EnvironmentFailed(
                    f"'{within}' includes '{name}', which may change while nobody looks",
                    hint="keep that file beside it",
                )
            self._add_list(self._beside(within, name))
        elif (local := _LOCAL.match(line)) is not None and not line.startswith("-"):
            self._add_package(local.group("path"), within)

    def _add_package(self, name: str, within: Path) -> None:
        """Add what lies there, if it is a path as pip takes one and not a package's name in an index."""
        if "/" in name or name.startswith(".") or name.lower().endswith(_PACKED):
            path = within.parent / name
            for file in _files(path):
                self._add_file(file, os.path.relpath(file, path.parent))

    def _beside(self, within: Path, name: str) -> Path:
        path = (within.parent / name).resolve()
        if not (self._links.follow(name) or path.is_relative_to(self._root)):
            raise EnvironmentFailed(f"'{within}' includes '{name}', which is outside the model repository")
        return path

    def _add_file(self, path: Path, name: str) -> None:
        if self._is_known(path):
            return
        try:
            self._hash.update(f"{name}\0{file_digest(path)}".encode())
        except OSError as error:
            raise EnvironmentFailed(f"'{path}' can't be read: {error.strerror or error}") from error

    def _is_known(self, path: Path) -> bool:
        resolved = path.resolve()
        if resolved in self._seen:
            return True
        self._seen.add(resolved)
        if len(self._seen) > _MOST_FILES:
            raise EnvironmentFailed(
                f"more than {_MOST_FILES} files count for one environment, '{path}' among them"
            )
        return False


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(text: str) -> Iterator[str]:
    """Yield what counts: whole lines, without comments (pip's requirements file format)."""
    for line in text.replace("\\\r\n", "").replace("\\\n", "").splitlines():
        if stripped := _COMMENT.sub("", line).strip():
            yield stripped


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for directory, names, files in os.walk(path):
            names[:] = sorted(name for name in names if not _LEFT_BY_BUILDS.fullmatch(name))
            paths = (Path(directory, name) for name in sorted(files))
            yield from (path for path in paths if path.is_file())  # a pipe would never end
