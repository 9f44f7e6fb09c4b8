"""Hands weights to ONNX Runtime that lie in files which it does not take by their paths.

ONNX Runtime takes such a file if its canonical path is in the folder of the model's file, or of what that
links to. But no canonical path leads into another container, as KServe's modelcars have it, and the weights
alone may be a link to another volume. How far links lead is for the server to decide. So the files of the
folder are mapped, and handed over by the names that the model has for them. A name that leads out of the
folder is none of theirs, and stays refused.
"""

from __future__ import annotations

import mmap
import os
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Contents = Union[bytes, mmap.mmap]

_NOT_BY_PATH = re.compile("External data path")
_NOT_HANDED_OVER = re.compile("not found from the table")
_MOST_FILES = 10_000  # that are looked at
_MAPPED_FROM = 1024 * 1024  # bytes; a mapped file holds a descriptor


def session_of(path: str, options: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` returns, a session of the model at `path` with these options.

    Raises what `make` raises, if it is not about the paths of weights, or if these are not there.
    """
    try:
        return make()
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        give = getattr(options, "add_external_initializers_from_files_in_memory", None)
        if give is None or not _NOT_BY_PATH.search(str(error)):
            raise
        with ExitStack() as open_files:
            try:
                files = dict(_files_beside(path, open_files))
            except OSError:
                raise error from None
            give(list(files), list(files.values()), [len(each) for each in files.values()])
            try:
                return make()
            except Exception as again:
                if _NOT_HANDED_OVER.search(str(again)):
                    raise error from None
                raise


def _files_beside(path: str, open_files: ExitStack) -> Iterator[tuple[str, Contents]]:
    """Yield the files in the folder of `path` and below, by their names in it. Raises OSError."""
    root, looked_at = os.path.dirname(path), 0
    waiting = [(root, frozenset[tuple[int, int]]())]  # each folder, and which ones it is in: links may circle
    while waiting:
        folder, above = waiting.pop()
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        for name in sorted(os.listdir(folder)) if identity not in above else ():
            looked_at += 1
            if looked_at > _MOST_FILES:
                return
            inner = os.path.join(folder, name)
            if os.path.isdir(inner):
                waiting.append((inner, above | {identity}))
            elif os.path.isfile(inner) and inner != path:
                yield os.path.relpath(inner, root), _contents(inner, open_files)


def _contents(path: str, open_files: ExitStack) -> Contents:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < _MAPPED_FROM:
            return file.read()
        return open_files.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
