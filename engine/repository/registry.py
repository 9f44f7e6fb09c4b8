"""Repositories that come and go while the server runs.

In such a repository, folders may be models of other names than theirs: a platform that puts each model into a
folder `model` names it apart.

Contract: repository.md section 10, "Repository registration".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from actors.seams.threads import in_thread
from actors.values.errors import AlreadyExists, InvalidArgument, Unsupported
from engine.repository.reader import RepositoryReader
from engine.repository.source import Fetched, FetchProgress, Source, SourceUnavailable, Stamp

NOT_EXPLICIT: Final = "repository registration is not allowed if model control mode is not EXPLICIT"

Leaving = Callable[[Collection[str], str], None]
"""Told which models, by name, have left with which repository."""


class RenamedModels:
    """A repository some of whose folders are models of other names: implements `Source`."""

    def __init__(self, source: Source, models: Mapping[str, str]) -> None:
        """`models` maps names to folders. A folder that is called like one of these names is left out."""
        self._source = source
        self._folders: Mapping[str, str] = MappingProxyType(dict(models))
        self._hidden = frozenset((*models, *models.values()))

    @property
    def uri(self) -> str:
        """See `Source`."""
        return self._source.uri

    def names(self) -> Sequence[str]:
        """See `Source`."""
        there = self._source.names()
        renamed = [name for name, folder in self._folders.items() if folder in there]
        return sorted([*renamed, *(name for name in there if name not in self._hidden)])

    def stamp(self, name: str) -> Stamp | None:
        """See `Source`."""
        return self._source.stamp(self._folders.get(name, name))

    def fetch(
        self, name: str, *, progress: Callable[[FetchProgress], None], cancelled: Callable[[], bool]
    ) -> Fetched:
        """See `Source`."""
        folder = self._folders.get(name)
        fetched = self._source.fetch(folder or name, progress=progress, cancelled=cancelled)
        return fetched if folder is None else replace(fetched, name=name)

    def release(self, path: Path) -> None:
        """See `Source`."""
        self._source.release(path)


class Registry:
    """Implements `actors.values.interfaces.Registrations` over the repositories of a reader."""

    def __init__(
        self,
        reader: RepositoryReader,
        open_source: Callable[[str], Source],
        leaving: Leaving,
        *,
        explicit: bool,
    ) -> None:
        self._reader = reader
        self._open = open_source
        self._leaving = leaving
        self._explicit = explicit
        self._models: dict[str, Mapping[str, str]] = {}  # of each repository that was registered

    async def register(self, path: str, models: Mapping[str, str]) -> None:
        """See `Registrations`."""
        if not self._explicit:
            raise Unsupported(NOT_EXPLICIT)
        look = partial(_look, path, list(self._reader.sources), frozenset(models))
        is_there, elsewhere = await in_thread(look, abandon_on_cancel=True)
        if not is_there:
            raise InvalidArgument(f"failed to register '{path}', repository not found")
        # No other task has a turn from here on.
        if any(source.uri == path for source in self._reader.sources):
            raise AlreadyExists(f"model repository '{path}' has already been registered")
        for name in models:
            # A model that another repository has would be in two, and then neither would be served.
            if name in elsewhere or any(name in taken for taken in self._models.values()):
                raise AlreadyExists(
                    f"failed to register '{name}', there is a conflicting mapping for '{name}'"
                )
        self._models[path] = models
        self._reader.add(RenamedModels(self._open(path), models))

    def unregister(self, path: str) -> None:
        """See `Registrations`."""
        models = self._models.pop(path, None)
        if models is None:
            raise InvalidArgument(f"failed to unregister '{path}', repository not found")
        self._reader.remove(path)
        self._leaving(models.keys(), path)


def _look(path: str, sources: Sequence[Source], models: frozenset[str]) -> tuple[bool, frozenset[str]]:
    """Return whether there is a folder at `path`, and which of `models` other repositories have."""
    elsewhere: set[str] = set()
    for source in sources:
        if models and source.uri != path:
            with suppress(
                OSError, SourceUnavailable
            ):  # one that can't be read has no model that could be loaded either
                elsewhere.update(models.intersection(source.names()))
    return os.path.isdir(path), frozenset(elsewhere)
