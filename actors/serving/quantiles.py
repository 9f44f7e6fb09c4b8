"""Quantiles of a stream, within a chosen error and in bounded memory.

`TargetedQuantiles` is the targeted-quantiles sketch of Cormode, Korn, Muthukrishnan and Srivastava,
"Effective Computation of Biased Quantiles over Data Streams" (ICDE 2005). It keeps a sorted list of samples
`[value, g, delta]`: `g` is how much the lowest possible rank rises from the sample before, `delta` how far
the rank may lie above its lowest. Two neighbours may become one while `g + g' + delta'` stays under the
invariant `f(rank)`, which is tight near the requested quantiles and loose elsewhere. The paper tests f where
a sample begins. Here it is the least over the ranks that the sample covers, so that the promise holds for few
values too.

`SlidingQuantiles` forgets old values: it feeds a ring of sketches of staggered age, and answers from the
oldest.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

# Values that are sorted and merged at once: an observation is a list append, the merge is amortised.
_BUFFER: Final = 500
WINDOW_MS: Final = 600_000
# Sketches in the ring; the window's true length lies between 4/5 of it and all of it.
_AGES: Final = 5


class TargetedQuantiles:
    """The sketch.

    `targets` maps each quantile in (0, 1) to its allowed error in rank, as a fraction of the count.
    """

    def __init__(self, targets: Mapping[float, float]) -> None:
        for quantile, error in targets.items():
            if not 0 < quantile < 1 or not 0 < error < 1:
                raise ValueError(f"quantile and error must lie between 0 and 1, got {quantile}:{error}")
        self._targets = tuple(targets.items())
        self._samples: list[list[float]] = []
        self._count = 0

    @property
    def count(self) -> int:
        """Values merged so far."""
        return self._count

    @property
    def size(self) -> int:
        """The number of samples kept for them."""
        return len(self._samples)

    def merge(self, ascending: Iterable[float]) -> None:
        """Add values, given in ascending order."""
        merged: list[list[float]] = []
        rank = 0.0
        old = iter(self._samples)
        sample = next(old, None)
        for value in ascending:
            while sample is not None and sample[0] <= value:
                rank += sample[1]
                merged.append(sample)
                sample = next(old, None)
            # A new value lies before its successor, whose own uncertainty bounds it; the extremes stay exact.
            spread = 0.0 if sample is None or not merged else sample[1] + sample[2] - 1
            merged.append([value, 1.0, spread])
            rank += 1
            self._count += 1
        if sample is not None:
            merged.append(sample)
            merged.extend(old)
        self._samples = merged
        self._compress()

    def query(self, quantile: float) -> float:
        """Return a value whose rank is `quantile` of the count, within the target's error.

        NaN without values.
        """
        if not self._samples:
            return math.nan
        wanted = quantile * self._count
        limit = wanted + self._slack(wanted, wanted) / 2
        rank = 0.0
        previous = self._samples[0]
        for sample in self._samples[1:]:
            rank += previous[1]
            if rank + sample[1] + sample[2] > limit:
                return previous[0]
            previous = sample
        return previous[0]

    def _slack(self, low: float, high: float) -> float:
        """Return the least of f(rank) for ranks from `low` to `high`: the uncertainty of one sample there.

        Each target's f falls towards its own rank and rises behind it. So a sample that spans a target may
        hold twice its error, and the middle of that sample is close enough.
        """
        n = self._count
        least = math.inf
        for quantile, error in self._targets:
            at = quantile * n
            if high < at:
                slack = 2 * error * (n - high) / (1 - quantile)
            elif low > at:
                slack = 2 * error * low / quantile
            else:
                slack = 2 * error * n
            least = min(least, slack)
        return least

    def _compress(self) -> None:
        samples = self._samples
        if len(samples) < 3:
            return
        kept = [samples[-1]]
        # The lowest rank of the sample before the one last kept.
        rank = self._count - samples[-1][1]
        for sample in reversed(samples[1:-1]):
            rank -= sample[1]
            last = kept[-1]
            held = sample[1] + last[1] + last[2]
            if held <= self._slack(rank, rank + held):
                last[1] += sample[1]
            else:
                kept.append(sample)
        kept.append(samples[0])
        kept.reverse()
        self._samples = kept


class SlidingQuantiles:
    """Quantiles over about the last `window_ms`, with the count and sum of everything ever observed.

    The time is what `turn` was last told, so `observe` needs no clock.
    """

    def __init__(self, targets: Mapping[float, float], *, window_ms: int = WINDOW_MS) -> None:
        self.targets = dict(targets)
        self.total_count = 0
        self.total = 0.0
        self._buffer: list[float] = []
        self._step_ms = max(1, window_ms // _AGES)
        self._turned_ms: int | None = None
        self._ring = deque((TargetedQuantiles(targets) for _ in range(_AGES)), maxlen=_AGES)

    def observe(self, value: float) -> None:
        """Add a value at the present time."""
        self.total_count += 1
        self.total += value
        self._buffer.append(value)
        if len(self._buffer) >= _BUFFER:
            self._flush()

    def turn(self, now_ms: int) -> None:
        """Set the time, and forget values that have become too old.

        If the clock is set back, the present step begins again.
        """
        if self._turned_ms is None or now_ms < self._turned_ms:
            self._turned_ms = now_ms
            return
        steps = (now_ms - self._turned_ms) // self._step_ms
        if steps == 0:
            return
        self._flush()
        self._turned_ms += steps * self._step_ms
        for _ in range(min(steps, _AGES)):
            self._ring.append(TargetedQuantiles(self.targets))  # the oldest falls out

    def quantiles(self) -> dict[float, float]:
        """Return each target's value in the window; NaN where nothing was observed in it."""
        self._flush()
        oldest = self._ring[0]
        return {quantile: oldest.query(quantile) for quantile in self.targets}

    def _flush(self) -> None:
        if self._buffer:
            self._buffer.sort()
            for sketch in self._ring:
                sketch.merge(self._buffer)
            self._buffer = []
