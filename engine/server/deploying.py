"""What decides which models run: repositories and their catalog; and what tells whether they are ready."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from actors.calls.admission import Permit
from actors.catalog.catalog import Catalog, ControlMode
from actors.catalog.loading import AsGiven, Placing, Surroundings
from actors.catalog.watcher import Watcher
from actors.health.readiness import Readiness
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.auditing import Auditor
from actors.values.errors import TritiumError
from actors.values.events import Log
from actors.values.hardware.gpus import Gpu
from actors.values.specs import ModelKey, ModelSpec
from engine.environments.builder import EnvironmentBuilder
from engine.environments.cache import EnvironmentCache
from engine.processes.gpus.placing import GpuPlacing
from engine.processes.inheritance import for_workers
from engine.processes.placement import resolve as resolve_policies
from engine.provenance.restrictions import Restrictions
from engine.repository.agents import AgentRunner
from engine.repository.copies import Janitor
from engine.repository.fingerprint import Digests
from engine.repository.observation import Observer
from engine.repository.opening import open_local, open_signed
from engine.repository.reader import ReadOptions, RepositoryReader
from engine.repository.registry import Registry
from engine.repository.source import Source
from engine.repository.view import RepositoryView
from engine.server.composing import Composer
from engine.server.machine import Machine
from engine.server.model_control import ModelControl, is_loading
from engine.server.models import ModelParts
from engine.server.reaching import Confinements
from engine.server.running import ServerFailed
from engine.settings.forms import SettingsError
from engine.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployingParts:
    """The parts that decide which versions run, and the supervisors of what they start."""

    catalog: Catalog
    readiness: Readiness
    view: RepositoryView
    registry: Registry
    janitor: Janitor
    lanes: Supervisor
    retirements: Supervisor
    watcher: Watcher | None  # where the repositories are polled

    def actors(self) -> list[ChildSpec]:
        """Return the actors, each before those that need it."""
        actors = [self.lanes.spec("lanes"), self.retirements.spec("retiring"), self.catalog.spec()]
        return actors if self.watcher is None else [*actors, self.watcher.spec()]


def compose_deploying(
    settings: Settings,
    machine: Machine,
    environ: Mapping[str, str],
    log: Log,
    models: ModelParts,
    *,
    gpus: Sequence[Gpu],
    permit: Permit | None = None,
    auditor: Auditor | None = None,
) -> DeployingParts:
    """Connect what decides.

    `gpus` are those that instances may be placed on. `permit` says what models may ask for, and `auditor` is
    told of it.

    Raises ServerFailed for a repository or a host policy that is not there.
    """
    janitor = Janitor(log)
    digests = Digests(wall_ns=lambda: machine.wall_clock() * 1_000_000)
    sources = _open_sources(machine, settings, environ, digests)
    reader = RepositoryReader(
        sources,
        _read_options(settings, environ, models, gpus=gpus),
        janitor,
        digests,
        EnvironmentBuilder(
            EnvironmentCache(Path(settings.environment_cache), environ=environ), environ=environ, log=log
        ),
        AgentRunner(settings.agents, environ=for_workers(settings, environ), log=log, links=settings.links),
    )
    mode = ControlMode(settings.control_mode)
    lanes, retirements = Supervisor(), Supervisor()

    def look_again(key: ModelKey, changed: bool) -> None:
        if watcher is not None:
            watcher.look_again(key, changed=changed)

    catalog = Catalog(
        _surroundings(settings, models, retirements, log, _placing(settings, machine, environ, models, gpus)),
        reader,
        lanes,
        mode=mode,
        startup=settings.load_models if mode is ControlMode.EXPLICIT else ("*",),
        namespacing=settings.namespacing,
        awaited_by=lambda name: control.awaited_by(name),
        could_not_look=look_again,
    )
    watcher = None
    if mode is ControlMode.POLL:
        watcher = Watcher(
            Observer(sources, clock=machine.monotonic),
            catalog.news,
            interval=settings.poll_interval,
            log=log,
            wall_clock=lambda: machine.wall_clock() / 1000,
            namespacing=settings.namespacing,
        )
    router = models.router
    readiness = Readiness(
        router,
        strict=settings.strict_readiness,
        finished=catalog.finished,
        log=log,
        wall_clock=machine.wall_clock,
        missing=lambda: catalog.missing,
        hang_bound=settings.unready_after_hang,
        held=settings.await_fleet,
    )
    router.roster.on_change(lambda _: readiness.changed())
    view = RepositoryView(router.roster, catalog, reader)
    registry = Registry(
        reader,
        lambda path: open_local(settings, path, digests),
        catalog.left,
        explicit=mode is ControlMode.EXPLICIT,
    )
    confinements = Confinements(reader, router.roster)
    control = ModelControl(
        view,
        readiness,
        started=catalog.finished.is_set,
        loading=lambda caller: is_loading(router, caller.spec),
        needs=catalog.parts.needs,
        found=confinements.found,
        serving=confinements.serving,
        permit=permit,
        auditor=auditor,
    )
    control.answer(models.subjects)
    return DeployingParts(
        catalog=catalog,
        readiness=readiness,
        view=view,
        registry=registry,
        janitor=janitor,
        lanes=lanes,
        retirements=retirements,
        watcher=watcher,
    )


def _placing(
    settings: Settings,
    machine: Machine,
    environ: Mapping[str, str],
    models: ModelParts,
    gpus: Sequence[Gpu],
) -> Placing:
    if not gpus:
        return AsGiven()
    return GpuPlacing(
        gpus,
        read=partial(machine.gpu_room, environ),
        bytes_of_files=models.memory.of_files,
        limits=settings.model_load_gpu_limits,
    )


def _surroundings(
    settings: Settings, models: ModelParts, retirements: Supervisor, log: Log, placing: Placing
) -> Surroundings:
    def swapped(key: ModelKey, specs: Sequence[ModelSpec]) -> None:
        if specs:
            models.traffic.adopt(key, specs[-1].traffic)

    return Surroundings(
        roster=models.router.roster,
        tree=models.subtrees,
        retirements=retirements,
        dormant=models.residents.dormant,
        swapped=swapped,
        left=models.traffic.forget,
        loads=trio.CapacityLimiter(settings.load_thread_count),
        extra_attempts=settings.load_retry_count,
        log=log,
        placing=placing,
        compose=Composer(models.router),
    )


def _read_options(
    settings: Settings, environ: Mapping[str, str], models: ModelParts, *, gpus: Sequence[Gpu]
) -> ReadOptions:
    try:
        policies = resolve_policies(settings.host_policies, os.sched_getaffinity(0))
    except SettingsError as error:
        raise ServerFailed(f"{error.message}; {error.hint}") from error
    try:
        signed = open_signed(settings)
    except TritiumError as error:
        raise ServerFailed(f"creating server: {error.code.rendered} - {error.message}") from error
    return ReadOptions(
        backends=models.backends,
        gpus=gpus,
        environ=for_workers(settings, environ),
        backend_settings=settings.backend_settings,
        config_name=settings.model_config_name,
        auto_complete=not settings.disable_auto_complete_config,
        namespacing=settings.namespacing,
        host_policies=policies,
        execution_timeout=settings.default_execution_timeout,
        floor=settings.sandbox,
        uploads=settings.uploads,
        links=settings.links,
        restrictions=Restrictions(
            no_code=settings.provenance.no_code, signed=settings.provenance.require_signed
        ),
        signed=signed,
    )


def _open_sources(
    machine: Machine, settings: Settings, environ: Mapping[str, str], digests: Digests
) -> Sequence[Source]:
    try:
        return machine.sources(settings, environ, digests)
    except TritiumError as error:
        raise ServerFailed(f"creating server: {error.code.rendered} - {error.message}") from error
