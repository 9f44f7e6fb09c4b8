"""The rest of a scattered write that was taken in part, and copies of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

import numpy as np

from actors.values.tensors import Buffer

_COPIED_AT_ONCE: Final = 256 * 1024  # bytes, some tenths of a millisecond


def behind(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """Return the rest of `buffers` behind their first `count` bytes."""
    left: list[Buffer] = []
    for buffer in buffers:
        size = len(buffer)
        if count >= size:
            count -= size
        elif count:
            left.append(memoryview(buffer)[count:])
            count = 0
        else:
            left.append(buffer)
    return left


class Cut:
    """Buffers that are taken from the front, piece by piece, without looking at all of them each time."""

    __slots__ = ("_at", "_buffers", "_offset")

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = buffers
        self._at = 0  # the first buffer that is left
        self._offset = 0  # of the first byte that is left in it

    def front(self, size: int) -> Buffer:
        """Return the first bytes that are left, `size` of them where there are as many."""
        buffers, at = self._buffers, self._at
        if at == len(buffers):
            return b""
        head = buffers[at]
        if len(head) - self._offset >= size:
            return memoryview(head)[self._offset : self._offset + size]
        parts: list[Buffer] = [memoryview(head)[self._offset :] if self._offset else head]
        size -= len(parts[0])
        while size and (at := at + 1) < len(buffers):
            parts.append(memoryview(buffers[at])[:size])
            size -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def drop(self, count: int) -> None:
        """Take the first `count` bytes away."""
        count += self._offset
        while self._at < len(self._buffers) and count >= len(self._buffers[self._at]):
            count -= len(self._buffers[self._at])
            self._at += 1
        self._offset = count

    def rest(self) -> list[Buffer]:
        """Return what is left; nothing if that has no bytes."""
        self.drop(0)
        left = list(self._buffers[self._at :])
        if self._offset:
            left[0] = memoryview(left[0])[self._offset :]
        return left


def copying(buffers: Sequence[Buffer]) -> Generator[None, None, list[Buffer]]:
    """Copy each of `buffers`, in slices."""
    copies: list[Buffer] = []
    for buffer in buffers:
        # One piece of memory for each: the allocator would round every slice up to whole pages.
        copy = np.empty(len(buffer), np.uint8).data
        for at in range(0, len(buffer), _COPIED_AT_ONCE):
            copy[at : at + _COPIED_AT_ONCE] = buffer[at : at + _COPIED_AT_ONCE]
            yield
        copies.append(copy.toreadonly())
    return copies
