"""A model repository that is data: it changes, fails and dawdles as a scenario says.

What a `Disk` holds at a moment is written out to real directories, one for each content that there ever was,
because the server reads configurations from files. Those directories never change, so it does not matter when
they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from actors.catalog.settling import Seen
from chaos.languages.page import documents
from chaos.simulation.world.models import MODELS
from engine.repository.source import (
    Fetched,
    FetchFailed,
    FetchProgress,
    SourceUnavailable,
    Stamp,
    contents_of,
)

URI: Final = "disk"
ARTIFACT: Final = "model.bin"

_RECYCLE: Final = 'parameters { key: "tritium.recycle" value: { string_value: %s } }\n'


@dataclass(frozen=True, slots=True)
class Folder:
    """What one model's directory holds: files by path."""

    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """One that equal folders share."""
        whole = hashlib.sha256()
        for path in sorted(self.files):
            whole.update(f"{path}\0{len(self.files[path])}\0".encode() + self.files[path])
        return whole.hexdigest()[:16]


def folder_of(name: str, *, version: int = 1, weights: int = 0, recycle: str = "") -> Folder:
    """Return a model's directory with one version; other `weights` make other content that answers the same.

    `recycle` is what `tritium.recycle` is set to.
    """
    path = f"{version}/{ARTIFACT}"
    body = b"" if MODELS[name].kind == "ensemble" else f"weights {weights}".encode()
    if MODELS[name].kind == "ensemble":
        path = f"{version}/.keep"
    config = MODELS[name].text()
    if recycle:
        config += _RECYCLE % json.dumps(recycle)
    files = {"config.pbtxt": config.encode(), path: body}
    if MODELS[name].kind == "language":
        files |= {f"{version}/{each}": text.encode() for each, text in documents().items()}
    return Folder(files)


def broken(folder: Folder) -> Folder:
    """Return the same directory with a configuration that can't be read."""
    return replace(folder, files={**folder.files, "config.pbtxt": b"max_batch_size: { what"})


class Disk:
    """The repository. Implements `engine.repository.source.Source`."""

    def __init__(self, scratch: Path) -> None:
        """Directories are written below `scratch`, which may have been used before."""
        self.uri = URI
        self.folders: dict[str, Folder] = {}
        self.revisions: Counter[str] = Counter()  # of each model: what its stamp shows
        self.unavailable = ""  # why it can't be read just now
        self.fetched = 0
        self.released = 0
        self._scratch = scratch

    def put(self, name: str, folder: Folder) -> None:
        """Have the model hold this from now on."""
        self.folders[name] = folder
        self.revisions[name] += 1

    def remove(self, name: str) -> None:
        """Take the model away."""
        self.folders.pop(name, None)
        self.revisions[name] += 1

    # -- engine.repository.source.Source ---------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """See `Source`."""
        self._check()
        return sorted(self.folders)

    def stamp(self, name: str) -> Stamp | None:
        """See `Source`."""
        self._check()
        folder = self.folders.get(name)
        if folder is None:
            return None
        token = str(self.revisions[name])
        return Stamp(tuple((path, len(body), token) for path, body in sorted(folder.files.items())))

    def look(self, name: str, *, alive: Callable[[], None]) -> Seen | None:
        """See `engine.repository.observation.Looked`."""
        alive()
        stamp = self.stamp(name)
        return None if stamp is None else Seen(stamp)

    def fetch(
        self, name: str, *, progress: Callable[[FetchProgress], None], cancelled: Callable[[], bool]
    ) -> Fetched:
        """See `Source`."""
        self._check()
        folder = self.folders.get(name)
        if folder is None:
            raise FetchFailed(f"there is no model '{name}' any more")
        directory = self._written(name, folder)
        digests = {path: hashlib.sha256(body).hexdigest() for path, body in folder.files.items()}
        tops = {path.partition("/")[0] for path in folder.files if "/" in path}
        self.fetched += 1
        return Fetched(path=directory, contents=contents_of(digests, tops), verified=True)

    def release(self, path: Path) -> None:
        """See `Source`."""
        self.released += 1

    def _check(self) -> None:
        if self.unavailable:
            raise SourceUnavailable(self.unavailable)

    def _written(self, name: str, folder: Folder) -> Path:
        directory = self._scratch / folder.digest / name
        if not directory.is_dir():
            aside = self._scratch / f"{folder.digest}.new" / name
            for path, body in folder.files.items():
                (aside / path).parent.mkdir(parents=True, exist_ok=True)
                (aside / path).write_bytes(body)
            directory.parent.mkdir(exist_ok=True)  # another model may hold the same
            aside.rename(directory)
        return directory
