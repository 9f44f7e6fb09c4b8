"""From objects to files in a directory under construction.

Downloads are parallel, resumable, checked, and stopped between chunks.

A fetch is a handful of steps for each object: look in the cache or take up the download (`_begin`), transfer
segments (`_transfer`), check and keep the whole (`_finish`). A step runs on the source's threads, which bound
what all its fetches do at once, and returns the steps that follow. The caller's thread deals them out, no
more at a time than would fill the threads, so that a small model isn't behind all of a large one.

A call into the library can't be interrupted. When a fetch ends early its last steps are left behind, each to
notice after its chunk. An object's download stays locked until the last of them is done with it.
"""

from __future__ import annotations

import functools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from engine.provenance.manifest import MANIFEST
from engine.repository.remote.cache import Cache
from engine.repository.remote.objects import RemoteObject
from engine.repository.remote.partials import Partial
from engine.repository.remote.stores import Bucket
from engine.repository.remote.trees import Staging
from engine.repository.source import FetchCancelled, FetchFailed

SEGMENT: Final = 8 << 20  # bytes asked for in one request
_TICK: Final = 0.1  # seconds: how soon `cancelled`, or another's finished download, is noticed
_MD5: Final = re.compile(r"[0-9a-f]{32}")

Step = Callable[[], "Sequence[Step]"]


class _Stopped(Exception):
    """The fetch that this step belongs to has ended."""


class Verdict(Enum):
    """What becomes of an object that has arrived in whole."""

    KEEP = "keep"
    REPEAT = "repeat"
    REFUSE = "refuse"
    DAMAGED = "damaged"


def judge(digest: str, *, expected: str, fits_tag: bool, doubted: str) -> Verdict:
    """Judge bytes with this SHA-256.

    `expected` is what the model's manifest says, or "". `doubted` is the digest that the object arrived with
    before, or "".
    """
    # A manifest outweighs a tag; and if the same bytes arrived twice, it is the tag that is no MD5.
    if digest == expected if expected else (fits_tag or digest == doubted):
        return Verdict.KEEP
    if not doubted:
        return Verdict.REPEAT
    return Verdict.REFUSE if digest == doubted else Verdict.DAMAGED


class Tags:
    """Whether a storage's entity tags are MD5 digests of the bytes, as most are that look so.

    The tags of objects encrypted with keys of a key service look so as well. So a tag that doesn't fit its
    bytes is no evidence until the object has arrived a second time, in a transfer of its own, exactly the
    same.
    """

    def __init__(self) -> None:
        self.are_md5 = True

    def speak_of(self, entry: RemoteObject) -> bool:
        """Return whether the tag of `entry` ought to be its MD5."""
        return self.are_md5 and _MD5.fullmatch(entry.etag) is not None


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """One object on its way."""

    path: str
    entry: RemoteObject
    identity: str
    expected: str  # its digest according to the model's manifest, or ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    partial: Partial | None = None
    working: int = 0
    left: int = 0  # segments
    abandoned: bool = False
    doubted: str = ""  # the digest that it arrived with, when that didn't fit
    digest: str = ""

    @contextmanager
    def at_work(self) -> Iterator[Partial]:
        """Keep the download open while a step works on it."""
        with self.lock:
            if self.abandoned or self.partial is None:
                raise _Stopped
            self.working += 1
            partial = self.partial
        try:
            yield partial
        finally:
            self._done()

    def take_up(self, partial: Partial) -> None:
        """Own the download."""
        with self.lock:
            self.partial = partial
            if self.abandoned:
                self._close()
                raise _Stopped

    def abandon(self) -> None:
        """Let go of the download as soon as no step works on it."""
        with self.lock:
            self.abandoned = True
            if not self.working:
                self._close()

    def _done(self) -> None:
        with self.lock:
            self.working -= 1
            if not self.working and self.abandoned:
                self._close()

    def _close(self) -> None:
        if self.partial is not None:
            self.partial.close()
            self.partial = None


