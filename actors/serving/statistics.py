"""The counters of a model while it serves: Triton's statistics, and those of Tritium's containment.

A `ModelStatistics` belongs to a model's state. The hot path calls `batch_succeeded` and `batch_executed` once
a batch, and `succeeded` once a request where requests are answered one by one. Each is a few integer adds.
The readers (the statistics endpoint, a metrics scrape) do the arithmetic. Latency summaries and the
first-response histogram cost something for each request. They are off by default, and absent where they are
off.

Durations are integer nanoseconds; points in time are milliseconds since the epoch, given by the caller.

Reference: contract observability.md sections 1.2, 1.3 and 2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from actors.serving.durations import Durations
from actors.serving.quantiles import SlidingQuantiles

DEFAULT_HISTOGRAM_BOUNDS: Final[Sequence[float]] = (100.0, 500.0, 2000.0, 5000.0)  # milliseconds, Triton's


class FailureReason(Enum):
    """Why an accepted request failed, as `nv_inference_request_failure` labels it."""

    REJECTED = "REJECTED"  # the queue's timeout policy refused it
    CANCELED = "CANCELED"  # cancelled before it ran
    BACKEND = "BACKEND"  # the backend answered with an error, or its execution failed
    OTHER = "OTHER"


class Histogram:
    """Counts observations by upper bound; the last count is of all values above the highest bound."""

    def __init__(self, bounds: Sequence[float] = DEFAULT_HISTOGRAM_BOUNDS) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"histogram bounds must ascend, got {list(bounds)}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` in the first bucket whose bound is not below it, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class LatencySummaries:
    """Quantiles of a model's latencies in microseconds, over the last ten minutes."""

    def __init__(self, quantiles: Mapping[float, float]) -> None:
        self.cache_hit = SlidingQuantiles(quantiles)  # look-ups
        self.cache_miss = SlidingQuantiles(quantiles)  # look-ups and insertions
        self.request = SlidingQuantiles(quantiles)
        self.queue = SlidingQuantiles(quantiles)
        self.compute_input = SlidingQuantiles(quantiles)
        self.compute_infer = SlidingQuantiles(quantiles)
        self.compute_output = SlidingQuantiles(quantiles)

    def turn(self, now_ms: int) -> None:
        """Drop what is older than the window."""
        for summary in (
            self.request,
            self.queue,
            self.cache_hit,
            self.cache_miss,
            self.compute_input,
            self.compute_infer,
            self.compute_output,
        ):
            summary.turn(now_ms)


