"""What metrics are made from. `engine.server.tree` implements `MetricsSource`; nothing here knows what a tree is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from actors.caching.cache import ResponseCache
from actors.caching.far_cache import FarCache
from actors.health.readiness import ProbeCounts
from actors.residency.residency import ResidencySample
from actors.serving.policy.fairness import TenantShare
from actors.serving.policy.slo import SloSample
from actors.serving.roster import LoadCounts
from actors.serving.statistics import ModelStatistics
from actors.traffic.traffic import TrafficSample
from engine.processes.spares import SpareCounts
from protocols.grpc.listener import GrpcStatistics


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
    instances: Mapping[str, int] = field(default_factory=dict)  # state → how many are in it
    tenants: Mapping[str, TenantShare] = field(default_factory=dict)  # if they share its queue
    slo: SloSample | None = None


class MetricsSource(Protocol):
    """What knows the loaded models."""

    def models(self) -> Iterable[ModelSample]:
        """Return every loaded model version."""


class ReadinessSource(Protocol):
    """What knows whether the server is ready."""

    @property
    def is_ready(self) -> bool:
        """Whether it is now."""

    def probes(self) -> Iterable[ProbeCounts]:
        """Return what is counted of each model version that was ever probed."""


class LoadSource(Protocol):
    """What knows which loads failed."""

    def loads(self) -> Iterable[LoadCounts]:
        """Return what is counted of each model's loads."""


class TrafficSource(Protocol):
    """What knows how requests are shared out over models' versions."""

    def samples(self) -> Iterable[TrafficSample]:
        """Return every model that has, or had, a traffic plan."""


class CustomSource(Protocol):
    """What has the custom metrics of models. `engine.observability.custom_metrics.CustomMetrics` does."""

    def blocks(self) -> Iterable[str]:
        """Return the text of each family that has a series."""


class GrpcSource(Protocol):
    """What accepts gRPC connections. `protocols.grpc.listener.GrpcListener` does."""

    def statistics(self) -> GrpcStatistics:
        """Return what is the case now."""


class CacheSource(Protocol):
    """What keeps answers. `engine.stores.open.OpenCache` does."""

    @property
    def cache(self) -> ResponseCache:
        """The cache, and what it counts."""

    @property
    def far(self) -> FarCache | None:
        """Where it asks, if that is another process."""


class WorkerSource(Protocol):
    """What starts workers. `engine.processes.spares.Spares` does."""

    def statistics(self) -> SpareCounts:
        """Return what is the case now."""


class ResidencySource(Protocol):
    """What knows how much memory models take. `actors.residency.residency.Residents` does."""

    def samples(self) -> ResidencySample:
        """Return what is the case now."""
