"""Prometheus metrics: read at each scrape, written in the text format 0.0.4, served by a small ASGI app.

Nothing is counted here. Counters live with the models (`actors.serving.statistics`), and a scrape reads them once.
The text is written by hand, since prometheus-client cannot print a counter without the suffix `_total`, and
Triton's have none. A model's labels are put into words once a scrape, and a family is one block of text. So a
scrape of a thousand models can let the loop go on between blocks.

Reference: contract observability.md section 1, http.md section 11.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from actors.caching.far_cache import FarCache
from actors.caching.policy.cache import LruCache
from actors.residency.residency import Counters, ModelResidency
from actors.seams import faults
from actors.serving.policy.fairness import TenantShare
from actors.serving.policy.slo import SloSample
from actors.serving.statistics import (
    DEFAULT_HISTOGRAM_BOUNDS,
    FailureReason,
    Histogram,
    LatencySummaries,
    ModelStatistics,
)
from actors.traffic.traffic import TrafficSample
from engine.observability.connections import ConnectionSource, connection_blocks
from engine.observability.loop_lag import LoopLag
from engine.observability.sources import (
    CacheSource,
    CustomSource,
    GrpcSource,
    LoadSource,
    MetricsSource,
    ModelSample,
    ReadinessSource,
    ResidencySource,
    TrafficSource,
    WorkerSource,
)
from engine.observability.system import MachineSampler, ProcessSample, sample_process
from engine.settings.reporting import MetricsSettings
from protocols.grpc.listener import GrpcStatistics

Number = int | float


@dataclass(frozen=True, slots=True)
class _Family:
    """A family with one series a model."""

    name: str
    kind: str
    help: str
    read: Callable[[ModelSample], Number]


@dataclass(frozen=True, slots=True)
class _Line:
    """One series: what follows the family's name, its labels as written, its value."""

    suffix: str
    labels: str
    value: Number


def _per_statistics(read: Callable[[ModelStatistics], Number]) -> Callable[[ModelSample], Number]:
    return lambda model: read(model.statistics)


_COUNTS: Final = (
    _Family(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        _per_statistics(lambda s: s.success_count),
    ),
    _Family(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        _per_statistics(lambda s: s.inference_count),
    ),
    _Family(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        _per_statistics(lambda s: s.execution_count),
    ),
)
_FAILURES: Final = "nv_inference_request_failure"
_FAILURES_HELP: Final = "Number of failed inference requests, all batch sizes"