class ModelStatistics:
    """One model version's counters. Attributes are plain and public: the owner adds, readers read.

    Counters restart from zero with the object, which lives as long as the loaded model version does, or, for
    metrics, the version after it.
    """

    def __init__(
        self,
        *,
        summaries: LatencySummaries | None = None,
        first_response: Histogram | None = None,
        durations: Durations | None = None,
    ) -> None:
        self.success_count = 0
        self.success_ns = 0
        self.failures = dict.fromkeys(FailureReason, 0)
        self.fail_ns = 0
        self.queue_ns = 0
        self.compute_input_ns = 0
        self.compute_infer_ns = 0
        self.compute_output_ns = 0
        self.cache_hit_count = 0
        self.cache_hit_ns = 0
        self.last_hit_ms = 0
        self.cache_miss_count = 0
        self.cache_miss_ns = 0
        self.inference_count = 0  # rows of successful requests
        self.execution_count = 0
        self.last_inference_ms = 0
        self.per_batch_size: dict[int, list[int]] = {}  # rows → executions, input, infer, output nanoseconds
        self.pending = 0  # requests waiting for their execution to start

        self.restarts = 0  # instances started again after a death
        self.deaths: Counter[str] = Counter()  # worker deaths by reason
        self.recycled: Counter[str] = Counter()  # workers replaced by the ceiling that they reached
        self.quarantined = 0  # requests refused because they kill workers
        self.bisected = 0  # batches split to find such a request
        self.retried = 0  # requests that ran again after a death
        self.gpu_tensors = 0  # outputs that were left on a GPU
        self.abandoned_threads = 0  # hung threads left behind by instances in the server process
        self.reply_violations = 0  # answers dropped or given twice: each one is a bug

        self.summaries = summaries
        self.first_response = first_response  # milliseconds
        self.durations = durations
        # Of versions that this one has replaced: see `actors.catalog.earlier`.
        self.earlier: tuple[ModelStatistics, ...] = ()
        self.ended = False  # nothing more will be counted

    def succeeded(
        self,
        rows: int,
        queue_ns: int,
        compute_input_ns: int,
        infer_ns: int,
        output_ns: int,
        total_ns: int,
        *,
        streamed: bool = False,
    ) -> None:
        """Count one request that was executed and answered. `total_ns` is end to end.

        `streamed` says that the answer came in parts. The first of them was counted by `first_part`.
        """
        self.success_count += 1
        self.inference_count += rows
        self.success_ns += total_ns
        self.queue_ns += queue_ns
        self.compute_input_ns += compute_input_ns
        self.compute_infer_ns += infer_ns
        self.compute_output_ns += output_ns
        durations = self.durations
        if durations is not None:
            if streamed:
                durations.streamed(queue_ns, total_ns)
            else:
                durations.answered(queue_ns, total_ns)
        if self.first_response is not None and not streamed:
            self.first_response.observe(total_ns / 1e6)
        if self.summaries is not None:
            self._summarise(queue_ns, compute_input_ns, infer_ns, output_ns, total_ns)

    def batch_succeeded(
        self, rows: int, totals: Sequence[int], input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """Count the requests of one execution that were answered by one response each.

        `totals` are their times from end to end; they have `rows` together. The rest is the same for all. So
        this takes a few additions, however many there are. `computed` is not called for them.
        """
        count = len(totals)
        whole_ns = sum(totals)
        compute_ns = input_ns + infer_ns + output_ns
        self.success_count += count
        self.inference_count += rows
        self.success_ns += whole_ns
        if min(totals) >= compute_ns:
            self.queue_ns += whole_ns - count * compute_ns
        else:
            self.queue_ns += sum([max(0, total - compute_ns) for total in totals])
        self.compute_input_ns += count * input_ns
        self.compute_infer_ns += count * infer_ns
        self.compute_output_ns += count * output_ns
        if self.durations is not None:
            self.durations.batch_answered(totals, compute_ns)
            self.durations.computed(count, input_ns, infer_ns, output_ns)
        if self.first_response is not None:
            for total in totals:
                self.first_response.observe(total / 1e6)
        if self.summaries is not None:
            for total in totals:
                self._summarise(max(0, total - compute_ns), input_ns, infer_ns, output_ns, total)

    def _summarise(self, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, total_ns: int) -> None:
        summaries = self.summaries
        assert summaries is not None, "it is asked before"
        summaries.request.observe(total_ns // 1000)
        summaries.queue.observe(queue_ns // 1000)
        summaries.compute_input.observe(input_ns // 1000)
        summaries.compute_infer.observe(infer_ns // 1000)
        summaries.compute_output.observe(output_ns // 1000)

    @property
    def lane_rate(self) -> float:
        """How many requests a second one lane answers while it executes; 0 if none has been executed."""
        seconds = sum(sum(entry[1:]) for entry in self.per_batch_size.values()) / 1e9
        return self.success_count / seconds if seconds > 0 else 0.0

    def computed(self, requests: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Count by duration what the executions behind `succeeded` took; once for the requests of a batch."""
        if self.durations is not None:
            self.durations.computed(requests, input_ns, infer_ns, output_ns)

    def first_part(self, ns: int) -> None:
        """Count the first response to a request of a decoupled model, `ns` after the request."""
        if self.durations is not None:
            self.durations.first_part(ns)
        if self.first_response is not None:
            self.first_response.observe(ns / 1e6)

    def batch_executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int, at_ms: int) -> None:
        """Count one backend execution of `rows` rows that ended at `at_ms`, whether it succeeded or not."""
        self.execution_count += 1
        self.last_inference_ms = at_ms
        entry = self.per_batch_size.get(rows)
        if entry is None:
            entry = self.per_batch_size[rows] = [0, 0, 0, 0]
        entry[0] += 1
        entry[1] += input_ns
        entry[2] += infer_ns
        entry[3] += output_ns
        if self.summaries is not None:
            self.summaries.turn(at_ms)

    def take_over(self, engine: ModelStatistics) -> None:
        """Show as this version's what its engine has counted of workers, which this one has none of."""
        self.restarts = engine.restarts
        self.deaths = engine.deaths
        self.recycled = engine.recycled
        self.quarantined = engine.quarantined
        self.abandoned_threads = engine.abandoned_threads

    def failed(self, reason: FailureReason, ns: int) -> None:
        """Count one accepted request that failed after `ns`.

        A request refused before it was queued is not counted.
        """
        self.failures[reason] += 1
        self.fail_ns += ns

    def cache_hit(self, queue_ns: int, lookup_ns: int, total_ns: int, at_ms: int = 0) -> None:
        """Count one request answered from the response cache at `at_ms`.

        It is a success, but no inference and no execution.
        """
        self.last_hit_ms = at_ms
        self.success_count += 1
        self.success_ns += total_ns
        self.queue_ns += queue_ns
        self.cache_hit_count += 1
        self.cache_hit_ns += lookup_ns
        if self.durations is not None:
            self.durations.answered(queue_ns, total_ns)
        if self.first_response is not None:
            self.first_response.observe(total_ns / 1e6)
        if self.summaries is not None:
            self.summaries.request.observe(total_ns // 1000)
            self.summaries.queue.observe(queue_ns // 1000)
            self.summaries.cache_hit.observe(lookup_ns // 1000)

    def cache_miss(self, ns: int) -> None:
        """Count one look-up that found no entry; `ns` is the time of look-up and insertion together."""
        self.cache_miss_count += 1
        self.cache_miss_ns += ns
        self.success_ns += ns
        if self.summaries is not None:
            self.summaries.cache_miss.observe(ns // 1000)

    @property
    def computed_count(self) -> int:
        """Successful requests that the model itself has answered."""
        return self.success_count - self.cache_hit_count

    @property
    def failure_count(self) -> int:
        """Failed requests, for any reason."""
        return sum(self.failures.values())

    def as_model_stats(self, name: str, version: int | str) -> dict[str, object]:
        """Return one element of the statistics endpoint's `model_stats`, ready for JSON."""
        success, hits = self.success_count, self.cache_hit_count
        computed = self.computed_count
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _duration(success, self.success_ns),
                "fail": _duration(self.failure_count, self.fail_ns),
                "queue": _duration(success, self.queue_ns),
                "compute_input": _duration(computed, self.compute_input_ns),
                "compute_infer": _duration(computed, self.compute_infer_ns),
                "compute_output": _duration(computed, self.compute_output_ns),
                "cache_hit": _duration(hits, self.cache_hit_ns),
                "cache_miss": _duration(self.cache_miss_count, self.cache_miss_ns),
            },
            "response_stats": {},  # filled only by backends that report each response
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": _duration(count, input_ns),
                    "compute_infer": _duration(count, infer_ns),
                    "compute_output": _duration(count, output_ns),
                }
                for rows, (count, input_ns, infer_ns, output_ns) in sorted(self.per_batch_size.items())
            ],
            "memory_usage": [],  # filled only by backends that report it
        }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
