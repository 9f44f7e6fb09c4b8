"""Figures of several measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least the `share` of them do not exceed.

    The result is always a value that was measured. Of a hundred values or fewer, 0.99 is the largest. Raises
    ValueError if `values` is empty.
    """
    if not values:
        raise ValueError("nothing was measured; ask only where something was")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