# Sums of nanoseconds are divided once, at the scrape.
_DURATIONS: Final = (
    _Family(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        _per_statistics(lambda s: s.success_ns // 1000),
    ),
    _Family(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        _per_statistics(lambda s: s.queue_ns // 1000),
    ),
    _Family(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        _per_statistics(lambda s: s.compute_input_ns // 1000),
    ),
    _Family(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        _per_statistics(lambda s: s.compute_infer_ns // 1000),
    ),
    _Family(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        _per_statistics(lambda s: s.compute_output_ns // 1000),
    ),
)

# Of models whose answers are kept.
_CACHED: Final = (
    _Family(
        "nv_cache_num_hits_per_model",
        "counter",
        "Number of cache hits per model",
        _per_statistics(lambda s: s.cache_hit_count),
    ),
    _Family(
        "nv_cache_num_misses_per_model",
        "counter",
        "Number of cache misses per model",
        _per_statistics(lambda s: s.cache_miss_count),
    ),
    _Family(
        "nv_cache_hit_duration_per_model",
        "counter",
        "Total cache hit duration per model, in microseconds",
        _per_statistics(lambda s: s.cache_hit_ns // 1000),
    ),
    _Family(
        "nv_cache_miss_duration_per_model",
        "counter",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        _per_statistics(lambda s: s.cache_miss_ns // 1000),
    ),
)

_GAUGES: Final = (
    _Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        _per_statistics(lambda s: s.pending),
    ),
    _Family(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        lambda model: model.load_duration,
    ),
)

_OURS: Final = (
    _Family(
        "tritium_instance_restarts_total",
        "counter",
        "Instances started again after a death",
        _per_statistics(lambda s: s.restarts),
    ),
    _Family(
        "tritium_requests_retried_total",
        "counter",
        "Requests executed again because a worker died under them",
        _per_statistics(lambda s: s.retried),
    ),
    _Family(
        "tritium_requests_bisected_total",
        "counter",
        "Batches split to find the request that kills workers",
        _per_statistics(lambda s: s.bisected),
    ),
    _Family(
        "tritium_requests_quarantined_total",
        "counter",
        "Requests refused because they kill workers",
        _per_statistics(lambda s: s.quarantined),
    ),
    _Family(
        "tritium_threads_abandoned_total",
        "counter",
        "Hung threads left behind by instances inside the server process",
        _per_statistics(lambda s: s.abandoned_threads),
    ),
    _Family(
        "tritium_reply_violations_total",
        "counter",
        "Answers that were dropped or given twice; each one is a bug in Tritium",
        _per_statistics(lambda s: s.reply_violations),
    ),
    _Family("tritium_queue_depth", "gauge", "Requests waiting in the queue", lambda model: model.queue_depth),
    _Family(
        "tritium_queue_age_seconds",
        "gauge",
        "How long the oldest request has waited in the queue",
        lambda model: model.queue_age,
    ),
)

# Of models that are loaded on demand.
_ON_DEMAND: Final[tuple[tuple[str, str, str, Callable[[Counters], Number]], ...]] = (
    (
        "tritium_model_loads_on_demand_total",
        "counter",
        "Loads that a request brought about",
        lambda counters: counters.loads,
    ),
    (
        "tritium_model_evictions_total",
        "counter",
        "How often a model was unloaded to make room for others",
        lambda counters: counters.evictions,
    ),
    (
        "tritium_wake_waiting_requests",
        "gauge",
        "Requests that wait for their model to be loaded",
        lambda counters: counters.waiting,
    ),
)

_HISTOGRAM: Final = "nv_inference_first_response_histogram_ms"
_HISTOGRAM_HELP: Final = "Duration from request to first response in milliseconds"

_SUMMARIES: Final = (
    (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        "request",
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        "queue",
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        "compute_input",
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        "compute_infer",
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        "compute_output",
    ),
)


# Of models whose answers are kept. These have no summary of requests (contract, observability.md section
# 1.3).
_CACHE_SUMMARIES: Final = (
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        "cache_hit",
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        "cache_miss",
    ),
)


_GRPC: Final[Sequence[tuple[str, str, str, Callable[[GrpcStatistics], int]]]] = (
    ("tritium_grpc_connections", "gauge", "gRPC connections that are open", lambda grpc: grpc.connections),
    ("tritium_grpc_streams", "gauge", "gRPC calls that are open", lambda grpc: grpc.streams),
    (
        "tritium_grpc_pending_bytes",
        "gauge",
        "Answers that wait for gRPC clients to read, in bytes",
        lambda grpc: grpc.pending,
    ),
    (
        "tritium_grpc_accepted_total",
        "counter",
        "gRPC connections that were accepted",
        lambda grpc: grpc.accepted,
    ),
    (
        "tritium_grpc_violations_total",
        "counter",
        "gRPC connections that were ended because the client broke the rules of HTTP/2",
        lambda grpc: grpc.violations,
    ),
    (
        "tritium_grpc_floods_total",
        "counter",
        "Those of them whose client asked too much",
        lambda grpc: grpc.floods,
    ),
)


def new_statistics(
    settings: MetricsSettings, first_response_buckets: Sequence[float] = ()
) -> ModelStatistics:
    """Return a model's statistics, observing what the settings ask for and no more.

    `first_response_buckets` are the histogram's upper bounds in milliseconds, if the model has bounds of its
    own.
    """
    return ModelStatistics(
        summaries=LatencySummaries(settings.summary_quantiles) if settings.summary_latencies else None,
        first_response=Histogram(first_response_buckets or DEFAULT_HISTOGRAM_BOUNDS)
        if settings.histogram_latencies
        else None,
    )


class Exposition:
    """Writes what a source knows as Prometheus text.

    `wall_ms` tells the time for the summaries' sliding window, in milliseconds since the epoch.
    """

    def __init__(
        self,
        source: MetricsSource,
        settings: MetricsSettings,
        *,
        wall_ms: Callable[[], int],
        loop_lag: LoopLag | None = None,
        machine: MachineSampler | None = None,
        process: Callable[[], ProcessSample] = sample_process,
        readiness: ReadinessSource | None = None,
        traffic: TrafficSource | None = None,
        residency: ResidencySource | None = None,
        grpc: Sequence[GrpcSource] = (),
        cache: CacheSource | None = None,
        workers: WorkerSource | None = None,
        custom: CustomSource | None = None,
        connections: Mapping[str, Sequence[ConnectionSource]] | None = None,
        loads: LoadSource | None = None,
    ) -> None:
        self._source = source
        self._settings = settings
        self._wall_ms = wall_ms
        self._loop_lag = loop_lag
        self._machine = machine
        self._process = process
        self._readiness = readiness
        self._traffic = traffic
        self._residency = residency
        self._grpc = grpc
        self._cache = cache
        self._workers = workers
        self._custom = custom
        self._connections = connections
        self._loads = loads

    def blocks(self) -> Iterator[str]:
        """Yield the text of each family that has a series."""
        models = [(model, _model_labels(model)) for model in self._source.models()]
        if models:
            yield from self._model_blocks(models)
        if self._readiness is not None:
            yield from _readiness_blocks(self._readiness)
        if self._loads is not None:
            yield from _load_blocks(self._loads)
        if self._traffic is not None:
            yield from _traffic_blocks(self._traffic)
        if self._residency is not None:
            yield from _residency_blocks(self._residency)
        if self._grpc:
            yield from _grpc_blocks(self._grpc)
        if self._connections:
            yield from connection_blocks(self._connections)
        if self._cache is not None:
            yield from cache_blocks(self._cache)
        if self._workers is not None:
            yield from _worker_blocks(self._workers)
        if self._custom is not None:
            yield from self._custom.blocks()
        yield from self._server_blocks()

    def text(self) -> str:
        """Return all of it."""
        return "".join(self.blocks())

    def _model_blocks(self, models: Sequence[tuple[ModelSample, Mapping[str, str]]]) -> Iterator[str]:
        plain = [(model, written(labels)) for model, labels in models]
        counting = self._settings.counter_latencies
        for family in _COUNTS:
            # Without counter_latencies Triton leaves the series in place, at zero.
            lines = [_Line("", labels, family.read(model) if counting else 0) for model, labels in plain]
            yield _block(family.name, family.kind, family.help, lines)
        yield _block(_FAILURES, "counter", _FAILURES_HELP, self._failures(models))
        if counting:
            yield from (_family_block(family, plain) for family in _DURATIONS)
            cached = [(model, labels) for model, labels in plain if model.cached]
            if cached:
                yield from (_family_block(family, cached) for family in _CACHED)
        yield from (_family_block(family, plain) for family in _GAUGES)
        yield from self._latency_blocks(models)
        yield from (_family_block(family, plain) for family in _OURS)
        deaths = [
            _Line("", written({**labels, "reason": reason}), count)
            for model, labels in models
            for reason, count in sorted(model.statistics.deaths.items())
        ]
        if deaths:
            yield _block("tritium_worker_deaths_total", "counter", "Worker deaths, by reason", deaths)
        recycled = [
            _Line("", written({**labels, "ceiling": ceiling}), count)
            for model, labels in models
            for ceiling, count in sorted(model.statistics.recycled.items())
        ]
        if recycled:
            explanation = "Workers replaced because they reached a ceiling of 'tritium.recycle', by which"
            yield _block("tritium_workers_recycled_total", "counter", explanation, recycled)
        yield from _tenant_blocks(models)
        yield from _slo_blocks(models)
        instances = [
            _Line("", written({**labels, "state": state}), count)
            for model, labels in models
            for state, count in sorted(model.instances.items())
        ]
        if instances:
            yield _block("tritium_instances", "gauge", "Instances, by state", instances)

    def _failures(self, models: Iterable[tuple[ModelSample, Mapping[str, str]]]) -> list[_Line]:
        counting = self._settings.counter_latencies
        return [
            _Line(
                "",
                written({**labels, "reason": reason.value}),
                model.statistics.failures[reason] if counting else 0,
            )
            for model, labels in models
            for reason in FailureReason
        ]

    def _latency_blocks(self, models: Sequence[tuple[ModelSample, Mapping[str, str]]]) -> Iterator[str]:
        histograms = [
            line
            for model, labels in models
            if model.statistics.first_response is not None
            for line in _histogram_lines(model.statistics.first_response, labels)
        ]
        if histograms:
            yield _block(_HISTOGRAM, "histogram", _HISTOGRAM_HELP, histograms)
        observed = [
            (model.statistics.summaries, labels, model.cached)
            for model, labels in models
            if model.statistics.summaries is not None
        ]
        if observed:
            now = self._wall_ms()
            for summaries, _, _ in observed:
                summaries.turn(now)
            for name, explanation, attribute in (*_SUMMARIES, *_CACHE_SUMMARIES):
                lines = [
                    line
                    for s, labels, cached in observed
                    if _is_summarized(attribute, cached=cached)
                    for line in _summary_lines(s, attribute, labels)
                ]
                if lines:
                    yield _block(name, "summary", explanation, lines)

    def _server_blocks(self) -> Iterator[str]:
        if self._machine is not None:
            machine = self._machine.sample()
            yield _single(
                "nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", machine.cpu_utilization
            )
            yield _single(
                "nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", machine.memory_total
            )
            yield _single(
                "nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", machine.memory_used
            )
        # There is no such pool, and a dashboard that divides these two expects them to exist.
        yield _single(
            "nv_pinned_memory_pool_total_bytes", "gauge", "Pinned memory pool total memory size, in bytes", 0
        )
        yield _single(
            "nv_pinned_memory_pool_used_bytes", "gauge", "Pinned memory pool used memory size, in bytes", 0
        )
        if self._loop_lag is not None:
            lag = self._loop_lag
            yield _block(
                "tritium_loop_lag_seconds",
                "gauge",
                "How late the event loop runs: at the last look, and at worst within the last minute",
                [
                    _Line("", written({"stat": "last"}), lag.last),
                    _Line("", written({"stat": "max"}), lag.highest),
                ],
            )
        process = self._process()
        yield _single(
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            process.cpu_seconds,
        )
        yield _single(
            "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", process.resident_bytes
        )
        yield _single(
            "process_open_fds", "gauge", "Number of open file descriptors.", process.open_descriptors
        )
        yield _single(
            "process_max_fds", "gauge", "Maximum number of open file descriptors.", process.most_descriptors
        )


def _is_summarized(attribute: str, *, cached: bool) -> bool:
    """Whether a model has this summary: contract, observability.md section 1.3."""
    if attribute == "request":
        return not cached
    return cached or attribute not in {"cache_hit", "cache_miss"}


def _readiness_blocks(readiness: ReadinessSource) -> Iterator[str]:
    yield _single(
        "tritium_ready",
        "gauge",
        "1 while the server is ready, as its health endpoint says",
        int(readiness.is_ready),
    )
    counts = [
        (each, written({"model": each.name, "version": str(each.version)})) for each in readiness.probes()
    ]
    if counts:
        yield _block(
            "tritium_probes_total",
            "counter",
            "Inferences that readiness made",
            [_Line("", labels, each.probes) for each, labels in counts],
        )
        yield _block(
            "tritium_probe_failures_total",
            "counter",
            "Those of them that spoke against the model",
            [_Line("", labels, each.failures) for each, labels in counts],
        )
        yield _block(
            "tritium_probe_seconds",
            "gauge",
            "How long the last of them took",
            [_Line("", labels, each.seconds) for each, labels in counts],
        )


def _load_blocks(source: LoadSource) -> Iterator[str]:
    failures: list[_Line] = []
    stale: list[_Line] = []
    for each in source.loads():
        labels = {"model": each.name, **({"namespace": each.namespace} if each.namespace else {})}
        failures.append(_Line("", written(labels), each.failures))
        for version, failed in each.reload_failed.items():
            stale.append(_Line("", written({**labels, "version": str(version)}), int(failed)))
    if failures:
        yield _block(
            "tritium_model_load_failures_total",
            "counter",
            "Loads and reloads of a model that failed",
            failures,
        )
    if stale:
        yield _block(
            "tritium_model_reload_failed",
            "gauge",
            "1 while a version serves whose last reload failed",
            stale,
        )


def _traffic_blocks(traffic: TrafficSource) -> Iterator[str]:
    shares: list[_Line] = []
    requests: list[_Line] = []
    mirrored: list[_Line] = []
    rollbacks: list[_Line] = []
    for each in traffic.samples():
        for lines, by_version in (
            (shares, each.shares),
            (requests, each.requests),
            (rollbacks, each.rollbacks),
        ):
            for version, value in sorted(by_version.items()):
                lines.append(_Line("", written(_version_labels(each, version)), value))
        for version, counts in sorted(each.mirrored.items()):
            for outcome, count in (
                ("same", counts.same),
                ("different", counts.different),
                ("error", counts.errors),
                ("uncompared", counts.uncompared),
                ("skipped", counts.skipped),
            ):
                labels = {**_version_labels(each, version), "outcome": outcome}
                mirrored.append(_Line("", written(labels), count))
    for name, kind, explanation, lines in (
        ("tritium_traffic_share", "gauge", "Share of the requests that name no version", shares),
        (
            "tritium_traffic_requests_total",
            "counter",
            "Requests that named no version and were given to this one by a traffic plan",
            requests,
        ),
        (
            "tritium_traffic_mirrored_total",
            "counter",
            "Requests to be mirrored to this version, by what came of it",
            mirrored,
        ),
        (
            "tritium_traffic_rollbacks_total",
            "counter",
            "Times that this version lost its share for its errors or its latency",
            rollbacks,
        ),
    ):
        if lines:
            yield _block(name, kind, explanation, lines)


def _version_labels(sample: TrafficSample, version: int) -> dict[str, str]:
    labels = {"model": sample.name, "version": str(version)}
    return {**labels, "namespace": sample.namespace} if sample.namespace else labels


_TENANTS: Final[Sequence[tuple[str, str, str, Callable[[TenantShare], Number]]]] = (
    (
        "tritium_tenant_requests_total",
        "counter",
        "Requests of a tenant that were handed to an instance",
        lambda share: share.requests,
    ),
    (
        "tritium_tenant_rows_total",
        "counter",
        "Rows of those requests, which is what shares are measured in",
        lambda share: share.rows,
    ),
    (
        "tritium_tenant_refused_total",
        "counter",
        "Requests that were refused because their tenant had too many waiting",
        lambda share: share.refused,
    ),
    (
        "tritium_tenant_queued",
        "gauge",
        "Requests of a tenant that wait in the queue",
        lambda share: share.queued,
    ),
)


def _tenant_blocks(models: Sequence[tuple[ModelSample, Mapping[str, str]]]) -> Iterator[str]:
    shares = [
        (written({**labels, "tenant": tenant}), share)
        for model, labels in models
        for tenant, share in sorted(model.tenants.items())
    ]
    if shares:
        for name, kind, explanation, read in _TENANTS:
            yield _block(
                name, kind, explanation, [_Line("", labels, read(share)) for labels, share in shares]
            )


_SLO: Final[Sequence[tuple[str, str, Callable[[SloSample], Number | None]]]] = (
    ("tritium_slo_p99_seconds", "The p99 that the model promises", lambda slo: slo.p99 or None),
    ("tritium_slo_measured_p99_seconds", "The p99 of the last answers", lambda slo: slo.measured),
    ("tritium_slo_service_seconds", "How long a batch takes from its hand-over", lambda slo: slo.service),
    ("tritium_slo_rate", "Requests a second that the model answers while more wait", lambda slo: slo.rate),
    ("tritium_slo_wait_seconds", "How long a request that came now would take", lambda slo: slo.wait),
    ("tritium_slo_limit_seconds", "How long it may be expected to take", lambda slo: slo.limit),
    ("tritium_slo_refusing", "1 while requests are refused for the p99", lambda slo: int(slo.refusing)),
    ("tritium_slo_delay_seconds", "Batching delay that is in force", lambda slo: slo.delay),
    ("tritium_slo_batch_size", "Largest batch that is formed, in rows", lambda slo: slo.size),
)


def _slo_blocks(models: Sequence[tuple[ModelSample, Mapping[str, str]]]) -> Iterator[str]:
    """Yield what is known: a model that has measured nothing has no series for it."""
    samples = [(labels, model.slo) for model, labels in models if model.slo is not None]
    for name, explanation, read in _SLO:
        values = [(written(labels), read(slo)) for labels, slo in samples]
        lines = [
            _Line("", labels, value) for labels, value in values if value is not None and math.isfinite(value)
        ]
        if lines:
            yield _block(name, "gauge", explanation, lines)
    refused = [
        _Line("", written({**labels, "reason": reason}), count)
        for labels, slo in samples
        for reason, count in slo.refused.items()
    ]
    if refused:
        explanation = "Requests that were refused because they could not have been answered in time"
        yield _block("tritium_slo_refused_total", "counter", explanation, refused)


def _residency_blocks(residency: ResidencySource) -> Iterator[str]:
    sample = residency.samples()
    models = [(model, written(_key_labels(model))) for model in sample.models]
    resident = [_Line("", labels, model.resident) for model, labels in models if model.resident]
    if resident:
        explanation = "Memory that a model's workers have resident, in bytes"
        yield _block("tritium_model_resident_bytes", "gauge", explanation, resident)
    yield _single(
        "tritium_resident_bytes",
        "gauge",
        "Memory that the workers of all models have resident, in bytes",
        sum(line.value for line in resident),
    )
    yield _single(
        "tritium_resident_budget_bytes",
        "gauge",
        "Memory that all models together may take before some are evicted, in bytes",
        sample.budget,
    )
    counted = [(model.counters, labels) for model, labels in models if model.counters is not None]
    if not counted:
        return
    for name, kind, explanation, read in _ON_DEMAND:
        yield _block(name, kind, explanation, [_Line("", labels, read(each)) for each, labels in counted])
    wakes = [
        line
        for each, labels in counted
        for line in (_Line("_sum", labels, each.wake_seconds), _Line("_count", labels, each.wakes))
    ]
    explanation = "How long models took to be loaded on demand, from the first request that waited"
    yield _block("tritium_wake_seconds", "summary", explanation, wakes)


def _grpc_blocks(listeners: Sequence[GrpcSource]) -> Iterator[str]:
    """Yield the families of all listeners together: that of the port, and that of the Unix socket."""
    samples = [listener.statistics() for listener in listeners]
    for name, kind, explanation, read in _GRPC:
        yield _single(name, kind, explanation, sum(map(read, samples)))


def _worker_blocks(source: WorkerSource) -> Iterator[str]:
    counts = source.statistics()
    explanation = "Worker processes that wait for a model"
    yield _single("tritium_spare_workers", "gauge", explanation, counts.waiting)
    started = [
        _Line("", written({"spare": "true"}), counts.used),
        _Line("", written({"spare": "false"}), counts.fresh),
    ]
    explanation = "Worker processes that were given a model, by whether they had been started beforehand"
    yield _block("tritium_workers_started_total", "counter", explanation, started)


def cache_blocks(source: CacheSource) -> Iterator[str]:
    """Yield what the response cache counts for the server as a whole.

    That is contract section 1.6, and what is Tritium's own.
    """
    cache, far = source.cache, source.far
    if cache.near is not None:
        near = cache.near
        for name, explanation, read in _NEAR:
            yield _single(name, "gauge", explanation, read(near))
    if far is not None:
        for name, kind, explanation, count in _FAR:
            yield _single(name, kind, explanation, count(far))
    explanation = "Requests answered by the answer to an equal one that was under way"
    yield _single("tritium_cache_shared_total", "counter", explanation, cache.shared)
    explanation = "Requests that ran as if there were no cache because something went wrong in it; each one is a bug in Tritium"
    yield _single("tritium_cache_bugs_total", "counter", explanation, cache.bugs)


_NEAR: Final[Sequence[tuple[str, str, Callable[[LruCache], Number]]]] = (
    ("nv_cache_util", "Cache utilization [0.0 - 1.0]", lambda near: near.utilization),
    ("nv_cache_num_entries", "Number of responses stored in response cache", len),
    ("nv_cache_num_hits", "Number of cache hits in response cache", lambda near: near.counts.hits),
    ("nv_cache_num_misses", "Number of cache misses in response cache", lambda near: near.counts.misses),
    ("nv_cache_num_lookups", "Number of cache lookups in response cache", lambda near: near.counts.lookups),
    (
        "nv_cache_num_evictions",
        "Number of cache evictions in response cache",
        lambda near: near.counts.evictions,
    ),
    (
        "nv_cache_lookup_duration",
        "Total cache lookup duration (hit and miss), in microseconds",
        lambda near: int(near.counts.lookup_seconds * 1e6),
    ),
    (
        "nv_cache_insertion_duration",
        "Total cache insertion duration, in microseconds",
        lambda near: int(near.counts.insertion_seconds * 1e6),
    ),
)

_FAR: Final[Sequence[tuple[str, str, str, Callable[[FarCache], Number]]]] = (
    (
        "tritium_cache_available",
        "gauge",
        "1 while the cache server is asked; while it is down every request is a miss",
        lambda far: int(far.available),
    ),
    ("tritium_cache_hits_total", "counter", "Look-ups that found an answer", lambda far: far.counts.hits),
    ("tritium_cache_misses_total", "counter", "Look-ups that found none", lambda far: far.counts.misses),
    (
        "tritium_cache_errors_total",
        "counter",
        "Look-ups and insertions that failed, or took too long",
        lambda far: far.counts.errors,
    ),
    (
        "tritium_cache_skipped_total",
        "counter",
        "Look-ups and insertions that were not tried",
        lambda far: far.counts.skipped,
    ),
)


def _key_labels(model: ModelResidency) -> dict[str, str]:
    labels = {"model": model.key.name}
    return {**labels, "namespace": model.key.namespace} if model.key.namespace else labels


# -- the text format


def written(labels: Mapping[str, str]) -> str:
    """Return labels as they stand in a line, alphabetical by name; nothing for none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)) + "}"


def number(value: Number) -> str:
    """Return a value as Prometheus reads it."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _model_labels(model: ModelSample) -> dict[str, str]:
    # A tag's key is the configuration's. A key that is no label name would spoil the whole scrape; so would
    # two underscores in front, which Prometheus keeps for itself.
    tags = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", key).lstrip("_"): value for key, value in model.tags.items()}
    labels = {**tags, "model": model.name, "version": str(model.version)}
    return {**labels, "namespace": model.namespace} if model.namespace else labels


def _block(name: str, kind: str, explanation: str, lines: Iterable[_Line]) -> str:
    head = f"# HELP {name} {explanation}\n# TYPE {name} {kind}\n"
    return head + "".join(f"{name}{line.suffix}{line.labels} {number(line.value)}\n" for line in lines)


def _family_block(family: _Family, models: Iterable[tuple[ModelSample, str]]) -> str:
    lines = (_Line("", labels, family.read(model)) for model, labels in models)
    return _block(family.name, family.kind, family.help, lines)


def _single(name: str, kind: str, explanation: str, value: Number) -> str:
    return _block(name, kind, explanation, [_Line("", "", value)])


def _histogram_lines(histogram: Histogram, labels: Mapping[str, str]) -> Iterator[_Line]:
    plain = written(labels)
    below = 0
    # All digits, or two bounds could read alike; without the `.0` that Triton's have not.
    bounds = [repr(float(bound)).removesuffix(".0") for bound in histogram.bounds] + ["+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        yield _Line("_bucket", written({**labels, "le": bound}), below)
    yield _Line("_sum", plain, histogram.total)
    yield _Line("_count", plain, below)


def _summary_lines(summaries: LatencySummaries, attribute: str, labels: Mapping[str, str]) -> Iterator[_Line]:
    plain = written(labels)
    summary = getattr(summaries, attribute)
    for quantile, value in summary.quantiles().items():
        yield _Line("", written({**labels, "quantile": f"{quantile:g}"}), value)
    yield _Line("_sum", plain, summary.total)
    yield _Line("_count", plain, summary.total_count)


# -- the port

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class MetricsApp:
    """The metrics port as an ASGI app. Its listener runs on trio."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a GET of anything but the metrics is an empty success, as in Triton."""
        if scope["type"] != "http":
            raise ValueError(
                f"the metrics port serves HTTP only, got an ASGI scope of type {scope['type']!r}"
            )
        if scope["method"] != "GET":
            await _respond(send, 405, b"", [(b"allow", b"GET")])
        elif scope["path"] in {"/metrics", "/metrics/"}:
            await _respond(send, 200, await self._scrape(), [(b"content-type", b"text/plain; charset=utf-8")])
        else:
            await _respond(send, 200, b"", [])

    async def _scrape(self) -> bytes:
        if faults.points is not None:
            faults.points.passing("metrics.scrape")
        parts = []
        for block in self._exposition.blocks():
            parts.append(block.encode("utf-8", "replace"))  # a model's name may come from any directory
            await trio.lowlevel.checkpoint()
        return b"".join(parts)


async def _respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
