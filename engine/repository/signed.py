"""Signed models: every file is held against a signed manifest, and what was checked is what is loaded.

Theory of operation. A worker opens the files of its model by their paths, at its start and again at each
restart. A check of the repository's own files could say nothing about what they hold by then. So a server
that requires signatures makes a private copy of each model, hashes the bytes that go into it, and has the
model loaded from there. A file that changes before its bytes are in the copy no longer matches the manifest,
or is found to have changed, and the load fails. One that changes later changes nothing.

The signature is checked before anything else of the model is read. Nothing outside the model's folder is
read: links are followed within it, and become plain files in the copy.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from actors.values.errors import TritiumError
from engine.models.layout import shown
from engine.processes import users
from engine.provenance.ed25519 import LibraryMissing
from engine.provenance.keys import TrustedFiles
from engine.provenance.manifest import APART, MANIFEST, SIGNATURE, ManifestRefused, read_strictly
from engine.provenance.trust import KeysUnusable, NotTrusted, Trust, TrustedKey, check_signature
from engine.repository.copies import Removal
from engine.repository.fingerprint import (
    Identity,
    LeadsOut,
    Root,
    Survey,
    Unsettled,
    is_broken_mount,
    speaks_about_the_model,
    survey,
)
from engine.repository.remote.cache import make_private
from engine.repository.remote.trees import Staging, Trees
from engine.repository.source import Contents, FetchCancelled, contents_of

FOLDER: Final = "tritium-signed"
HASHERS: Final = 4
"""Threads that read one model's files."""

_FOLDERS: Final = ("staging", "models")
_CHUNK: Final = 1 << 20
_LARGEST_MANIFEST: Final = 16 << 20
_LARGEST_SIGNATURE: Final = 64 << 10
_MOST_NAMED: Final = 3


