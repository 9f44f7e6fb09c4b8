"""What is left of a scattered write that was taken in part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.messages.tensors import Buffer


def behind(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """Return what is left of `buffers` behind their first `count` bytes."""
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
