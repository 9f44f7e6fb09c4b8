"""When is a batch closed? Contract, scheduling.md section 3.1.

A policy looks at the waiting requests in their order of service. It either says how many of them go now, or
until when to wait for more. It never reorders: the batch is always a prefix, and the first request that does
not fit closes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from actors.values.requests import InferRequest
from actors.values.specs import DynamicBatching, ModelSpec

BATCH_BYTES: Final = 64 * 1024 * 1024
"""Inputs gathered in one turn of the loop: copying more would hold up all other tasks for over 20 ms."""


def affordable(sizes: Iterable[int]) -> int:
    """Return how many of the first requests, of these sizes in bytes, may be copied in one go.

    It is at least one if there is one.
    """
    total = count = 0
    for size in sizes:
        total += size
        if total > BATCH_BYTES:
            return max(1, count)
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the first `requests` of the queue to an instance now."""

    requests: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to send before `until`, unless another request arrives; infinite if none is waiting."""

    until: float


@dataclass(frozen=True, slots=True)
class DirectPolicy:
    """Each request is an execution of its own, whatever its rows (contract, scheduling.md section 2)."""

    @property
    def max_rows(self) -> int:
        """How many rows of candidates `decide` needs to see."""
        return 1

    def decide(self, candidates: Iterable[InferRequest], *, oldest: float, now: float) -> Dispatch | Wait:
        """Send the first request at once."""
        del oldest, now
        for _ in candidates:
            return Dispatch(1)
        return Wait(math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """Close a batch when it is full, when it has a preferred size, or when its oldest request is due.

    Times are seconds on the caller's clock; sizes are rows (the batch dimension). A delay of 0 means no
    waiting. No preferred sizes means the largest possible one.
    """

    max_batch_size: int
    preferred_batch_sizes: frozenset[int] = frozenset()
    max_queue_delay: float = 0.0

    @property
    def max_rows(self) -> int:
        """How many rows of candidates `decide` needs to see.

        One request beyond them tells it that the batch is full.
        """
        return self.max_batch_size

    def decide(self, candidates: Iterable[InferRequest], *, oldest: float, now: float) -> Dispatch | Wait:
        """Decide for `candidates` in their order of service; the first of them was enqueued at `oldest`."""
        limit = self.max_batch_size
        preferred = self.preferred_batch_sizes
        enough = max(preferred, default=limit)
        rows = count = 0
        best = 0  # requests in the largest prefix of a preferred size
        closed = False
        key: object = None
        for request in candidates:
            size = request.rows or 1  # a request without rows still takes a place
            if count:
                if not best and rows + size > enough:
                    best = count
                if rows + size > limit or request.batch_key != key:
                    closed = True
                    break
            else:
                key = request.batch_key
            rows += size
            count += 1
            if rows in preferred:
                best = count
        if not count:
            return Wait(math.inf)

        until = oldest + self.max_queue_delay
        due = self.max_queue_delay > 0 and now >= until
        if best and not due:
            return Dispatch(best)
        if closed or due or rows >= enough or self.max_queue_delay <= 0:
            return Dispatch(count)
        return Wait(until)


Policy: TypeAlias = DirectPolicy | BatchPolicy


def policy_for(spec: ModelSpec) -> Policy:
    """Return the policy by which `spec` forms its batches."""
    if not isinstance(spec.scheduling, DynamicBatching):
        return DirectPolicy()
    return BatchPolicy(
        max_batch_size=max(1, spec.max_batch_size),
        preferred_batch_sizes=frozenset(spec.scheduling.preferred_batch_sizes),
        max_queue_delay=spec.scheduling.max_queue_delay,
    )
