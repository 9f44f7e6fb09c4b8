"""The metrics of a server: every feature that tells of itself, in the order of the scrape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from actors.caching.families import cache_blocks
from actors.events.families import event_blocks
from actors.events.feed import EventFeed
from actors.health.families import readiness_blocks
from actors.health.readiness import Readiness
from actors.regions.families import region_blocks
from actors.regions.table import RegionTable
from actors.residency.residents import residency_blocks
from actors.serving.families import load_blocks
from actors.tracing.families import trace_blocks
from actors.tracing.tracing import Tracing
from actors.traffic.families import traffic_blocks
from actors.values.families import once
from engine.observability import pending, system
from engine.observability.gateways import gateway_blocks
from engine.observability.gpus import GpuMetrics, gpu_blocks
from engine.observability.metrics import Exposition, Telling
from engine.observability.models import model_blocks
from engine.observability.system import LoopLag
from engine.processes import spares
from engine.server.identity import Counting, identity_blocks
from engine.server.models import ModelParts
from engine.server.tls import ListenerTls, tls_blocks
from engine.settings.reporting import MetricsSettings
from protocols.grpc.listener import GrpcListener, grpc_blocks
from protocols.transport.listening import Listener, connection_blocks
from protocols.transport.receiving import RoomCounts, room_blocks

if TYPE_CHECKING:
    from engine.audit.trail import Trail


def exposition(
    settings: MetricsSettings,
    models: ModelParts,
    readiness: Readiness,
    lag: LoopLag,
    gpus: GpuMetrics,
    wall_ms: Callable[[], int],
    gate: Counting | None,
    tls: Sequence[ListenerTls],
    receiving: Callable[[], RoomCounts],
    regions: RegionTable,
    trail: Trail | None,
    events: EventFeed,
    tracing: Tracing,
    grpc: Sequence[GrpcListener],
    listeners: Mapping[str, Sequence[Listener[Any]]],
) -> Exposition:
    """Return what a scrape writes. `grpc` and `listeners` (by protocol) may grow until then."""
    cache = models.cache
    features: list[Telling] = [
        lambda: model_blocks(models.subtrees.models(), settings, wall_ms),
        lambda: event_blocks(events),
        lambda: readiness_blocks(ready=readiness.is_ready, probes=readiness.probes()),
        lambda: load_blocks(models.router.roster.loads()),
        lambda: once(pending.FAMILIES, pending.total_load(models.subtrees.states.values())),
        lambda: traffic_blocks(models.traffic.samples()),
        lambda: residency_blocks(models.residents.samples()),
        lambda: grpc_blocks([each.statistics() for each in grpc]),
        lambda: connection_blocks(
            {name: [each.counts() for each in some] for name, some in listeners.items()}
        ),
        lambda: tls_blocks(tls),
        lambda: room_blocks(receiving()),
        lambda: region_blocks(regions),
        lambda: trace_blocks(tracing),
    ]
    if gate is not None:
        features.append(lambda: identity_blocks(gate))
    if trail is not None:
        from engine.audit.trail import audit_blocks

        features.append(lambda: audit_blocks(trail))
    if cache is not None:
        features.append(lambda: cache_blocks(cache.cache, cache.far))
    features += [
        lambda: once(spares.FAMILIES, models.launcher.spares.statistics()),
        models.engine_gauges.blocks,
        lambda: gateway_blocks(
            models.subtrees.generations(), models.engine_gauges.cache_used, wall_ms() / 1000
        ),
        models.custom_metrics.blocks,
    ]
    if settings.cpu:
        machine = system.MachineSampler(interval=settings.interval, clock=trio.current_time)
        features.append(lambda: once(system.MACHINE, machine.sample()))
    return Exposition(
        *features,
        lambda: gpu_blocks(gpus.samples),
        lambda: once(system.POOLS, None),
        lambda: once(system.LAG, lag),
        lambda: once(system.PROCESS, system.sample_process()),
    )
