"""Which of the waiting requests share the next batch, where shapes are few (`tritium.pad_to`). Pure.

Otherwise a batch is a prefix of the queue (contract, scheduling.md section 3.1). If requests of some buckets
come mixed, hardly two that follow each other have the same one. So the batch is made of the first request and
of those behind it that are like it. While those wait for more, another bucket that has a whole batch goes
first. The first request of all is never passed over for longer than `max_queue_delay`.

Where the order means something (priorities, tenants, promised latency, `preserve_ordering`), the prefix it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from actors.serving.policy.batching import BatchPolicy, Dispatch, Wait, affordable
from actors.values.requests import InferRequest
from actors.values.specs import DynamicBatching, ModelSpec

AHEAD: Final = 8
"""How many full batches of waiting requests are looked at for one."""


class Grouping:
    """Chooses batches of requests that are alike."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.max_rows = AHEAD * policy.max_rows
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
    """Return what chooses the batches of `spec`; None if they are prefixes of its queue."""
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
    return Grouping(
        BatchPolicy(
            max_batch_size=max(1, spec.max_batch_size),
            preferred_batch_sizes=frozenset(scheduling.preferred_batch_sizes),
            max_queue_delay=scheduling.max_queue_delay,
        )
    )
