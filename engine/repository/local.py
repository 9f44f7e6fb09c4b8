"""A repository in a local directory, which may be a mount that comes and goes.

Theory of operation. A directory is known by its device and inode. While something is mounted on it, it has
the identity of what is mounted. Without the mount the path leads to another directory, mostly an empty one,
and that must not be taken for a repository whose models were all removed. So a directory with another
identity than before is not believed. If it is empty, it never is. If it is not, it is believed once it has
been there for some seconds, which is how a mount comes back. An empty directory is also not believed after
the repository could not be read, since identities are used again. Each call opens the directory anew and
holds on to it, so that everything one call sees is of one directory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from actors.catalog.settling import Seen
from engine.models.layout import candidate_names, shown
from engine.models.links import Links, held
from engine.models.problems import Problem
from engine.repository.fingerprint import (
    Digests,
    LeadsOut,
    Root,
    Survey,
    Unsettled,
    contents,
    is_broken_mount,
    survey,
)
from engine.repository.manifest import completeness
from engine.repository.source import (
    FetchCancelled,
    Fetched,
    FetchFailed,
    FetchProgress,
    SourceUnavailable,
    Stamp,
)

RETURN_AFTER: Final = 1.0
"""Seconds between two looks that must find the same directory before it counts as the repository's return."""


class LocalSource:
    """Implements `engine.repository.source.Source` over the directory at `path`.

    `digests` may be shared among sources. With `compare` false the contents of models are not needed, and
    `fetch` reads no file. `links` says how far those of models are followed. `clock` counts seconds and may
    stand anywhere; it is read from threads.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        digests: Digests | None = None,
        compare: bool = True,
        links: Links = Links.INSIDE,
        return_after: float = RETURN_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.digests = Digests() if digests is None else digests
        self.uri = str(path)  # as the operator wrote it
        self._path = Path(path).absolute()
        self._compare = compare
        self._links = links
        self._return_after = return_after
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[int, int] | None = None  # the identity that is believed
        self._newcomer: tuple[tuple[int, int], float] | None = None  # another one, and since when
        self._had_models = False  # when it was listed last
        self._lost = False  # and could not be read since
        self._previous: dict[str, Survey] = {}  # of each model's last look
        self._held: dict[tuple[int, int], int] = {}  # open repositories in other containers, by identity

    def names(self) -> Sequence[str]:
        """Return the names of the first-level directories, sorted. Raises SourceUnavailable."""
        with self._opened() as root:
            names = candidate_names(root.fd)
        self._had_models = bool(names)
        for gone in set(self._previous).difference(names):
            self._previous.pop(gone, None)
        return names

    def stamp(self, name: str) -> Stamp | None:
        """Return what is there of the model `name`, or None if there is no such model.

        Raises SourceUnavailable.
        """
        found = self._survey(name)
        return None if found is None else found.stamp

    def problems(self, name: str) -> tuple[Problem, ...]:
        """Return what makes a model's directory unfit to be served, such as a link out.

        Raises SourceUnavailable.
        """
        found = self._survey(name)
        return () if found is None else found.problems

    def look(self, name: str, *, alive: Callable[[], None] = lambda: None) -> Seen | None:
        """Return the stamp of a model and whether it is complete, or None if there is no such model.

        This is for the watcher, which looks at one model after the other. `alive` is called now and then.
        Raises SourceUnavailable.
        """
        with self._opened() as root:
            found = survey(root, name, alive=alive) if _is_plain(name) else None
            if found is None:
                return None
            previous = self._previous.get(name)
            self._previous[name] = found
            known = completeness(root, found, self.digests, previous=previous, alive=alive)
        return Seen(found.stamp, known)

    def fetch(
        self,
        name: str,
        *,
        progress: Callable[[FetchProgress], None],
        cancelled: Callable[[], bool],
    ) -> Fetched:
        """Return the model's own directory, and what it holds.

        Nothing is copied, so there is no progress to tell of. The directory stays as it is for as long as its
        owner leaves it alone. Raises SourceUnavailable, FetchCancelled, and FetchFailed if there is no such
        model, or if it is unfit or is being written.
        """
        del progress
        with self._opened() as root:
            found = survey(root, name) if _is_plain(name) else None
            if found is None:
                raise FetchFailed(f"there is no directory '{shown(name)}' in {self.uri}")
            if found.problems:
                raise FetchFailed("; ".join(problem.message for problem in found.problems))
            path = self._path_in(root, name)
            if not self._compare:
                return Fetched(path=path, contents=None)
            try:
                found_contents = contents(root, found, self.digests, cancelled=cancelled)
            except (Unsettled, LeadsOut) as error:
                raise FetchFailed(f"model '{name}' is being changed: {error}") from error
            except OSError as error:
                if is_broken_mount(error):
                    raise
                raise FetchFailed(f"model '{name}' can't be read: {error.strerror or error}") from error
            again = survey(root, name)
            if again is None or again.stamp != found.stamp:
                raise FetchFailed(f"model '{name}' is being changed")
        if cancelled():
            raise FetchCancelled
        return Fetched(path=path, contents=found_contents)

    def release(self, path: Path) -> None:
        """Do nothing: the directory is the owner's."""

    def _survey(self, name: str) -> Survey | None:
        with self._opened() as root:
            return survey(root, name) if _is_plain(name) else None

    @contextmanager
    def _opened(self) -> Iterator[Root]:
        """Open the repository for the time of the block.

        Raises SourceUnavailable, also for what happens in the block.
        """
        try:
            with Root(self._path, self._links) as root:
                self._admit(root)
                yield root
        except OSError as error:
            self._lost = True
            raise SourceUnavailable(f"{self.uri} can't be read: {error.strerror or error}") from error

    def _path_in(self, root: Root, name: str) -> Path:
        """Return where a model lies, for this process and for its workers.

        A repository in another container stays open until this process ends: its models have paths through
        the descriptor. One of another identity, which a restarted container has, gets another descriptor.
        """
        if not root.is_elsewhere:
            return Path(root.path, name)
        with self._lock:
            if root.identity not in self._held:
                self._held[root.identity] = os.dup(root.fd)
            return held(self._held[root.identity], name)

    def _admit(self, root: Root) -> None:
        """Raise SourceUnavailable if what is open is not known to be the repository."""
        identity = root.identity
        with self._lock:
            if self._known is None:
                self._known = identity
            same = identity == self._known
            if same and not self._lost:
                return
            self._lost = True
            if not candidate_names(root.fd) and (self._had_models or not same):
                self._newcomer = None
                raise SourceUnavailable(
                    f"{self.uri} is another directory than before, and empty: is something not mounted?"
                )
            if same:
                self._lost, self._newcomer = False, None
                return
            now = self._clock()
            if self._newcomer is None or self._newcomer[0] != identity:
                self._newcomer = (identity, now)
            if now - self._newcomer[1] < self._return_after or self._newcomer[1] == now:
                raise SourceUnavailable(
                    f"{self.uri} is another directory than before; it is believed once it stays"
                )
            self._known, self._newcomer, self._lost = identity, None, False


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name
