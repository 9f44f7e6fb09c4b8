"""A model repository in an object storage. Implements `engine.repository.source.Source`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from actors.values.errors import TritiumError
from engine.provenance.manifest import MANIFEST
from engine.repository.fingerprint import is_manifest, speaks_about_the_model
from engine.repository.remote import credentials
from engine.repository.remote.cache import DEFAULT_LIMIT, Cache
from engine.repository.remote.download import Download, Tags
from engine.repository.remote.objects import Tree, is_model_name, tree_of
from engine.repository.remote.stores import PATIENCE, Bucket, CloudBucket, ObjectChanged, Patience
from engine.repository.remote.trees import Trees
from engine.repository.source import (
    FetchCancelled,
    Fetched,
    FetchFailed,
    FetchProgress,
    SourceUnavailable,
    Stamp,
    contents_of,
    read_manifest,
)
from engine.settings.uris import Location, Scheme, parse, without_query

# Triton's variables for where remote models are put, by the storage they come from.
_MOUNTS: Final[Mapping[Scheme, str]] = {
    Scheme.S3: "TRITON_AWS_MOUNT_DIRECTORY",
    Scheme.GCS: "TRITON_GCS_MOUNT_DIRECTORY",
    Scheme.AZURE: "TRITON_AZURE_MOUNT_DIRECTORY",
}
_FOLDER: Final = "tritium-storage"
_LISTINGS: Final = 3  # how often a model may change under a fetch
_LARGEST_MANIFEST: Final = 16 << 20  # bytes


def open_source(
    uri: str,
    environ: Mapping[str, str],
    *,
    cache_directory: Path,
    parallelism: int = 8,
    cache_bytes: int = DEFAULT_LIMIT,
    patience: Patience = PATIENCE,
) -> RemoteSource:
    """Return the repository at a remote `uri`, whose downloads are kept below `cache_directory`.

    `environ` holds the credentials and the endpoints, and is the process's own: AWS's chain and the Azure
    identities read some of it themselves. `parallelism` bounds the requests at a time, and `cache_bytes`
    bounds what is kept of models that aren't in use. Nothing is asked of the storage yet.

    Raises a TritiumError with the contract's text if the URI, the credential file or the environment says
    nothing usable, or if the library isn't installed.
    """
    location = parse(uri)
    parent = environ.get(_MOUNTS[location.scheme])
    return RemoteSource(
        uri,
        location,
        buckets=_Clouds(uri, location, environ, patience),
        cache=Cache((Path(parent) if parent else cache_directory) / _FOLDER, limit=cache_bytes),
        parallelism=parallelism,
    )


class Buckets(Protocol):
    """Where a repository's models are asked for."""

    def of(self, name: str) -> Bucket:
        """Return the bucket for the model `name`, "" for the repository itself. Raises SourceUnavailable."""


class _Clouds:
    """One bucket, as the credential file would have it asked for each model. Implements `Buckets`."""

    def __init__(self, uri: str, location: Location, environ: Mapping[str, str], patience: Patience) -> None:
        self._uri = uri
        self._location = location
        self._environ = dict(environ)
        self._patience = patience
        self._lock = threading.Lock()
        self._by_prefix = {self._prefix(uri): self._open(uri)}

    def of(self, name: str) -> Bucket:
        """Return the bucket for the model `name`, "" for the repository itself. Raises SourceUnavailable."""
        path = without_query(self._uri).rstrip("/")
        uri = f"{path}/{name}{self._uri[len(without_query(self._uri)) :]}" if name else self._uri
        try:
            prefix = self._prefix(uri)
            with self._lock:
                if prefix not in self._by_prefix:
                    self._by_prefix[prefix] = self._open(uri)
                return self._by_prefix[prefix]
        except TritiumError as error:
            raise SourceUnavailable(f"{path}: {error}") from error

    def _prefix(self, uri: str) -> str:
        return credentials.prefix_of(uri, self._location.scheme, self._environ)

    def _open(self, uri: str) -> Bucket:
        return CloudBucket(uri, self._location, self._environ, self._patience)


