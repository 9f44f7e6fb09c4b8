"""What serves models: their subtrees, and the services that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.calls.admission import Permit
from actors.calls.subjects import Subjects
from actors.catalog.catalog import Catalog, ControlMode
from actors.residency import residency
from actors.residency.residency import Memory as MeasuredMemory
from actors.residency.residents import Residents
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.records import Recorder
from actors.serving.routing.router import OnTheWay, Router
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.supervision.supervisor import Supervisor
from actors.traffic.traffic import TrafficControl
from actors.values.events import Log
from actors.values.hardware.gpus import Gpu
from engine.observability.custom_metrics import CustomMetrics
from engine.observability.engines import EngineGauges
from engine.observability.requests import request_hook
from engine.observability.running_logs import RunningLogs
from engine.observability.spans.of_models import answer_spans
from engine.processes.backends import BackendTraits
from engine.processes.inheritance import for_workers
from engine.server.machine import Machine, SparingLauncher
from engine.server.residency import memory_total
from engine.server.running import ServerFailed
from engine.server.version_tree import ModelSubtrees
from engine.settings.extras import how_to_install
from engine.settings.forms import to_memory
from engine.settings.reporting import LogSettings
from engine.settings.settings import Settings
from engine.stores.open import CacheUnusable, OpenCache, open_cache

INTENSITY: Final = Intensity(3, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """The parts that serve models. `supervisor` has a child for each version that is loaded."""

    supervisor: Supervisor
    subtrees: ModelSubtrees
    router: Router
    backends: Mapping[str, BackendTraits]
    launcher: SparingLauncher
    cache: OpenCache | None
    subjects: Subjects
    custom_metrics: CustomMetrics
    engine_gauges: EngineGauges
    traffic: TrafficControl
    residents: Residents
    memory: MeasuredMemory

    def services(self, machine: Machine, catalog: Catalog, log: Log) -> list[ChildSpec]:
        """Return the actors that work for all models."""
        watch_memory = partial(
            residency.run,
            residents=self.residents,
            catalog=catalog,
            memory=self.memory,
            log=log,
            wall_clock=machine.wall_clock,
        )
        return [
            ChildSpec("traffic-guard", self.traffic.guard),
            ChildSpec("mirror", self.traffic.compare),
            ChildSpec("residency", watch_memory, intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP),
            ChildSpec(
                "spares",
                self.launcher.spares.run,
                shutdown=10.0,
                intensity=INTENSITY,
                on_exhausted=OnExhausted.RETRY_AT_CAP,
            ),
        ]


def compose_models(
    settings: Settings,
    machine: Machine,
    environ: Mapping[str, str],
    log: Log,
    *,
    on_the_way: Callable[[str, str], OnTheWay | None],
    started: Callable[[], bool],
    permit: Permit | None = None,
    logs: RunningLogs,
    gpus: Sequence[Gpu],
    gpu_uuid: Callable[[int], str],
) -> ModelParts:
    """Connect what serves models.

    `on_the_way` tells the load of a model, by name and namespace; `started` whether all that is loaded at
    start has been. Both are asked once the server runs. `gpu_uuid` tells the UUID of a GPU by its id.
    `permit` says what models may call. Raises ServerFailed if the cache can't be set up.
    """
    router = Router(namespacing=settings.namespacing, on_the_way=on_the_way)
    backends = machine.backends(settings.backend_directory)
    cache = _open_cache(settings, log)
    subjects = Subjects()
    custom_metrics = CustomMetrics(enabled=settings.allow_metrics)
    custom_metrics.answer(subjects)
    engine_gauges = EngineGauges()
    engine_gauges.answer(subjects)
    answer_spans(subjects)
    inherited = for_workers(settings, environ)
    launcher = machine.launcher(
        backends,
        environ=inherited,
        spare_workers=settings.spare_workers,
        log=log,
    )
    # What was loaded comes back with it: the catalog, which lives on, believes it to be there.
    supervisor = Supervisor(lambda: subtrees.standing(), intensity=INTENSITY)
    subtrees = ModelSubtrees(
        supervisor,
        router,
        launcher,
        log=log,
        metrics=settings.metrics,
        stop_within=10.0,
        cache=None if cache is None else cache.cache,
        limiter=RateLimiter(settings.rate_limit_resources) if settings.rate_limit else None,
        start_after=settings.start_after,
        subjects=subjects,
        permit=permit,
        wall_clock=machine.wall_clock,
        recorder=recorder(logs, log),
        gpu_uuid=gpu_uuid,
        cores=machine.cores(),
        serving=started,
        text_workers=machine.text_workers(inherited, log),
    )
    traffic = TrafficControl(
        router.roster,
        log=log,
        random=machine.random().random,
        wall_clock=machine.wall_clock,
        changeable=ControlMode(settings.control_mode) is ControlMode.EXPLICIT,
    )
    budget = to_memory(settings.resident_memory_limit, memory_total(), "resident-memory-limit")
    return ModelParts(
        supervisor=supervisor,
        subtrees=subtrees,
        router=router,
        backends=backends,
        launcher=launcher,
        cache=cache,
        subjects=subjects,
        custom_metrics=custom_metrics,
        engine_gauges=engine_gauges,
        traffic=traffic,
        residents=Residents(router, budget=budget, on_gpus=_gpu_budgets(settings, gpus)),
        memory=machine.memory(environ, gpus),
    )


def _gpu_budgets(settings: Settings, gpus: Sequence[Gpu]) -> dict[int, int]:
    """Return the bytes that all models may take on each GPU. Raises ServerFailed if that can't be told."""
    word = settings.resident_gpu_memory_limit
    if not word:
        return {}
    unknown = next((gpu.name for gpu in gpus if not gpu.total), None)
    if unknown is not None:
        raise ServerFailed(
            f"--resident-gpu-memory-limit is {word}, and what models take on GPU '{unknown}' is not known:"
            f" {how_to_install('gpu')}"
        )
    return {
        number: to_memory(word, gpu.total, "resident-gpu-memory-limit") for number, gpu in enumerate(gpus)
    }


def recorder(logs: RunningLogs, log: Log) -> Recorder | None:
    """Return what keeps records of requests, if they are logged; it tells stages while the log is verbose."""
    if not logs.settings.requests:
        return None
    kept = Recorder(log, on_internal=request_hook(), stages=False)

    def follow(settings: LogSettings) -> None:
        kept.stages = settings.verbose > 0

    logs.follow(follow)
    return kept


def _open_cache(settings: Settings, log: Log) -> OpenCache | None:
    try:
        return None if settings.cache is None else open_cache(settings.cache, log)
    except CacheUnusable as error:
        raise ServerFailed(str(error)) from error
