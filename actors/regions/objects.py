"""Objects in /dev/shm: opened by their keys, read and written by descriptor. All of it blocks.

Nothing is mapped, so nothing that a client does to its object can end the server: what was cut off is a short
read. A write would make an object that was shrunk longer again, so its size is looked at first.
"""

from __future__ import annotations

import os
import stat
from typing import Final

import numpy as np

from actors.regions.policy import can_be_opened, not_memory, not_opened
from actors.values.errors import Internal, InvalidArgument
from actors.values.regions import Region, RegionSlice, too_short
from actors.values.tensors import Buffer, Tensor

_FOLDER: Final = "/dev/shm/"
Writes = list[tuple[Tensor, RegionSlice]]
"""Outputs, and where each is written."""

PIECE: Final = 4 * 1024 * 1024
"""Bytes that are read or written by one call of the system."""

# A pipe or a file with a lease must not hold the caller, so O_NONBLOCK.
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def open_object(name: str, key: str) -> tuple[int, int]:
    """Return a descriptor of the object with this name, and its size. `key` is how its client calls it.

    Raises Internal where there is none that the server may read and write.
    """
    if not can_be_opened(name):
        raise not_opened(key)
    try:
        fileno = os.open(_FOLDER.encode() + name.encode(), _FLAGS)
    except OSError as error:
        raise not_opened(key) from error
    try:
        found, folder = os.fstat(fileno), os.stat(_FOLDER)
        if not stat.S_ISREG(found.st_mode) or found.st_dev != folder.st_dev:
            raise not_memory(key)
    except OSError as error:
        os.close(fileno)
        raise not_memory(key) from error
    except Internal:
        os.close(fileno)
        raise
    return fileno, found.st_size


def read_at_once(source: RegionSlice, name: str) -> bytes:
    """Return the bytes of the input `name`. For short ones. Raises InvalidArgument, or Internal."""
    region = source.region
    try:
        data = os.pread(region.fileno, source.nbytes, source.at)
    except OSError as error:
        raise _unreadable(source, name, error) from error
    if len(data) != source.nbytes:
        raise _short_read(source, name, region.fileno, source.at + len(data))
    return data


def reading(source: RegionSlice, name: str, fileno: int) -> Buffer:
    """Return the bytes of the input `name`, read in pieces from `fileno`. Raises as `read_at_once`."""
    data = np.empty(source.nbytes, np.uint8).data
    at = 0
    while at < source.nbytes:
        try:
            count = os.preadv(fileno, [data[at : at + PIECE]], source.at + at)
        except OSError as error:
            raise _unreadable(source, name, error) from error
        if not count:
            raise _short_read(source, name, fileno, source.at + at)
        at += count
    return data


def write(target: RegionSlice, name: str, data: Buffer, fileno: int) -> None:
    """Write the output `name` by `fileno`, in pieces. Raises InvalidArgument, or Internal."""
    view = memoryview(data)
    at = 0
    try:
        _check_size(target, name, len(view), os.fstat(fileno).st_size)
        while at < len(view):
            at += os.pwrite(fileno, view[at : at + PIECE], target.at + at)
    except OSError as error:
        raise _unwritable(target, name, error) from error


def write_at_once(writes: Writes) -> None:
    """Write outputs, for short ones. Raises as `write`; nothing was written then, but for a full disk."""
    tensor, target = writes[0]
    measured: Region | None = None
    size = 0
    try:
        for tensor, target in writes:
            region = target.region
            if region is not measured:
                # By the cheapest of calls. Nothing uses the file's position.
                size = os.lseek(region.fileno, 0, os.SEEK_END)
                measured = region
            if size < target.at + len(tensor.data):
                _check_size(target, tensor.name, len(tensor.data), size)
        for tensor, target in writes:
            fileno = target.region.fileno
            if os.pwrite(fileno, tensor.data, target.at) < len(tensor.data):
                write(target, tensor.name, tensor.data, fileno)
    except OSError as error:
        raise _unwritable(target, tensor.name, error) from error


def _check_size(target: RegionSlice, name: str, nbytes: int, size: int) -> None:
    end = target.at + nbytes
    if size < end:
        raise InvalidArgument(too_short(target.region.name, f"output '{name}'", ends=size, needed=end))


def _unwritable(target: RegionSlice, name: str, error: OSError) -> Internal:
    return Internal(
        f"output '{name}' can't be written to shared memory region '{target.region.name}': {error.strerror}"
    )


def _short_read(source: RegionSlice, name: str, fileno: int, found: int) -> InvalidArgument:
    """Return the error for an input of which the bytes from `found` on are missing."""
    ends = min(found, os.fstat(fileno).st_size)  # all of it may be missing, and more before it
    needed = source.at + source.nbytes
    return InvalidArgument(too_short(source.region.name, f"input '{name}'", ends=ends, needed=needed))


def _unreadable(source: RegionSlice, name: str, error: OSError) -> Internal:
    return Internal(
        f"input '{name}' can't be read from shared memory region '{source.region.name}': {error.strerror}"
    )
