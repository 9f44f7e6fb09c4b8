"""Metric families of models' memory, and of models that are loaded on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.residency.residents import ModelResidency, OnDemandCounts, ResidencySample
from actors.values.families import (
    Block,
    Families,
    Family,
    Labels,
    Slice,
    SplitFamily,
    blocks,
    model_labels,
    once,
)

MODELS: Final[Families[ModelResidency]] = (
    Family(
        "tritium_model_resident_bytes",
        "gauge",
        "Memory that a model's workers have resident, in bytes",
        lambda model: model.resident or None,
    ),
)

WHOLE: Final[Families[ResidencySample]] = (
    Family(
        "tritium_resident_bytes",
        "gauge",
        "Memory that the workers of all models have resident, in bytes",
        lambda sample: sum(model.resident for model in sample.models),
    ),
    Family(
        "tritium_resident_budget_bytes",
        "gauge",
        "Memory that all models together may take before some are evicted, in bytes",
        lambda sample: sample.budget,
    ),
)

ON_DEMAND: Final[Families[OnDemandCounts]] = (
    Family(
        "tritium_model_loads_on_demand_total",
        "counter",
        "Loads that a request brought about",
        lambda counters: counters.loads,
    ),
    Family(
        "tritium_model_evictions_total",
        "counter",
        "How often a model was unloaded to make room for others",
        lambda counters: counters.evictions,
    ),
    Family(
        "tritium_wake_waiting_requests",
        "gauge",
        "Requests that wait for their model to be loaded",
        lambda counters: counters.waiting,
    ),
    SplitFamily(
        "tritium_wake_seconds",
        "summary",
        "How long models took to be loaded on demand, from the first request that waited",
        lambda counters: (
            Slice(counters.wake_seconds, suffix="_sum"),
            Slice(counters.wakes, suffix="_count"),
        ),
    ),
)


def residency_blocks(sample: ResidencySample) -> Iterator[Block]:
    """Yield how much memory models take, and what happened to those that are loaded on demand."""
    models = [(Labels(model_labels(each.key.name, each.key.namespace)), each) for each in sample.models]
    yield from blocks(MODELS, models)
    yield from once(WHOLE, sample)
    yield from blocks(ON_DEMAND, [(labels, m.counters) for labels, m in models if m.counters is not None])
