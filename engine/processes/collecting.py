"""When garbage is collected in full: rarely, and never while that would take long.

A full collection looks at every object, and stops the loop for that time: 0.4 s where 8,000 gRPC connections
are open, and 0.9 s where each has a stream. The interpreter begins one whenever objects have grown by a
quarter, thus whenever a crowd of clients comes. Almost nothing is ever found: requests and connections make
no cycles, and what a crash or a load leaves may lie for a while. So the full collection is ours to begin.

Young objects are collected by the interpreter, which counts those that are made less those that go. Where new
connections take the place of others it counts nothing, and the next collection has all of them to look at.
So they are collected here as well, several times a second, which costs nothing where there are none.

How much memory a full collection would free is not known before: a block counts as one whatever its size, and
numpy's buffers are not among them. So waste that is a cycle and holds large buffers may lie for an hour where
a full collection takes long, and for longer while the number of blocks does not grow by a quarter.

Python 3.14 collects in increments: by its documentation, `gc.collect(1)` looks at a part of the old objects
as well, and the third threshold is ignored. The figures above were measured without that.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass
from typing import Final, NoReturn

import trio

PERIOD: Final = 0.25  # seconds between two looks
_NEVER: Final = 1_000_000_000
_YOUNG: Final = (2_000, 10)  # the interpreter's own thresholds for young objects


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPolicy:
    """When a full collection is due. Times are seconds; blocks are pieces of memory in use.

    `longest` is how long one may take. One that takes longer waits until `at_last` has passed, and is made
    then only if memory has grown by a quarter since the last one.
    """

    every: float = 60.0
    longest: float = 0.010
    at_last: float = 3600.0

    def due(self, blocks: int, last: FullCollection, now: float) -> bool:
        """Whether to collect in full, with `blocks` in use."""
        if now - last.at < self.every:
            return False
        if blocks * last.cost <= self.longest:
            return True
        return now - last.at >= self.at_last and blocks > last.blocks * 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCollection:
    """The last full collection: when it was, the blocks in use behind it, and seconds for each block."""

    at: float
    blocks: int
    cost: float


# Seconds for a block, at first: twice what was measured on the machines that are at hand.
_FIRST_COST: Final = 1e-7
# Blocks below which a measured cost says little.
_MANY: Final = 50_000


async def collect_garbage(policy: CollectionPolicy | None = None) -> NoReturn:
    """Collect garbage, for ever, in place of the interpreter. What is frozen by now is never looked at."""
    policy = policy or CollectionPolicy()
    frozen = sys.getallocatedblocks()
    before = gc.get_threshold()
    gc.set_threshold(*_YOUNG, _NEVER)
    last = FullCollection(at=trio.current_time(), blocks=0, cost=_FIRST_COST)
    try:
        while True:
            await trio.sleep(PERIOD)
            gc.collect(1)
            blocks = max(0, sys.getallocatedblocks() - frozen)
            if policy.due(blocks, last, trio.current_time()):
                last = _collect(blocks, frozen, last)
    finally:
        gc.set_threshold(*before)


def _collect(blocks: int, frozen: int, last: FullCollection) -> FullCollection:
    began = time.thread_time()
    gc.collect()
    took = time.thread_time() - began
    return FullCollection(
        at=trio.current_time(),
        blocks=max(0, sys.getallocatedblocks() - frozen),
        cost=took / blocks if blocks >= _MANY else last.cost,
    )
