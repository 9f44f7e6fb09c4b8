"""When is a batch closed? Contract, scheduling.md section 3.1.

A policy looks at the waiting requests in their order of service. It either says how many of them go now, or
until when to wait for more. It never reorders: the batch is always a prefix, and the first request that does
not fit closes it.

If shapes are few (`tritium.pad_to`), a batch is the first request and those behind it that are like it
(`Grouping`). A prefix would be short: if requests of some buckets come mixed, hardly two that follow each
other have the same one. While the first waits for more, another bucket that has a whole batch goes before it.
The first request of all is never passed over for longer than `max_queue_delay`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from actors.values.requests import InferRequest
from actors.values.specs import DynamicBatching, ModelSpec

BATCH_BYTES: Final = 64 * 1024 * 1024
"""Inputs gathered in one turn of the loop: copying more would hold up all other tasks for over 20 ms."""

AHEAD: Final = 8
"""How many full batches of waiting requests are looked at for one that is not a prefix, and no more rows than
`LOOKED_AT`, unless one batch has more."""

LOOKED_AT: Final = 1024
"""To look at so many waiting requests takes some 0.1 ms."""


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
    return _dynamic(spec, spec.scheduling)


class Grouping:
    """Chooses batches of requests that are alike."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.max_rows = max(policy.max_rows, min(AHEAD * policy.max_rows, LOOKED_AT))
        """How many rows of candidates `choose` looks at."""

    def choose(
        self, candidates: Sequence[InferRequest], *, oldest: float, now: float
    ) -> list[InferRequest] | Wait:
        """Return the requests of the next batch, in their order, or until when to wait for more.

        `candidates` are the first in their order of service. The first of them was enqueued at `oldest`.
        """
        groups: dict[object, list[InferRequest]] = {}
        for request in candidates:
            groups.setdefault(request.batch_key, []).append(request)
        until = Wait(math.inf)
        for place, group in enumerate(groups.values()):
            # Others than the first are not due: they go if they are enough.
            decision = self._policy.decide(group, oldest=oldest if not place else now, now=now)
            if isinstance(decision, Dispatch):
                count = decision.requests
                return group[: affordable([each.nbytes for each in group[:count]])]
            if not place:
                until = decision
        return until


def grouping_for(spec: ModelSpec) -> Grouping | None:
    """Return what chooses the batches of `spec`; None if they are prefixes of its queue.

    They are where the order means something: for priorities, tenants, promised latency, `preserve_ordering`.
    """
    scheduling = spec.scheduling
    if (
        not isinstance(scheduling, DynamicBatching)
        or all(each.padded is None for each in spec.inputs)
        or scheduling.preserve_ordering
        or scheduling.priority_levels
        or spec.fairness is not None
        or spec.slo is not None
    ):
        return None
    return Grouping(_dynamic(spec, scheduling))


def _dynamic(spec: ModelSpec, scheduling: DynamicBatching) -> BatchPolicy:
    return BatchPolicy(
        max_batch_size=max(1, spec.max_batch_size),
        preferred_batch_sizes=frozenset(scheduling.preferred_batch_sizes),
        max_queue_delay=scheduling.max_queue_delay,
    )
