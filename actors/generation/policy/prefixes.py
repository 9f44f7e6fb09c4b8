"""What an engine is likely to have in its cache: the beginnings of the prompts and answers that it had. Pure.

Ids are cut into blocks of the engine's own size. A block is known by a hash of its ids and of all in front of
it, so equal hashes mean equal beginnings. The hash is Python's own, whose key is this process's: it is worth
nothing elsewhere, and two beginnings that share one by chance cost a wrong guess.

An engine forgets the blocks first that were used least recently, of a text the last ones first. So does
`KnownPrefixes`, and what an engine says that it had found corrects it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import Final

MOST_BLOCKS: Final = 8192
"""Blocks of one text that are hashed, which takes some milliseconds. What follows them is not shared."""

MOST_KNOWN: Final = 65_536
"""Blocks that are known of one engine at most: some 10 MB."""


def seed_of(adapter: str, salt: str) -> int:
    """Return what stands in front of the first block: texts of another adapter or salt share nothing."""
    return hash((adapter, salt))


def chained(ids: array[int], size: int, before: int, *, most: int = MOST_BLOCKS) -> list[int]:
    """Return the hash of each whole block of `ids`, the first `most` of them.

    `before` is the hash of what stands in front. A `size` of 0 means that there are no blocks.
    """
    hashes: list[int] = []
    if size <= 0:
        return hashes
    data = ids[: most * size].tobytes()
    width = ids.itemsize * size
    for at in range(0, len(data) - width + 1, width):
        before = hash((before, data[at : at + width]))
        hashes.append(before)
    return hashes


def leading(hashes: Sequence[int], known: Container[int]) -> int:
    """Return how many of a text's blocks are known, where none is known without those in front of it."""
    low, high = 0, len(hashes)
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] in known:
            low = middle
        else:
            high = middle - 1
    return low


class KnownPrefixes:
    """The blocks that one engine is thought to have, each with the number of the text that used it last.

    Numbers grow. No block is known without all that stand in front of it.
    """

    __slots__ = ("_known", "most")

    def __init__(self, blocks: int) -> None:
        """`blocks` is how many the engine has; 0: that is not known."""
        self.most = min(blocks, MOST_KNOWN) if blocks > 0 else MOST_KNOWN
        self._known: OrderedDict[int, int] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._known)

    def matched(self, hashes: Sequence[int]) -> int:
        """Return how many blocks of a text it has."""
        return leading(hashes, self._known)

    def used_in(self, block: int) -> int:
        """Return the number of the text that has used a known block last."""
        return self._known[block]

    def note(self, hashes: Sequence[int], number: int) -> None:
        """It is given text `number`."""
        known, touch = self._known, self._known.move_to_end
        for block in reversed(hashes):  # so the first ones are forgotten last
            known[block] = number
            touch(block)
        while len(known) > self.most:
            known.popitem(last=False)

    def drop(self, hashes: Sequence[int], number: int) -> None:
        """It has never computed text `number`: forget the blocks that no later text has used."""
        known = self._known
        for block in hashes:
            if known.get(block) == number:
                del known[block]

    def outdate(self, number: int) -> None:
        """It has forgotten a block that was last used in text `number`, and so all that is as old."""
        known = self._known
        while known and next(iter(known.values())) <= number:
            known.popitem(last=False)