class Download:
    """The objects of one fetch. `run` may be called again with others, which are counted on."""

    def __init__(
        self,
        *,
        bucket: Bucket,
        cache: Cache,
        staging: Staging,
        tags: Tags,
        pool: Executor,
        width: int,
        advanced: Callable[[int, int], None],
        told: Callable[[], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._bucket = bucket
        self._cache = cache
        self._staging = staging
        self._tags = tags
        self._pool = pool
        self._width = width
        self._advanced = advanced  # from any thread: files and bytes, more than before
        self._told = told  # from the caller's own thread, now and then
        self._cancelled = cancelled
        self._stopped = threading.Event()

    def run(self, files: Mapping[str, RemoteObject], expected: Mapping[str, str]) -> dict[str, str]:
        """Bring `files` into the staging directory and return their SHA-256 digests.

        `expected` holds the digests that some of them must have. Raises FetchFailed, FetchCancelled,
        SourceUnavailable, `stores.ObjectChanged`, OSError.
        """
        jobs = [
            _Job(
                path=path,
                entry=entry,
                identity=entry.identity(self._bucket.storage),
                expected=expected.get(path, ""),
            )
            for path, entry in files.items()
        ]
        try:
            self._deal(deque(functools.partial(self._begin, job) for job in jobs))
        finally:
            for job in jobs:
                job.abandon()
        return {job.path: job.digest for job in jobs}

    def markers(self, markers: Mapping[str, RemoteObject]) -> tuple[dict[str, RemoteObject], list[str]]:
        """Return which of some empty objects are files; and the others, which are directories, made."""
        answers: dict[str, bool] = {}

        def ask(path: str, entry: RemoteObject) -> Sequence[Step]:
            answers[path] = self._bucket.exists(entry.key)
            return ()

        self._deal(deque(functools.partial(ask, *marker) for marker in markers.items()))
        directories = [path for path in markers if not answers[path]]
        for path in directories:
            self._staging.path(path).mkdir(exist_ok=True)
        return {path: entry for path, entry in markers.items() if answers[path]}, directories

    def _deal(self, ready: deque[Step]) -> None:
        """Run steps, and those that follow from them, until none is left. What fails stops those that run."""
        running: set[Future[Sequence[Step]]] = set()
        # What others are working on. It is looked at again after a while in which nothing else was done.
        later: list[Step] = []
        try:
            while ready or running or later:
                self._check()
                while ready and len(running) < self._width:
                    running.add(self._pool.submit(self._in_turn, ready.popleft()))
                done: set[Future[Sequence[Step]]] = set()
                if running:
                    done, running = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED)
                else:
                    self._stopped.wait(_TICK)
                for future in done:
                    for step in reversed(future.result()):
                        # What was begun goes first: it is finished before more is begun.
                        (later.append if isinstance(step, _Later) else ready.appendleft)(step)
                if not done:
                    ready.extend(later)
                    later.clear()
                self._told()
        except BaseException:
            self._stopped.set()
            raise
        finally:
            for future in running:
                future.cancel()

    def _in_turn(self, step: Step) -> Sequence[Step]:
        self._check()
        return step()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _Stopped
        if self._cancelled():
            raise FetchCancelled

    def _begin(self, job: _Job) -> Sequence[Step]:
        if self._cached(job):
            return ()
        partial = self._cache.partial(job.identity, job.entry.size)
        if partial is None:
            return (_Later(self._begin, job),)
        job.take_up(partial)
        # The download's last holder has completed it until now.
        if self._cached(job):
            with job.at_work():
                partial.discard()
            return ()
        self._advanced(0, partial.held)
        return self._segments(job)

    def _cached(self, job: _Job) -> bool:
        """Put the object in its place if the cache has it."""
        digest = self._cache.find(job.identity, job.entry.size)
        if digest is None:
            return False
        if job.expected and digest != job.expected:
            self._cache.forget(job.identity)
            return False
        if not self._cache.place(digest, self._staging.path(job.path)):
            return False
        job.digest = digest
        self._advanced(1, job.entry.size)
        return True

    def _segments(self, job: _Job) -> Sequence[Step]:
        """Return the steps that transfer what is missing; the last to be done goes on to the end."""
        with job.at_work() as partial:
            missing = partial.missing(SEGMENT)
        if not missing:
            return self._finish(job)
        with job.lock:
            job.left = len(missing)
        return [functools.partial(self._transfer, job, start, stop) for start, stop in missing]

    def _transfer(self, job: _Job, start: int, stop: int) -> Sequence[Step]:
        with job.at_work() as partial:
            at = start
            for chunk in self._bucket.read(job.entry, start, stop):
                partial.write(at, chunk)
                at += len(chunk)
                self._check()
                self._advanced(0, len(chunk))
        with job.lock:
            job.left -= 1
            last = not job.left
        return self._finish(job) if last else ()

    def _finish(self, job: _Job) -> Sequence[Step]:
        with job.at_work() as partial:
            by_tag = self._tags.speak_of(job.entry)
            digest, md5 = partial.digests(md5=by_tag)
            fits_tag = not by_tag or md5 == job.entry.etag
            match judge(digest, expected=job.expected, fits_tag=fits_tag, doubted=job.doubted):
                case Verdict.KEEP:
                    if not fits_tag:
                        self._tags.are_md5 = False
                    self._cache.adopt(partial, job.identity, digest, self._staging.path(job.path))
                    job.digest = digest
                    self._advanced(1, 0)
                case Verdict.REPEAT:
                    job.doubted = digest
                    partial.restart()
                    self._advanced(0, -partial.size)
                case Verdict.REFUSE:
                    partial.discard()
                    raise FetchFailed(
                        f"'{job.entry.key}' is not what {MANIFEST} says: its SHA-256 is {digest}, not {job.expected}"
                    )
                case Verdict.DAMAGED:
                    partial.discard()
                    raise FetchFailed(
                        f"'{job.entry.key}' arrived damaged, twice and each time in another way"
                    )
        if not job.digest:
            return self._segments(job)
        job.abandon()
        return ()


class _Later(functools.partial[Sequence[Step]]):
    """A step that can't be taken just now."""
