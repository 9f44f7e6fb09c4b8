"""Metric families of the response cache: of each model whose answers are kept, and of the server.

Names and texts that begin with `nv_` are Triton's: contract, observability.md section 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.caching.cache import ResponseCache
from actors.caching.far_cache import FarCache
from actors.caching.policy.cache import LruCache
from actors.serving.families import summary
from actors.serving.statistics import ModelStatistics
from actors.values.families import Block, Families, Family, once

PER_MODEL: Final[Families[ModelStatistics]] = (
    Family(
        "nv_cache_num_hits_per_model",
        "counter",
        "Number of cache hits per model",
        lambda s: s.cache_hit_count,
    ),
    Family(
        "nv_cache_num_misses_per_model",
        "counter",
        "Number of cache misses per model",
        lambda s: s.cache_miss_count,
    ),
    Family(
        "nv_cache_hit_duration_per_model",
        "counter",
        "Total cache hit duration per model, in microseconds",
        lambda s: s.cache_hit_ns // 1000,
    ),
    Family(
        "nv_cache_miss_duration_per_model",
        "counter",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda s: s.cache_miss_ns // 1000,
    ),
)

SUMMARIES: Final = (
    summary(
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        lambda s: s.cache_hit,
    ),
    summary(
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        lambda s: s.cache_miss,
    ),
)

NEAR: Final[Families[LruCache]] = (
    Family("nv_cache_util", "gauge", "Cache utilization [0.0 - 1.0]", lambda near: near.utilization),
    Family("nv_cache_num_entries", "gauge", "Number of responses stored in response cache", len),
    Family(
        "nv_cache_num_hits",
        "gauge",
        "Number of cache hits in response cache",
        lambda near: near.counts.hits,
    ),
    Family(
        "nv_cache_num_misses",
        "gauge",
        "Number of cache misses in response cache",
        lambda near: near.counts.misses,
    ),
    Family(
        "nv_cache_num_lookups",
        "gauge",
        "Number of cache lookups in response cache",
        lambda near: near.counts.lookups,
    ),
    Family(
        "nv_cache_num_evictions",
        "gauge",
        "Number of cache evictions in response cache",
        lambda near: near.counts.evictions,
    ),
    Family(
        "nv_cache_lookup_duration",
        "gauge",
        "Total cache lookup duration (hit and miss), in microseconds",
        lambda near: int(near.counts.lookup_seconds * 1e6),
    ),
    Family(
        "nv_cache_insertion_duration",
        "gauge",
        "Total cache insertion duration, in microseconds",
        lambda near: int(near.counts.insertion_seconds * 1e6),
    ),
)

FAR: Final[Families[FarCache]] = (
    Family(
        "tritium_cache_available",
        "gauge",
        "1 while the cache server is asked; while it is down every request is a miss",
        lambda far: int(far.available),
    ),
    Family(
        "tritium_cache_hits_total",
        "counter",
        "Look-ups that found an answer",
        lambda far: far.counts.hits,
    ),
    Family(
        "tritium_cache_misses_total", "counter", "Look-ups that found none", lambda far: far.counts.misses
    ),
    Family(
        "tritium_cache_errors_total",
        "counter",
        "Look-ups and insertions that failed, or took too long",
        lambda far: far.counts.errors,
    ),
    Family(
        "tritium_cache_skipped_total",
        "counter",
        "Look-ups and insertions that were not tried",
        lambda far: far.counts.skipped,
    ),
)

WHOLE: Final[Families[ResponseCache]] = (
    Family(
        "tritium_cache_shared_total",
        "counter",
        "Requests answered by the answer to an equal one that was under way",
        lambda cache: cache.shared,
    ),
    Family(
        "tritium_cache_bugs_total",
        "counter",
        "Requests that ran as if there were no cache because something went wrong in it;"
        " each one is a bug in Tritium",
        lambda cache: cache.bugs,
    ),
)


def cache_blocks(cache: ResponseCache, far: FarCache | None) -> Iterator[Block]:
    """Yield what a cache counts; `far` is where it asks, if that is another process."""
    if cache.near is not None:
        yield from once(NEAR, cache.near)
    if far is not None:
        yield from once(FAR, far)
    yield from once(WHOLE, cache)
