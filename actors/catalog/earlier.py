"""Counts that outlive a reload: a version that takes the place of another goes on with its counts.

Triton's metrics do so where the old version is still there when the new one is loaded. It counts on while it
answers what it had accepted. So a version keeps the statistics of those before it, and a scrape adds them up.
Those that have ended are added up once.

Statistics of the endpoint begin anew, and so do quantiles. Reference: contract observability.md section 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from actors.serving.durations import Durations
from actors.serving.statistics import Histogram, ModelStatistics

_COUNTS: Final = (
    "success_count",
    "success_ns",
    "fail_ns",
    "queue_ns",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
    "cache_hit_count",
    "cache_hit_ns",
    "cache_miss_count",
    "cache_miss_ns",
    "inference_count",
    "execution_count",
    "restarts",
    "quarantined",
    "bisected",
    "retried",
    "abandoned_threads",
    "gpu_tensors",
    "reply_violations",
)


def earlier_than(replaced: ModelStatistics) -> tuple[ModelStatistics, ...]:
    """Return what the version after `replaced` goes on with: at most one sum, and those that count on."""
    every = (*replaced.earlier, replaced)
    ended = [each for each in every if each.ended]
    on = [each for each in every if not each.ended]
    if not ended:
        return tuple(on)
    total = _added(ended)
    total.ended = True
    return total, *on


def in_all(statistics: ModelStatistics) -> ModelStatistics:
    """Return the counts of a version and of those before it; itself where there are none."""
    if not statistics.earlier:
        return statistics
    total = _added([statistics, *statistics.earlier])
    total.pending = statistics.pending
    total.summaries = statistics.summaries
    return total


def _added(every: Iterable[ModelStatistics]) -> ModelStatistics:
    total = ModelStatistics()
    for each in every:
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + getattr(each, name))
        for reason, count in each.failures.items():
            total.failures[reason] += count
        total.deaths.update(each.deaths)
        total.recycled.update(each.recycled)
        total.first_response = _histograms(total.first_response, each.first_response)
        total.durations = _durations(total.durations, each.durations)
    return total


def _histograms(one: Histogram | None, other: Histogram | None) -> Histogram | None:
    """Return both together. Where a reload has changed the bounds, the first, which is the newer."""
    if one is None or other is None:
        return one or other
    if one.bounds != other.bounds:
        return one
    both = Histogram(one.bounds)
    both.counts = [mine + its for mine, its in zip(one.counts, other.counts, strict=True)]
    both.total = one.total + other.total
    return both


def _durations(one: Durations | None, other: Durations | None) -> Durations | None:
    if one is None or other is None:
        return one or other
    return one.plus(other)
