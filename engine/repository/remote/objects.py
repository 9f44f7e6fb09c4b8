"""Which files a model's objects stand for. Pure: nothing here touches a network or a disk.

An object's key may be anything its writer liked; a path that is written to may not. What can't be a file
inside the model's directory is refused here, before a byte of it is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.repository.source import FetchFailed, Stamp

_LONGEST_NAME: Final = 255  # bytes; NAME_MAX of every Linux file system that matters
_LONGEST_PATH: Final = 2048  # bytes, below the cache's own directory: with it, below PATH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """One object as a listing shows it. `etag` is without quotation marks, "" if the storage gives none."""

    key: str
    size: int
    etag: str
    modified: str
    version: str = ""

    @property
    def token(self) -> str:
        """What changes when the object is written."""
        return self.etag or self.modified

    def identity(self, storage: str) -> str:
        """Return a name for these very bytes in `storage`, fit to be a file's name."""
        # With an entity tag the time is no part of it, because writing the same bytes again gives the same
        # tag.
        stamp = [self.etag, self.version] if self.etag else [self.modified, self.version]
        return hashlib.sha256(json.dumps([storage, self.key, self.size, *stamp]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a model by relative path, and the empty objects that may stand for directories."""

    files: Mapping[str, RemoteObject] = field(default_factory=dict)
    markers: Mapping[str, RemoteObject] = field(default_factory=dict)

    @property
    def stamp(self) -> Stamp:
        """The identity of what is there."""
        both = {**self.files, **self.markers}
        return Stamp(tuple((path, both[path].size, both[path].token) for path in sorted(both)))


def is_model_name(name: str) -> bool:
    """Return whether `name` may be a model's directory."""
    return not _fault(name) and "/" not in name and "\\" not in name


def tree_of(root: str, objects: Iterable[RemoteObject]) -> Tree:
    """Return the tree of the objects under the key `root`.

    Storages have no directories; tools leave empty objects in their place. An empty object that others lie
    under is such a directory. Any other empty object may be one, which only the storage can tell (`markers`).
    Raises FetchFailed at a key that can't be a file below `root`.
    """
    found: dict[str, RemoteObject] = {}
    for entry in objects:
        path = entry.key.removeprefix(f"{root}/")
        if path == entry.key:  # a marker of the model's directory itself
            if entry.size:
                raise FetchFailed(f"'{entry.key}' is a file, where a model's directory is expected")
            continue
        fault = _fault(path)
        if fault:
            raise FetchFailed(f"object {entry.key!r} can't be a file of a model: {fault}")
        if path not in found or entry.size:  # `a` and `a/` are listed under one path
            found[path] = entry
    parents = {parent for path in found for parent in _parents(path)}
    for path in sorted(parents & found.keys()):
        if found[path].size:
            raise FetchFailed(f"'{found[path].key}' is a file, and others lie under it as in a directory")
        del found[path]
    return Tree(
        files={path: entry for path, entry in sorted(found.items()) if entry.size},
        markers={path: entry for path, entry in sorted(found.items()) if not entry.size},
    )


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _fault(path: str) -> str:
    """Return why `path` can't be a relative path of a file, or an empty string."""
    if "\0" in path:
        return "its name holds a NUL"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "its name is not text"
    if len(encoded) > _LONGEST_PATH:
        return f"its path is longer than {_LONGEST_PATH} bytes"
    for part in encoded.split(b"/"):
        if part in (b"", b".", b".."):
            return f"a component of its path is '{part.decode()}'"
        if len(part) > _LONGEST_NAME:
            return f"a component of its path is longer than {_LONGEST_NAME} bytes"
    return ""
