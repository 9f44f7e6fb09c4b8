"""What a scrape tells of loaded model versions: the families of each feature, in Triton's order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from actors.caching import families as caching
from actors.generation import families as generation
from actors.generation.families import GenerationSample
from actors.padding import observing as padding
from actors.padding.policy import PaddingCounts
from actors.serving import families as serving
from actors.serving.durations import Durations
from actors.serving.policy import fairness, slo
from actors.serving.policy.fairness import TenantShare
from actors.serving.policy.slo import SloSample
from actors.serving.statistics import (
    DEFAULT_HISTOGRAM_BOUNDS,
    Histogram,
    LatencySummaries,
    ModelStatistics,
)
from actors.values.families import Block, Families, Family, Labels, SplitFamily, blocks, by, model_labels
from engine.observability.metrics import in_pieces
from engine.settings.reporting import MetricsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSample:
    """One loaded model version at the moment of a scrape. Durations are seconds.

    `statistics` is the model's own object, read during the scrape and never kept.
    """

    name: str
    version: int
    statistics: ModelStatistics
    namespace: str = ""  # only if models are told apart by their repository
    tags: Mapping[str, str] = field(default_factory=dict)  # the configuration's metric_tags
    cached: bool = False  # its answers are kept
    queue_depth: int = 0
    queue_age: float = 0.0  # of the request that has waited longest; 0 for an empty queue
    load_duration: float = 0.0
    load_phases: Mapping[str, float] = field(default_factory=dict)  # seconds in each
    instances: Mapping[str, int] = field(default_factory=dict)  # state → how many are in it
    tenants: Mapping[str, TenantShare] = field(default_factory=dict)  # if they share its queue
    slo: SloSample | None = None
    padding: PaddingCounts | None = None  # if it has padded inputs
    # Buffers of its workers for outputs that stay on their GPU, if it can leave any there.
    gpu_buffers: Mapping[str, int] | None = None
    generation: GenerationSample | None = None  # of a language model
    gpu_uuid: str = ""  # of the one GPU that all its instances use


LOAD: Final[Families[ModelSample]] = (
    Family(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        lambda model: model.load_duration,
    ),
)

LOAD_PHASES: Final[SplitFamily[ModelSample]] = SplitFamily(
    "tritium_model_load_phase_seconds",
    "gauge",
    "How long the load of a version took, by phase; the phase of a load that goes on counts until now",
    lambda model: by("phase", sorted(model.load_phases.items())),
)

QUEUE: Final[Families[ModelSample]] = (
    Family("tritium_queue_depth", "gauge", "Requests waiting in the queue", lambda model: model.queue_depth),
    Family(
        "tritium_queue_age_seconds",
        "gauge",
        "How long the oldest request has waited in the queue",
        lambda model: model.queue_age,
    ),
)

INSTANCES: Final[Families[ModelSample]] = (
    SplitFamily(
        "tritium_instances",
        "gauge",
        "Instances, by state",
        lambda model: by("state", sorted(model.instances.items())),
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
        durations=Durations(settings.duration_buckets) if settings.duration_buckets else None,
    )


def model_blocks(
    models: Iterable[ModelSample], settings: MetricsSettings, wall_ms: Callable[[], int]
) -> Iterator[Block | str]:
    """Yield the families of loaded models, and the text of large ones in pieces.

    `wall_ms` tells the time for the summaries' sliding window, in milliseconds since the epoch.
    """
    samples = [(_labels(model), model) for model in models]
    counted = [(labels, model.statistics) for labels, model in samples]
    counts = blocks(serving.COUNTS, counted)
    if settings.counter_latencies:
        yield from counts
        yield from blocks(serving.DURATIONS, counted)
        cached = [(labels, model.statistics) for labels, model in samples if model.cached]
        yield from blocks(caching.PER_MODEL, cached)
    else:
        # Without counter_latencies Triton leaves the series in place, at zero.
        yield from (replace(each, series=[one._replace(value=0) for one in each.series]) for each in counts)
    yield serving.PENDING.block(counted)
    yield from blocks(LOAD, samples)
    yield from in_pieces(LOAD_PHASES, samples)
    yield from _latency_blocks(samples, wall_ms)
    yield from in_pieces(serving.REQUEST_DURATION, counted)
    yield from blocks(serving.CONTAINMENT, counted)
    yield from blocks(QUEUE, samples)
    yield from blocks(serving.DEATHS, counted)
    tenants = [
        (labels.also({"tenant": tenant}), share)
        for labels, model in samples
        for tenant, share in sorted(model.tenants.items())
    ]
    yield from blocks(fairness.FAMILIES, tenants)
    yield from blocks(
        slo.FAMILIES, [(labels, model.slo) for labels, model in samples if model.slo is not None]
    )
    yield from blocks(
        padding.FAMILIES, [(labels, model.padding) for labels, model in samples if model.padding is not None]
    )
    yield from blocks(
        serving.GPU_TENSORS,
        [(labels, model.statistics) for labels, model in samples if model.gpu_buffers is not None],
    )
    yield from blocks(
        serving.BUFFERS,
        [(labels, model.gpu_buffers) for labels, model in samples if model.gpu_buffers is not None],
    )
    yield from blocks(
        generation.FAMILIES,
        [(labels, model.generation) for labels, model in samples if model.generation is not None],
    )
    yield from blocks(
        generation.OF_VLLM_BACKEND,
        [
            (labels, model.generation)
            for labels, model in samples
            if model.generation is not None and model.generation.vllm
        ],
    )
    yield from blocks(INSTANCES, samples)


def _latency_blocks(
    samples: Sequence[tuple[Labels, ModelSample]], wall_ms: Callable[[], int]
) -> Iterator[Block]:
    histograms = [
        (labels, model.statistics.first_response)
        for labels, model in samples
        if model.statistics.first_response is not None
    ]
    yield serving.FIRST_RESPONSE.block(histograms)
    observed = [
        (labels, model.statistics.summaries, model.cached)
        for labels, model in samples
        if model.statistics.summaries is not None
    ]
    if not observed:
        return
    now = wall_ms()
    for _, summaries, _ in observed:
        summaries.turn(now)
    cached = [(labels, summaries) for labels, summaries, kept in observed if kept]
    uncached = [(labels, summaries) for labels, summaries, kept in observed if not kept]
    yield serving.REQUEST_SUMMARY.block(uncached)
    yield from blocks(serving.SUMMARIES, [(labels, summaries) for labels, summaries, _ in observed])
    yield from blocks(caching.SUMMARIES, cached)


def _labels(model: ModelSample) -> Labels:
    # A tag's key is the configuration's. A key that is no label name would spoil the whole scrape; so would
    # two underscores in front, which Prometheus keeps for itself.
    tags = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", key).lstrip("_"): value for key, value in model.tags.items()}
    gpu = {"gpu_uuid": model.gpu_uuid} if model.gpu_uuid else {}
    return Labels({**tags, **gpu, **model_labels(model.name, model.namespace, model.version)})
