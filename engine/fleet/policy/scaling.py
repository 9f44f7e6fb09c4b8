"""How many replicas an autoscaler should run: enough for each to have a given number of requests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Replicas between `least` and `most`, each with `requests` that are queued or executing."""

    requests: float = 8
    least: int = 1
    most: int = 64


def wanted_replicas(scale: Scale, waiting: Iterable[int | None]) -> int:
    """Return the number. A replica that does not tell its requests counts as one that has its fill."""
    seen = list(waiting)
    total = sum(scale.requests if each is None else each for each in seen)
    return min(max(math.ceil(total / scale.requests), scale.least), scale.most)
