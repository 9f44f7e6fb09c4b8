"""Zip archives from untrusted sources: what they list and what their small members hold, within bounds."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from engine.config.inspection.ports import Unloadable, Unreadable, opened

# What torch writes. With other methods Python unpacks all that it has read at once: a few hundred bytes
# become gigabytes.
_BOUNDED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The list of members is read whole, and each takes some hundred bytes of ours. A model of ten thousand
# weights needs one MiB.
_LARGEST_READ: Final = 8 * 1024 * 1024

_FLATBUFFER: Final = b"PTMF"  # in bytes 4 to 8 of TorchScript as mobile devices want it


class Archive:
    """An open archive. Use `opened_archive`."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = tuple(archive.namelist())

    def read(self, name: str, *, most: int) -> bytes:
        """Return a member of at most `most` bytes. Raises Unreadable."""
        content = self.head(name, most + 1)
        if len(content) > most:
            raise Unreadable(f"its member '{name}' is larger than {most} bytes")
        return content

    def head(self, name: str, most: int) -> bytes:
        """Return the first `most` bytes of a member, or as many as there are. Raises Unreadable."""
        try:
            method = self._archive.getinfo(name).compress_type
            if method not in _BOUNDED:
                raise Unreadable(
                    f"its member '{name}' is compressed by method {method}, which torch never uses"
                )
            with self._archive.open(name) as member:
                return member.read(most)
        except Unreadable:
            raise
        except Exception as error:  # zipfile and its decompressors raise what they like on damage
            raise Unreadable(f"its member '{name}' can't be read: {error}") from error


@contextmanager
def opened_archive(path: Path) -> Iterator[Archive]:
    """Open the zip archive `path`. Raises Unreadable."""
    with opened(path) as descriptor, _Capped(io.FileIO(descriptor, closefd=False)) as file:
        try:
            archive = zipfile.ZipFile(file)
        except Unreadable:
            raise
        except Exception as error:  # as above
            mobile = os.pread(descriptor, 8, 0)[4:] == _FLATBUFFER
            raise (Unreadable if mobile else Unloadable)(f"it is no zip archive: {error}") from error
        with archive:
            yield Archive(archive)


class _Capped(io.BufferedReader):
    """A file of which no single read is large, whatever the numbers in it say."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = _LARGEST_READ + 1
        if size > _LARGEST_READ + 1:
            raise Unreadable(f"it lists its members in {size} bytes, more than {_LARGEST_READ}")
        return super().read(size)