class Refused(Exception):
    """A model is not what a trusted key has signed. `hint` says what would help."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A model whose signature counts: the digests that it lists by path, and what is there."""

    key: TrustedKey
    listed: Mapping[str, str]
    found: Survey

    @property
    def nbytes(self) -> int:
        """The size of all files together."""
        return sum(self.found.files[path].size for path in self.listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A private copy of a signed model, its contents, and how it is removed."""

    contents: Contents
    removal: Removal


class SignedModels:
    """Admits models that a trusted key has signed, each to a private copy below `cache_directory`."""

    def __init__(self, keys: TrustedFiles, cache_directory: Path) -> None:
        self.keys = keys
        self._root = cache_directory / FOLDER
        self._trees = Trees(self._root)
        self._preparing = threading.Lock()
        self._prepared = False

    def admit(self, model_directory: Path, *, cancelled: Callable[[], bool] = lambda: False) -> Admitted:
        """Check the model in `model_directory`, whose last component is its name, and copy it.

        Raises Refused, FetchCancelled, and OSError if the file system itself does not answer.
        """
        with _opened(model_directory, self.keys) as (folder, checked):
            try:
                self._prepare()
                staging = self._trees.stage(model_directory.name)
            except (OSError, TritiumError) as error:
                raise self._no_room(error) from error
            try:
                for_each_file(checked, partial(self._copy, folder, checked, staging), cancelled)
                path = self._trees.publish(staging, secrets.token_hex(16))
            finally:
                staging.discard()
        own = {path: digest for path, digest in checked.listed.items() if not speaks_about_the_model(path)}
        tops = {path.partition("/")[0] for path in checked.found.directories}
        return Admitted(
            contents=contents_of(own, tops),
            removal=Removal(path, partial(self._trees.release, path)),
        )

    def _prepare(self) -> None:
        with self._preparing:
            if not self._prepared:
                make_private(self._root, _FOLDERS)
                for folder in (self._root, *(self._root / name for name in _FOLDERS)):
                    users.let_through(folder)
                self._trees.sweep()
                self._prepared = True

    def _copy(
        self, folder: Root, checked: Checked, staging: Staging, path: str, alive: Callable[[], None]
    ) -> str:
        try:
            target = staging.path(path)
            # Readable as the server's own files are: a worker may run under another user.
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._no_room(error) from error
        try:
            return _hashed(folder, path, checked.found.files[path], alive, copy=fd)
        finally:
            os.close(fd)

    def _no_room(self, error: OSError | TritiumError) -> Refused:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return Refused(
            f"a signed model is loaded from a private copy, which can't be made in {self._root}: {reason}",
            "--model-cache-directory=DIR puts it elsewhere",
        )


def verify(
    model_directory: Path, keys: TrustedFiles, *, cancelled: Callable[[], bool] = lambda: False
) -> Checked:
    """Check the model in `model_directory` against its signed manifest, and copy nothing.

    Raises Refused, FetchCancelled, and OSError if the file system itself does not answer.
    """
    with _opened(model_directory, keys) as (folder, checked):

        def hashed(path: str, alive: Callable[[], None]) -> str:
            return _hashed(folder, path, checked.found.files[path], alive)

        for_each_file(checked, hashed, cancelled)
        return checked


def digests_of(model_directory: Path) -> dict[str, str]:
    """Return the digests of the files that a manifest of this model lists, by path.

    Raises Refused, and OSError if the file system itself does not answer.
    """
    with _folder(model_directory) as (folder, found):
        wanted = [path for path in found.files if path not in APART]
        if not wanted:
            raise Refused("there is no file in it", "name the folder of one model, such as models/resnet")
        _refuse_empty(found, wanted)
        with ThreadPoolExecutor(HASHERS) as pool:
            hashed = pool.map(
                lambda path: _hashed(folder, path, found.files[path], lambda: None), sorted(wanted)
            )
            return dict(zip(sorted(wanted), hashed, strict=True))


@contextmanager
def _opened(model_directory: Path, keys: TrustedFiles) -> Iterator[tuple[Root, Checked]]:
    """Open a model whose signature counts and whose files are those that the manifest lists.

    What they hold is not known yet.
    """
    try:
        trust = keys.trust()
    except KeysUnusable as error:
        raise Refused(str(error)) from error
    with _folder(model_directory) as (folder, found):
        checked = _signed(folder, found, model_directory.name, trust)
        _refuse_others(checked)
        yield folder, checked


@contextmanager
def _folder(model_directory: Path) -> Iterator[tuple[Root, Survey]]:
    """Open a model's folder, out of which nothing is opened, and list what is in it."""
    with Root(model_directory.parent) as root:
        found = survey(root, model_directory.name)
        if found is None:
            raise Refused(f"there is no folder '{shown(str(model_directory))}'")
        if found.problems:
            raise Refused("; ".join(problem.message for problem in found.problems[:_MOST_NAMED]))
        if found.others:
            raise Refused(f"{_named(found.others)} in it: neither a file nor a folder")
        with root.opened(model_directory.name, os.O_RDONLY | os.O_DIRECTORY) as fd:
            with Root(Path(f"/proc/self/fd/{fd}")) as folder:
                yield folder, found


def _signed(folder: Root, found: Survey, model: str, trust: Trust) -> Checked:
    for name in (MANIFEST, SIGNATURE):
        if name not in found.files:
            raise Refused(f"it is not signed: there is no {name} in it", "tritium sign --key FILE MODEL_DIR")
    manifest = _content(folder, MANIFEST, found, _LARGEST_MANIFEST)
    signature = _content(folder, SIGNATURE, found, _LARGEST_SIGNATURE)
    try:
        key = check_signature(manifest, signature.decode("utf-8", "replace"), model, trust)
        return Checked(key=key, listed=read_strictly(manifest), found=found)
    except NotTrusted as error:
        raise Refused(str(error), error.hint) from error
    except (ManifestRefused, LibraryMissing) as error:
        raise Refused(str(error)) from error


def _refuse_others(checked: Checked) -> None:
    """Raise Refused unless the files are those that the manifest lists."""
    there = checked.found.files.keys() - APART
    if missing := sorted(checked.listed.keys() - there - APART):
        raise Refused(f"{MANIFEST} lists what is not there: {_named(missing)}")
    if extra := sorted(there - checked.listed.keys()):
        raise Refused(
            f"{MANIFEST} does not list {_named(extra)}",
            "remove what is not part of the model, or sign it anew",
        )
    _refuse_empty(checked.found, checked.listed)


def _refuse_empty(found: Survey, listed: Mapping[str, str] | list[str]) -> None:
    """Raise Refused for a folder that holds no file: no manifest vouches for it, and it may be a version."""
    held = {str(parent) for path in listed for parent in Path(path).parents}
    if empty := sorted(found.directories.keys() - held):
        raise Refused(
            f"the folder {_named(empty)} holds no file, and a manifest lists files only",
            f"remove it, or put a file into it before signing, such as {shown(empty[0])}/.keep",
        )


def for_each_file(
    checked: Checked, hashed: Callable[[str, Callable[[], None]], str], cancelled: Callable[[], bool]
) -> None:
    """Have each listed file hashed, several at a time. Raises Refused for the first that differs."""
    stop = threading.Event()

    def alive() -> None:
        if stop.is_set() or cancelled():
            raise FetchCancelled

    def one(path: str) -> None:
        try:
            digest = hashed(path, alive)
            if digest != checked.listed[path]:
                expected = f"expected sha256 {checked.listed[path]}, found {digest}"
                raise Refused(f"'{shown(path)}' does not match {MANIFEST}: {expected}")
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(HASHERS, thread_name_prefix="tritium-verify") as pool:
        outcomes = [pool.submit(one, path) for path in checked.listed if path not in APART]
    errors = [error for each in outcomes if (error := each.exception()) is not None]
    # What ended the others is not their own fault.
    for error in sorted(errors, key=lambda error: isinstance(error, FetchCancelled)):
        raise error


def _hashed(
    folder: Root, path: str, identity: Identity, alive: Callable[[], None], *, copy: int | None = None
) -> str:
    """Return the digest (hex) of a file, and make `copy` one of it.

    Raises Refused for what is no longer the file that was found, and what `alive` raises.
    """
    try:
        with folder.opened(path, os.O_RDONLY) as fd:
            if Identity.of(os.fstat(fd)) != identity:
                raise Unsettled(path)
            digest = _read(fd, copy, alive)
            status = os.fstat(fd)
            if Identity.of(status) != identity:
                raise Unsettled(path)
            if copy is not None:
                os.fchmod(copy, 0o555 if status.st_mode & 0o100 else 0o444)
            return digest
    except LeadsOut as error:
        raise Refused(
            f"'{shown(path)}' is a link out of the model's folder", "copy what it leads to into the folder"
        ) from error
    except Unsettled as error:
        raise Refused(
            f"{error}, so that it is not known what is loaded", "load it once it is complete"
        ) from error
    except OSError as error:
        if is_broken_mount(error):
            raise
        raise Refused(f"'{shown(path)}' can't be read or copied: {error.strerror or error}") from error


def _read(fd: int, copy: int | None, alive: Callable[[], None]) -> str:
    whole = hashlib.sha256()
    piece = bytearray(_CHUNK)
    view = memoryview(piece)
    while True:
        alive()
        size = os.readv(fd, [piece])
        if not size:
            return whole.hexdigest()
        whole.update(view[:size])
        done = 0
        while copy is not None and done < size:
            done += os.write(copy, view[done:size])


def _content(folder: Root, name: str, found: Survey, most: int) -> bytes:
    if found.files[name].size > most:
        raise Refused(f"{name} is larger than {most} bytes")
    try:
        with folder.opened(name, os.O_RDONLY) as fd, open(fd, "rb", closefd=False) as file:
            return file.read(most)
    except LeadsOut as error:
        raise Refused(f"{name} is a link out of the model's folder") from error


def _named(paths: Mapping[str, str] | list[str]) -> str:
    names = [f"'{shown(path)}'" for path in list(paths)[:_MOST_NAMED]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
