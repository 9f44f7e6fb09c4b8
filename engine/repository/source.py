"""Where models come from: the seam between a repository's storage and everything that loads from it.

A source lists names, tells cheaply whether a model changed (`stamp`), and hands out a local directory to load
from (`fetch`), which it keeps whole until `release`. Everything here is synchronous, is called from worker
threads, and may be called by several at once. What a directory *holds* is described by digests of content
alone, the same for every source (`contents_of`). So a model that was copied, touched or moved to another
storage is still the same model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from engine.models.layout import ADAPTER_MARK, ADAPTERS_FILE
from engine.provenance.manifest import MANIFEST

_LEADING_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}(?![0-9])")
_LARGEST_VERSION: Final = 2**63 - 1
_MANIFEST_LINE: Final = re.compile(r"(\\?)([0-9A-Fa-f]{64}) [ *](.+)")


class SourceUnavailable(Exception):
    """The repository can't be read just now: a mount vanished, a network is down, credentials are refused.

    It says nothing about the models in it, and so is never an order to unload one.
    """


class FetchFailed(Exception):
    """This model can't be fetched as it stands in the repository; the message says why."""


class FetchCancelled(Exception):
    """The caller's `cancelled` said so. What was downloaded by then is kept for the next attempt."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A cheap identity of what is there now: (relative path, size, token) of every file, sorted.

    No content is read.

    The token is whatever changes when a file is written: a modification time, an entity tag.
    """

    files: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """SHA-256 digests (hex) of what a model directory holds.

    `digest` is of everything; `versions` of each version directory; `shared` of all that lies in none.
    Configuration files (`config.pbtxt`, `configs/`) are not in `shared`, because they are compared by what
    they mean. `without_adapters` is of each version directory without what an engine of language models takes
    up while it serves: `multi_lora.json`, and folders below that are LoRA adapters.
    """

    digest: str
    shared: str
    versions: Mapping[int, str]
    without_adapters: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchProgress:
    """How far a fetch has come; files and bytes that were found in a cache count as done."""

    files_done: int
    files: int
    bytes_done: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A local model directory, and what it holds if that was looked at.

    The last component of its path is the model's name, unless there is a `name`. If it is `verified` and has
    a manifest, every file listed there has been found to be what the manifest says.
    """

    path: Path
    contents: Contents | None
    verified: bool = False
    name: str = ""


class Source(Protocol):
    """One model repository. Every method may be called from several threads at once."""

    @property
    def uri(self) -> str:
        """The repository as the operator wrote it, which is its namespace too."""

    def names(self) -> Sequence[str]:
        """Return the candidate model names, sorted. Raises SourceUnavailable."""

    def stamp(self, name: str) -> Stamp | None:
        """Return what is there of the model `name`, or None if there is no such model.

        Raises SourceUnavailable.
        """

    def fetch(
        self,
        name: str,
        *,
        progress: Callable[[FetchProgress], None],
        cancelled: Callable[[], bool],
    ) -> Fetched:
        """Return a local directory of the model `name`, which stays as it is until it is released.

        `progress` is called on the caller's thread, now and then; `cancelled` on any thread, and must not
        wait. Raises SourceUnavailable, FetchFailed (the model is gone, or is not fit to be fetched),
        FetchCancelled.
        """

    def release(self, path: Path) -> None:
        """Take note that a directory which `fetch` returned is no longer used.

        Call it once for each fetch; it never raises.
        """


def version_of(directory: str) -> int | None:
    """Return the version that a directory's name stands for by the digits it begins with, or None."""
    digits = _LEADING_NUMBER.match(directory)
    if digits is None or int(digits[0]) > _LARGEST_VERSION:
        return None
    return int(digits[0])


def contents_of(files: Mapping[str, str], directories: Iterable[str] = ()) -> Contents:
    """Return the digests of a model directory from its files' digests.

    `files` maps relative POSIX paths to SHA-256 hex digests. `directories` names the version directories that
    may hold no file at all (an ensemble's); deeper ones don't matter. Of two directories for one version the
    first by name counts, as it does when versions are found, and the other is shared content.
    """
    tops = {PurePosixPath(path).parts[0] for path in files if "/" in path}
    tops.update(PurePosixPath(path).parts[0] for path in directories if path.strip("/"))
    directory_of: dict[int, str] = {}
    for top in sorted(tops):
        version = version_of(top)
        if version is not None:
            directory_of.setdefault(version, top)
    version_named = {top: version for version, top in directory_of.items()}
    parts: dict[int | None, dict[str, str]] = {None: {}, **{version: {} for version in directory_of}}
    configuration: dict[str, str] = {}
    for path, digest in files.items():
        top, slash, rest = path.partition("/")
        version = version_named.get(top) if slash else None
        if path == "config.pbtxt" or (slash and top == "configs"):
            configuration[path] = digest
        else:
            parts[version][path if version is None else rest] = digest
    shared = _digest(parts.pop(None))
    versions = {version: _digest(part) for version, part in sorted(parts.items()) if version is not None}
    whole = {str(version): digest for version, digest in versions.items()}
    whole |= {"": shared, "configuration": _digest(configuration)}
    return Contents(
        digest=_digest(whole),
        shared=shared,
        versions=versions,
        without_adapters={
            version: _digest(_without_adapters(part))
            for version, part in parts.items()
            if version is not None
        },
    )


def _without_adapters(files: Mapping[str, str]) -> Mapping[str, str]:
    # A model's own folder may say that it is one, which keeps it from loading.
    marks = {path.rpartition("/")[0] for path in files if path.endswith(f"/{ADAPTER_MARK}")}
    folders = tuple(f"{folder}/" for folder in marks)
    return {
        path: digest
        for path, digest in files.items()
        if path != ADAPTERS_FILE and not path.startswith(folders)
    }


def read_manifest(text: str) -> dict[str, str]:
    """Return the digests of a `SHA256SUMS` file by path, relative and without `./`.

    Empty lines, lines that begin with `#`, and what a manifest says of itself (it was being written) mean
    nothing. Raises ValueError, naming the line, at any other line that is not one of `sha256sum`'s, and at a
    path that is absolute or leads upwards.
    """
    found: dict[str, str] = {}
    # `splitlines` would also end a line within a name, for example at a U+2028, which `sha256sum` writes as
    # it is.
    for number, ended in enumerate(text.split("\n"), start=1):
        line = ended.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        match = _MANIFEST_LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{MANIFEST}:{number}: expected '<sha256>  <path>', got {line[:80]!r}")
        escaped, digest, path = match.groups()
        if escaped:  # sha256sum marks a line whose file name holds a backslash or a line feed
            path = re.sub(r"\\([\\nr])", lambda found: {"\\": "\\", "n": "\n", "r": "\r"}[found[1]], path)
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts or "\0" in path:
            raise ValueError(f"{MANIFEST}:{number}: '{path}' is not a path inside the model's directory")
        found["/".join(parts)] = digest.lower()
    found.pop(MANIFEST, None)
    return found


def _digest(digests: Mapping[str, str]) -> str:
    whole = hashlib.sha256()
    for path in sorted(digests):
        name = path.encode("utf-8", "surrogateescape")
        whole.update(len(name).to_bytes(8, "big") + name + digests[path].encode("ascii"))
    return whole.hexdigest()
