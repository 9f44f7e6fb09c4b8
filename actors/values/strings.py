"""Walk packed BYTES tensors: each element a 4-byte little-endian length, and that many bytes.

Where one element ends is known only once the one before it was read. Read one by one, a million elements take
0.1 s, and a server must not give that time to one client in one piece. `walk` is a generator that stops after
every slice of work, so its caller can give other tasks a turn there.

Short elements are not read one by one. The length of an element below 256 bytes ends in three zeros, and in
most texts three zeros stand nowhere else. So numpy finds all places where a length may begin, and compares
each with the end of the element before it. Where all are equal, the elements are those. Where they are not,
only the places around are looked at one by one. A million elements then take some 7 ms. The result is that of
reading them one by one, whatever bytes they hold.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from actors.values.tensors import Buffer

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Places = np.ndarray[Any, np.dtype[np.intp]]

# Elements that are read one by one between two stops: about 0.2 ms.
_WALKED_AT_ONCE = 2048
# Bytes that numpy looks at between two stops: about 0.1 ms.
_COMPARED_AT_ONCE = 64 * 1024
# From here on numpy's start-up cost is less than the walk that it may save.
_WORTH_A_UNIFORM_LOOK = 16
# Bytes in which numpy looks for lengths between two stops: 0.05 ms in texts, 0.3 ms where zeros abound.
_SEARCHED_AT_ONCE = 32 * 1024
# With fewer elements, the search takes longer than reading them.
_WORTH_A_SEARCH = 256
# So many places must come to one at which the element before it does not end: such a one takes as long as a
# dozen elements that are read one by one.
_PLACES_A_STOP = 16
# Elements that are read one by one behind such a place. If there are more, the search begins anew.
_MOST_BETWEEN = 128
# How often elements are read one by one before they are searched again, where a search was not worth it.
_SEARCHES_LEFT_OUT = 8

_length_at = Struct("<I").unpack_from
NOWHERE = np.empty(0, np.intp)
_HEADER = np.intp(4)


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
    at = seen = left_out = 0
    try:
        while at < size and seen < most:
            alike = _alike(view, at, most - seen)
            if alike:
                seen += alike
                at += alike * (4 + _length_at(view, at)[0])
                yield
                continue
            if not left_out:
                found, end = headers(view, at, most - seen)
                if found.size < _WORTH_A_SEARCH:
                    left_out = _SEARCHES_LEFT_OUT
                if found.size:
                    seen += found.size
                    at += end
                    yield
                    continue
            left_out = max(left_out - 1, 0)
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
    length = _length_at(view, at)
    stride = 4 + length[0]
    count = min((len(view) - at) // stride, max(_COMPARED_AT_ONCE // stride, 1), most)
    if count < _WORTH_A_UNIFORM_LOOK or _length_at(view, at + stride) != length:
        return 0
    rows = np.frombuffer(view, np.uint8, count * stride, at).reshape(count, stride)
    lengths = np.ascontiguousarray(rows[:, :4]).view("<u4").ravel()
    other = lengths != stride - 4
    alike = int(other.argmax()) if other.any() else count
    return alike if alike >= _WORTH_A_UNIFORM_LOOK else 0


def headers(view: memoryview, at: int, most: int) -> tuple[Places, int]:
    """Return where `most` or fewer whole elements begin, from `at` on, and where the last of them ends.

    All places count from `at`. There are none where the elements are too long, or too unlike texts, for this
    to be quicker than a look at each.
    """
    look = np.frombuffer(view, np.uint8, min(_SEARCHED_AT_ONCE, len(view) - at), at)
    if look.size < 4 * _WORTH_A_SEARCH:
        return NOWHERE, 0
    high = look[1:-2] | look[2:-1]
    high |= look[3:]
    # Where an element of less than 256 bytes may begin.
    places = np.flatnonzero(high == 0)
    if places.size < _WORTH_A_SEARCH or places.size > look.size // 2 or places[0]:
        return NOWHERE, 0
    gaps = places[1:] - places[:-1]
    (side_by_side,) = (gaps == 1).nonzero()
    if side_by_side.size:
        places = _without_middles(look, places, gaps)
        gaps = places[1:] - places[:-1]
    # Elements that do not end at the next place: between two of them, all places are elements.
    (stops,) = (gaps != look[places[:-1]] + _HEADER).nonzero()
    if not stops.size:
        # The last element may end behind the whole tensor, so it is left out.
        found, end = places[:-1], int(places[-1])
    elif stops.size > places.size // _PLACES_A_STOP:
        return NOWHERE, 0
    else:
        known = look.size - 4

        def end_of(begin: int) -> int:
            return begin + 4 + _length_at(view, at + begin)[0] if begin <= known else known + 5

        found, end = chained(places, stops.tolist(), look.size, end_of)
    return (found, end) if found.size <= most else (found[:most], int(found[most]))


def _without_middles(look: Bytes, places: Places, gaps: Places) -> Places:
    """Return `places` without those that empty elements cause: beside the first, and within their row.

    The letter before a row of empty elements is such a place, and so are all bytes of the row but its last
    three. An element does begin at the first of `places`.
    """
    (first,) = np.concatenate(([True], gaps != 1)).nonzero()
    length = np.diff(np.append(first, places.size))
    begin = first + ((look[places[first]] != 0) & (length > 1))
    begin[0] = 0
    within = np.arange(places.size) - np.repeat(begin, length)
    kept: Places = places[within & 3 == 0]
    return kept


def chained(
    places: Places, stops: Iterable[int], size: int, end_of: Callable[[int], int]
) -> tuple[Places, int]:
    """Return where whole elements begin, in order, and where the last of them ends, at most at `size`.

    They begin at `places`, of which the last is left out, and between them. `stops` are the indexes of places
    at which the next place is not the end of its element. `end_of` returns where the element at some place
    ends. It is more than `size` where that is not known. Elements that many others follow between two places
    may be the last.
    """
    parts: list[Places] = []
    place = 0
    for stop in stops:
        if stop < place:
            continue  # within an element
        parts.append(places[place : stop + 1])
        at = end_of(int(places[stop]))
        others: list[int] = []
        while (place := _index_of(at, places)) < 0:
            behind = end_of(at)
            if behind > size:
                parts.append(np.array(others, np.intp))
                found = np.concatenate(parts)
                return (found, at) if at <= size else (found[:-1], int(found[-1]))
            others.append(at)
            at = behind
            if len(others) == _MOST_BETWEEN:
                parts.append(np.array(others, np.intp))
                return np.concatenate(parts), at
        parts.append(np.array(others, np.intp))
    parts.append(places[place:-1])
    return np.concatenate(parts), int(places[-1])


def _index_of(at: int, places: Places) -> int:
    """Return which of `places` is `at`, or -1."""
    place = int(np.searchsorted(places, at))
    return place if place < places.size and places[place] == at else -1


def _next_length(view: memoryview, at: int) -> int:
    length: int = _length_at(view, at)[0] if len(view) - at >= 4 else -1
    return length
