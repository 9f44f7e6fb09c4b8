"""Metric families of models: what `ModelStatistics` counts, and how often they could not be loaded.

Names and texts that begin with `nv_` are Triton's: contract, observability.md section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from actors.serving.durations import Durations
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
    return cumulated(histogram.bounds, histogram.counts, histogram.total, {})


def cumulated(
    upper: Sequence[float], counts: Sequence[int], total: float, labels: Mapping[str, str]
) -> Iterator[Slice]:
    """Yield the series of a histogram whose `counts` are by upper bound, the last of all above."""
    below = 0
    # All digits, or two bounds could read alike; without the `.0` that Triton's have not.
    bounds = [repr(float(bound)).removesuffix(".0") for bound in upper] + ["+Inf"]
    for bound, count in zip(bounds, counts, strict=True):
        below += count
        yield Slice(below, {**labels, "le": bound}, "_bucket")
    yield Slice(total, labels, "_sum")
    yield Slice(below, labels, "_count")


REQUEST_DURATION: Final[SplitFamily[ModelStatistics]] = SplitFamily(
    "tritium_request_duration_seconds",
    "histogram",
    "How long successful requests took, by phase; a phase that no request has had is absent",
    lambda s: _by_phase(s, s.durations) if s.durations is not None else (),
)


def _by_phase(statistics: ModelStatistics, durations: Durations) -> Iterator[Slice]:
    # An answer that was kept after it was given is counted in the sum of successes, as Triton does.
    whole_ns = statistics.success_ns - statistics.cache_miss_ns
    first_ns = whole_ns - durations.streamed_ns + durations.first_parts_ns
    for phase, counts, total_ns in (
        ("queue", durations.queue, statistics.queue_ns),
        ("compute_input", durations.compute_input, statistics.compute_input_ns),
        ("infer", durations.infer, statistics.compute_infer_ns),
        ("output", durations.output, statistics.compute_output_ns),
        ("first_response", durations.first_response, first_ns),
        ("request", durations.request, whole_ns),
    ):
        if any(counts):
            yield from cumulated(durations.bounds, counts, total_ns / 1e9, {"phase": phase})


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

GPU_TENSORS: Final[Families[ModelStatistics]] = (
    Family(
        "tritium_gpu_tensors_total",
        "counter",
        "Outputs that stayed on their GPU for the next step of an ensemble (tritium.gpu_tensors)",
        lambda s: s.gpu_tensors,
    ),
)

BUFFERS: Final[Families[Mapping[str, int]]] = (
    Family(
        "tritium_gpu_tensor_buffers",
        "gauge",
        "Buffers of the workers for such outputs",
        lambda told: told["buffers"],
    ),
    Family(
        "tritium_gpu_tensor_buffers_in_use",
        "gauge",
        "How many of them hold an output that may still be read",
        lambda told: told["in_use"],
    ),
    Family(
        "tritium_gpu_tensor_buffer_bytes",
        "gauge",
        "Bytes of all of those buffers",
        lambda told: told["bytes"],
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


MOST_FAILED: Final = 200
"""Models that serve nothing whose loads are told by name: clients that may upload models name them."""

OTHERS: Final = "other"


def load_blocks(counts: Iterable[LoadCounts]) -> Iterator[Block]:
    """Yield what is counted of each model's loads.

    Models that serve are all told by name, and so many of those that do not; the rest together.
    """
    told, rest, failures = [], 0, 0
    for each in counts:
        if not each.reload_failed:
            rest += 1
            if rest > MOST_FAILED:
                failures += each.failures
                continue
        told.append((Labels(model_labels(each.name, each.namespace)), each))
    if rest > MOST_FAILED:
        others = LoadCounts(OTHERS, "", failures=failures, reload_failed={})
        told.append((Labels(model_labels(OTHERS)), others))
    return blocks(LOADS, told)
