"""How late the generator itself was.

If it was late, the load was not the intended one, and its times are not the server's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Seconds between when requests were due and when they were handed to the network."""

    count: int
    p50: float
    p99: float
    worst: float


def lateness(seconds: Sequence[float]) -> Lateness:
    """Sum up how late each request was; without requests, nothing was late."""
    ordered = sorted(seconds) or [0.0]
    return Lateness(
        count=len(seconds), p50=_quantile(ordered, 0.5), p99=_quantile(ordered, 0.99), worst=ordered[-1]
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: a value that was really measured."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
