"""Metric families of models: what `ModelStatistics` counts, and how often they could not be loaded.

Names and texts that begin with `nv_` are Triton's: contract, observability.md section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from actors.serving.quantiles import SlidingQuantiles
from actors.serving.routing.roster import LoadCounts
from actors.serving.statistics import FailureReason, Histogram, LatencySummaries, ModelStatistics
from actors.values.families import (
    Block,
    Families,
    Family,
    Labels,
    Slice,
    SplitFamily,
    blocks,
    by,
    model_labels,
)

COUNTS: Final[Families[ModelStatistics]] = (
    Family(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        lambda s: s.success_count,
    ),
    Family(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        lambda s: s.inference_count,
    ),
    Family(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        lambda s: s.execution_count,
    ),
    SplitFamily(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        lambda s: by("reason", ((reason.value, s.failures[reason]) for reason in FailureReason)),
    ),
)

# Sums of nanoseconds are divided once, at the scrape.
DURATIONS: Final[Families[ModelStatistics]] = (
    Family(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda s: s.success_ns // 1000,
    ),
    Family(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda s: s.queue_ns // 1000,
    ),
    Family(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda s: s.compute_input_ns // 1000,
    ),
    Family(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda s: s.compute_infer_ns // 1000,
    ),
    Family(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda s: s.compute_output_ns // 1000,
    ),
)

PENDING: Final[Family[ModelStatistics]] = Family(
    "nv_inference_pending_request_count",
    "gauge",
    "Instantaneous number of pending requests awaiting execution per-model.",
    lambda s: s.pending,
)


def _bucketed(histogram: Histogram) -> Iterator[Slice]:
    below = 0
    # All digits, or two bounds could read alike; without the `.0` that Triton's have not.
    bounds = [repr(float(bound)).removesuffix(".0") for bound in histogram.bounds] + ["+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        yield Slice(below, {"le": bound}, "_bucket")
    yield Slice(histogram.total, suffix="_sum")
    yield Slice(below, suffix="_count")


FIRST_RESPONSE: Final[SplitFamily[Histogram]] = SplitFamily(
    "nv_inference_first_response_histogram_ms",
    "histogram",
    "Duration from request to first response in milliseconds",
    _bucketed,
)


def summary(
    name: str, explanation: str, read: Callable[[LatencySummaries], SlidingQuantiles]
) -> SplitFamily[LatencySummaries]:
    """Return the family of one latency's quantiles, their sum and their number."""

    def slices(summaries: LatencySummaries) -> Iterator[Slice]:
        latency = read(summaries)
        for quantile, value in latency.quantiles().items():
            yield Slice(value, {"quantile": f"{quantile:g}"})
        yield Slice(latency.total, suffix="_sum")
        yield Slice(latency.total_count, suffix="_count")

    return SplitFamily(name, "summary", explanation, slices)


REQUEST_SUMMARY: Final = summary(
    "nv_inference_request_summary_us",
    "Summary of inference request duration in microseconds (includes cached requests)",
    lambda s: s.request,
)
"""Models whose answers are kept have none: contract, observability.md section 1.3."""

SUMMARIES: Final = (
    summary(
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        lambda s: s.queue,
    ),
    summary(
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda s: s.compute_input,
    ),
    summary(
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda s: s.compute_infer,
    ),
    summary(
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda s: s.compute_output,
    ),
)

CONTAINMENT: Final[Families[ModelStatistics]] = (
    Family(
        "tritium_instance_restarts_total",
        "counter",
        "Instances started again after a death",
        lambda s: s.restarts,
    ),
    Family(
        "tritium_requests_retried_total",
        "counter",
        "Requests executed again because a worker died under them",
        lambda s: s.retried,
    ),
    Family(
        "tritium_requests_bisected_total",
        "counter",
        "Batches split to find the request that kills workers",
        lambda s: s.bisected,
    ),
    Family(
        "tritium_requests_quarantined_total",
        "counter",
        "Requests refused because they kill workers",
        lambda s: s.quarantined,
    ),
    Family(
        "tritium_threads_abandoned_total",
        "counter",
        "Hung threads left behind by instances inside the server process",
        lambda s: s.abandoned_threads,
    ),
    Family(
        "tritium_reply_violations_total",
        "counter",
        "Answers that were dropped or given twice; each one is a bug in Tritium",
        lambda s: s.reply_violations,
    ),
)

DEATHS: Final[Families[ModelStatistics]] = (
    SplitFamily(
        "tritium_worker_deaths_total",
        "counter",
        "Worker deaths, by reason",
        lambda s: by("reason", sorted(s.deaths.items())),
    ),
    SplitFamily(
        "tritium_workers_recycled_total",
        "counter",
        "Workers replaced because they reached a ceiling of 'tritium.recycle', by which",
        lambda s: by("ceiling", sorted(s.recycled.items())),
    ),
)

LOADS: Final[Families[LoadCounts]] = (
    Family(
        "tritium_model_load_failures_total",
        "counter",
        "Loads and reloads of a model that failed",
        lambda counts: counts.failures,
    ),
    SplitFamily(
        "tritium_model_reload_failed",
        "gauge",
        "1 while a version serves whose last reload failed",
        lambda counts: by("version", ((number, int(bad)) for number, bad in counts.reload_failed.items())),
    ),
)


def load_blocks(counts: Iterable[LoadCounts]) -> Iterator[Block]:
    """Yield what is counted of each model's loads."""
    return blocks(LOADS, [(Labels(model_labels(each.name, each.namespace)), each) for each in counts])
