"""A bucket in memory, whose objects can be damaged, withheld and changed under a reader."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.repository.remote.cache import DEFAULT_LIMIT, Cache
from engine.repository.remote.objects import RemoteObject
from engine.repository.remote.source import RemoteSource
from engine.repository.remote.stores import Bucket, ObjectChanged
from engine.repository.source import Fetched, FetchProgress
from engine.settings.uris import Location, Scheme

CHUNK = 1 << 20


class MemoryBucket:
    """Implements `Bucket`, and a source's `Buckets`."""

    def __init__(self, **models: dict[str, bytes]) -> None:
        self.contents: dict[str, bytes] = {}
        self.markers: set[str] = set()  # keys that end with a slash, listed without
        self.tags: dict[str, str] = {}  # entity tags that are no MD5
        self.sent = 0
        self.requests: list[tuple[str, int, int]] = []
        self.most_at_once = 0
        self.damage: Callable[[str, bytes], bytes] = lambda _, chunk: chunk
        self.before_chunk: Callable[[str, int], None] = lambda _, __: None
        self.unavailable: Exception | None = None
        self._at_once = 0
        self._lock = threading.Lock()
        for name, files in models.items():
            for path, content in files.items():
                self.contents[f"repo/{name}/{path}"] = content

    @property
    def storage(self) -> str:
        return "memory://bucket"

    def of(self, name: str) -> Bucket:
        return self

    def directories(self, prefix: str) -> list[str]:
        self._check()
        return sorted({key.split("/")[1] for key in self.contents if key.count("/") > 1})

    def objects(self, prefix: str) -> list[RemoteObject]:
        self._check()
        found = [self.entry(key) for key in sorted(self.contents) if f"{key}/".startswith(f"{prefix}/")]
        return found + [
            RemoteObject(key=key, size=0, etag="marker", modified="") for key in sorted(self.markers)
        ]

    def exists(self, key: str) -> bool:
        self._check()
        return key in self.contents

    def read(self, entry: RemoteObject, start: int, stop: int) -> Iterator[bytes]:
        self._check()
        with self._lock:
            self.requests.append((entry.key, start, stop))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            for at in range(start, stop, CHUNK):
                self.before_chunk(entry.key, at)
                if entry.key not in self.contents or self.entry(entry.key) != entry:
                    raise ObjectChanged(entry.key)
                chunk = self.contents[entry.key][at : min(at + CHUNK, stop)]
                with self._lock:
                    self.sent += len(chunk)
                yield self.damage(entry.key, chunk)
        finally:
            with self._lock:
                self._at_once -= 1

    def entry(self, key: str) -> RemoteObject:
        content = self.contents[key]
        tag = self.tags.get(key) or hashlib.md5(content, usedforsecurity=False).hexdigest()
        return RemoteObject(key=key, size=len(content), etag=tag, modified="2026-01-01T00:00:00+00:00")

    def _check(self) -> None:
        if self.unavailable is not None:
            raise self.unavailable


def source_over(
    bucket: MemoryBucket, cache: Path, *, parallelism: int = 4, limit: int = DEFAULT_LIMIT
) -> RemoteSource:
    """Return a source of the repository `repo` in the bucket."""
    return RemoteSource(
        "s3://bucket/repo",
        Location(scheme=Scheme.S3, bucket="bucket", prefix="repo"),
        buckets=bucket,
        cache=Cache(cache, limit=limit),
        parallelism=parallelism,
    )


def fetch(source: RemoteSource, name: str) -> Fetched:
    """Fetch without an observer of the progress."""
    return source.fetch(name, progress=unseen, cancelled=never)


def unseen(progress: FetchProgress) -> None:
    """Look away."""


def never() -> bool:
    """Let it be finished."""
    return False


def read(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
