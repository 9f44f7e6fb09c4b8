"""Walk packed BYTES tensors: each element a 4-byte little-endian length, and that many bytes.

Where one element ends is known only once the one before it was read. So a tensor of millions of short
elements takes seconds, and a server must not give that time to one client in one piece. `walk` is a generator
that stops after every slice of work, so its caller can give other tasks a turn there.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from actors.values.tensors import Buffer

# Elements that are read one by one between two stops: about 0.2 ms.
_WALKED_AT_ONCE = 2048
# Bytes that numpy looks at between two stops: about 0.1 ms.
_COMPARED_AT_ONCE = 64 * 1024
# From here on numpy's start-up cost is less than the walk that it may save.
_WORTH_A_UNIFORM_LOOK = 16

_length_at = Struct("<I").unpack_from


class Strings(NamedTuple):
    """The result of a walk.

    There are `elements` whole ones, and the last of them ends at byte `at` of `size`. If more bytes follow,
    `length` is what the next element claims to hold, and -1 if even its length is cut short.
    """

    elements: int
    at: int
    size: int
    length: int

    @property
    def whole(self) -> bool:
        """Whether the tensor ends with its last whole element."""
        return self.at == self.size


def walk(data: Buffer, most: int) -> Generator[None, None, Strings]:
    """Walk the packed elements in `data`, until `most` of them were seen.

    Yields after at most about a quarter of a millisecond of work. Never raises.
    """
    view = memoryview(data)
    size = len(view)
    at = seen = 0
    try:
        while at < size and seen < most:
            alike = _alike(view, at, most - seen)
            if alike:
                seen += alike
                at += alike * (4 + _length_at(view, at)[0])
            else:
                for _ in range(min(_WALKED_AT_ONCE, most - seen)):
                    if at == size:
                        break
                    (length,) = _length_at(view, at)
                    end = at + 4 + length
                    if end > size:
                        return Strings(seen, at, size, length)
                    at = end
                    seen += 1
            yield
    except StructError:
        return Strings(seen, at, size, -1)
    return Strings(seen, at, size, 0 if at == size else _next_length(view, at))


def walk_at_once(data: Buffer, most: int) -> Strings:
    """Do as `walk` does, in one piece: for tensors that are known to be short."""
    steps: Any = walk(data, most)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        found: Strings = end.value
        return found


def _alike(view: memoryview, at: int, most: int) -> int:
    """Return how many elements from `at` on are whole and as long as the first.

    It is 0, or enough to be worth the look.
    """
    stride = 4 + _length_at(view, at)[0]
    count = min((len(view) - at) // stride, max(_COMPARED_AT_ONCE // stride, 1), most)
    if count < _WORTH_A_UNIFORM_LOOK:
        return 0
    rows = np.frombuffer(view, np.uint8, count * stride, at).reshape(count, stride)
    lengths = np.ascontiguousarray(rows[:, :4]).view("<u4").ravel()
    other = lengths != stride - 4
    alike = int(other.argmax()) if other.any() else count
    return alike if alike >= _WORTH_A_UNIFORM_LOOK else 0


def _next_length(view: memoryview, at: int) -> int:
    length: int = _length_at(view, at)[0] if len(view) - at >= 4 else -1
    return length
