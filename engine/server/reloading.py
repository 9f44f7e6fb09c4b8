"""Files of the operator that are read again while the server runs: when they change, and when it is told to.

It is told by SIGHUP, which rings a bell that `engine.server.run` gives to the tree. What is read from files
joins as a `Followed`, and a `Follower` in the tree looks after it. Files that can't be used leave what was
read before in place.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import trio

from actors.seams.bell import Bell
from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec
from actors.values.events import Event, Log

T = TypeVar("T")

PERIOD: Final = 2.0
"""Seconds between two looks at the files. A change counts once two looks in a row found the same."""

_PIECE: Final = 1024 * 1024  # bytes that are read at once

Look = tuple[tuple[int, ...], ...]
"""What the file system says of each file, without reading it."""


class NotReloaded(Exception):
    """The files can't be used as they are.

    The message is for the operator: which file, what is wrong in which place, what would have worked.
    """


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a set of files was at one moment. Their content has changed where digests differ."""

    look: Look
    digest: bytes


def look_at(files: Sequence[str]) -> Look:
    """Return what the file system says of `files`, or its error number. Blocks."""
    return tuple(map(_look, files))


def stamp_of(files: Sequence[str]) -> Stamp:
    """Return what `files` are now. Blocks while they are read.

    Take it before the files are read for use. A change between the two is then noticed later.
    """
    look = look_at(files)
    digest = hashlib.blake2b()
    for path in files:
        digest.update(_content(path))
    return Stamp(look, digest.digest())


def _look(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # of a link: the file that it leads to, which Kubernetes exchanges
    except OSError as error:
        return (error.errno or 0,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _content(path: str) -> bytes:
    """Return a digest of a file's content, or of why it can't be read."""
    digest = hashlib.blake2b()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        digest.update(b"error %d" % (error.errno or 0))
    return digest.digest()


class Followed(ABC, Generic[T]):
    """Something that was read from files, and can be read again.

    `name` stands in the tree and in the log. `files` may change with what is adopted. `stamp` is that of the
    files when they were read last, with success or without. `changed` says what the last files that were
    adopted have changed, for the audit log.
    """

    name: str
    files: Sequence[str]
    stamp: Stamp
    changed: Mapping[str, object] = MappingProxyType({})

    @abstractmethod
    def read(self) -> T:
        """Read the files. Runs in a thread, and changes nothing. Raises NotReloaded."""

    @abstractmethod
    def adopt(self, found: T) -> Mapping[str, object]:
        """Use what `read` returned from now on. Runs on the loop, and never waits.

        Returns what the log tells beside the name.
        """


Noting = Callable[[Mapping[str, object], str], None]
"""Told what was read again, and why it can't be used; empty where it is."""


class Follower:
    """Has one `Followed` read again: when its files' content changed, and when `asked` rings.

    `noting` is told for the audit log, if there is one.
    """

    def __init__(self, followed: Followed[T], asked: Bell, log: Log, noting: Noting | None = None) -> None:
        self._noting = noting
        self._followed = followed
        self._asked = asked
        self._heard = asked.rings
        self._log = log
        self._last = followed.stamp.look

    def spec(self) -> ChildSpec:
        """Return the child spec of the actor."""
        return ChildSpec(self._followed.name, self.run)

    async def run(self, ctx: ChildContext) -> None:
        """Follow the files, for ever. The start function of a permanent child."""
        ctx.started()
        while True:
            with trio.move_on_after(PERIOD):
                await self._asked.wait(self._heard)
            if self._asked.rings > self._heard:
                self._heard = self._asked.rings
                await self._read(await in_thread(stamp_of, self._followed.files))
            else:
                await self._look()

    async def _look(self) -> None:
        """Read the files again if they have changed, and change no more."""
        known = self._followed.stamp
        look = await in_thread(look_at, self._followed.files)
        last, self._last = self._last, look
        if look == known.look or look != last:
            return
        stamp = await in_thread(stamp_of, self._followed.files)
        if stamp.digest == known.digest:
            self._followed.stamp = stamp
        else:
            await self._read(stamp)

    async def _read(self, stamp: Stamp) -> None:
        followed = self._followed
        try:
            found = await in_thread(followed.read)
        except NotReloaded as refusal:
            followed.stamp = stamp
            self._log(Event.RELOAD_FAILED, level="error", what=followed.name, error=str(refusal))
            if self._noting is not None:
                self._noting({"what": followed.name}, str(refusal))
            return
        followed.stamp = stamp
        facts = followed.adopt(found)
        self._log(Event.FILES_RELOADED, level="info", what=followed.name, **facts)
        if self._noting is not None:
            self._noting({"what": followed.name, **facts, **followed.changed}, "")