class RemoteSource:
    """One repository. Every method may be called from several threads at once."""

    def __init__(
        self,
        uri: str,
        location: Location,
        *,
        buckets: Buckets,
        cache: Cache,
        parallelism: int,
    ) -> None:
        self.uri = without_query(uri)  # it ends up in logs and metrics
        self._location = location
        self._buckets = buckets
        self._cache = cache
        self._trees = Trees(cache.root)
        self._tags = Tags()
        self._width = parallelism
        self._pool = ThreadPoolExecutor(parallelism, thread_name_prefix="tritium-download")
        self._preparing = threading.Lock()
        self._prepared = False

    def names(self) -> Sequence[str]:
        """Return the names below the repository that have objects and can be a directory's, sorted."""
        try:
            found = self._buckets.of("").directories(self._location.prefix)
        except FetchFailed as error:  # a key in the repository itself that is no path
            raise SourceUnavailable(str(error)) from error
        return sorted(name for name in found if is_model_name(name))

    def stamp(self, name: str) -> Stamp | None:
        """Return what the listing says of the model `name`.

        A model whose objects can't be files is there all the same, and says so when it is fetched.
        """
        if not is_model_name(name):
            return None
        try:
            tree = self._tree(name, self._buckets.of(name))
        except FetchFailed as error:
            return Stamp(((str(error), 0, ""),))
        return None if tree is None else tree.stamp

    def fetch(
        self,
        name: str,
        *,
        progress: Callable[[FetchProgress], None],
        cancelled: Callable[[], bool],
    ) -> Fetched:
        """Return a directory with the model's files, from the cache as far as it has them.

        Raises SourceUnavailable, FetchFailed, FetchCancelled.
        """
        if not is_model_name(name):
            raise FetchFailed(f"'{name}' can't be the name of a model's directory")
        bucket = self._buckets.of(name)
        try:
            self._prepare()
            for _ in range(_LISTINGS):
                tree = self._tree(name, bucket)
                if tree is None:
                    raise FetchFailed(f"there is no '{name}' in {self.uri}")
                with suppress(ObjectChanged):  # then it is listed again
                    return self._bring(name, tree, bucket, progress, cancelled)
        except OSError as error:
            raise FetchFailed(f"'{name}' can't be put into the cache {self._cache.root}: {error}") from error
        raise FetchFailed(f"'{name}' in {self.uri} changed while it was read, {_LISTINGS} times in a row")

    def release(self, path: Path) -> None:
        """Remove a directory that was fetched, if this was its last user.

        Its files stay in the cache for a while.
        """
        self._trees.release(path)
        with suppress(OSError):
            self._cache.evict()

    def _prepare(self) -> None:
        with self._preparing:
            if self._prepared:
                return
            try:
                self._cache.prepare()
            except TritiumError as error:
                raise FetchFailed(str(error)) from error
            self._trees.sweep()
            self._prepared = True

    def _tree(self, name: str, bucket: Bucket) -> Tree | None:
        root = self._location.key(name)
        found = bucket.objects(root)
        return tree_of(root, found) if found else None

    def _bring(
        self,
        name: str,
        tree: Tree,
        bucket: Bucket,
        progress: Callable[[FetchProgress], None],
        cancelled: Callable[[], bool],
    ) -> Fetched:
        count = _Count(tree, progress)
        staging = self._trees.stage(name)
        try:
            download = Download(
                bucket=bucket,
                cache=self._cache,
                staging=staging,
                tags=self._tags,
                pool=self._pool,
                width=self._width,
                advanced=count.advanced,
                told=count.tell,
                cancelled=cancelled,
            )
            manifests = {path: entry for path, entry in tree.files.items() if is_manifest(path)}
            for path, entry in manifests.items():
                if entry.size > _LARGEST_MANIFEST:
                    raise FetchFailed(f"'{name}': {path} is larger than {_LARGEST_MANIFEST >> 20} MiB")
            # First, as they may say that there is no use in the others yet.
            digests = download.run(manifests, {})
            expected = _expected(name, staging.root, manifests, tree)
            empty, directories = download.markers(tree.markers)
            count.less(len(directories))
            rest = {path: entry for path, entry in tree.files.items() if path not in manifests} | empty
            digests |= download.run(rest, expected)
            count.tell()
            if cancelled():
                raise FetchCancelled
            whole = contents_of(digests, directories)
            own = {path: digest for path, digest in digests.items() if not speaks_about_the_model(path)}
            return Fetched(
                path=self._trees.publish(staging, whole.digest),
                contents=contents_of(own, directories),
                verified=True,
            )
        finally:
            staging.discard()
            with suppress(OSError):
                self._cache.evict()


class _Count:
    """Counts what the threads report, and tells it on the fetch's own."""

    def __init__(self, tree: Tree, progress: Callable[[FetchProgress], None]) -> None:
        self._files = len(tree.files) + len(tree.markers)
        self._nbytes = sum(entry.size for entry in tree.files.values())
        self._files_done = self._bytes_done = 0
        self._progress = progress
        self._told: FetchProgress | None = None
        self._lock = threading.Lock()

    def advanced(self, files: int, nbytes: int) -> None:
        """Take note of so many more files and bytes."""
        with self._lock:
            self._files_done += files
            self._bytes_done += nbytes

    def less(self, files: int) -> None:
        """So many were no files."""
        with self._lock:
            self._files -= files

    def tell(self) -> None:
        """Report how far it is, if that is news."""
        with self._lock:
            now = FetchProgress(
                files_done=self._files_done,
                files=self._files,
                bytes_done=self._bytes_done,
                nbytes=self._nbytes,
            )
        if now != self._told:
            self._told = now
            self._progress(now)


def _expected(name: str, root: Path, manifests: Iterable[str], tree: Tree) -> dict[str, str]:
    """Return the digests of manifests.

    Raises FetchFailed if one can't be read, or names what isn't there (yet).
    """
    expected: dict[str, str] = {}
    there = tree.files.keys() | tree.markers.keys()
    for manifest in manifests:
        directory = manifest.removesuffix(MANIFEST)
        try:
            listed = read_manifest((root / manifest).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FetchFailed(f"'{name}': {directory}{error}") from error
        expected |= {f"{directory}{path}": digest for path, digest in listed.items()}
        absent = [path for path in sorted(listed) if f"{directory}{path}" not in there]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            raise FetchFailed(
                f"'{name}' is incomplete: {manifest} lists what is not there: {', '.join(absent[:3])}{more}"
            )
    return expected
