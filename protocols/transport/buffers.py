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
