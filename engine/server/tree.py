"""The composition root: builds the supervision tree, runs it, drains it, ends it. It decides nothing.

root            one_for_one, 3 restarts in 60 s
├─ telemetry    loop-lag monitor, readiness, free memory, GPUs, traces
├─ services     audit log, events, traffic, residency, spare workers, shared memory, followed files
├─ models       dynamic: a subtree for each version, see `engine.server.version_tree`
├─ repository   rest_for_one: lanes and retirements of models, the catalog, the watcher
└─ frontends    http, grpc, metrics, management and platforms' listeners, see `engine.server.frontends`
"""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import trio

from actors.events.feed import EventFeed, FeedLimits
from actors.events.policy import RingLimits
from actors.regions.devices import Devices
from actors.regions.policy import RegionLimits
from actors.regions.registry import RegionRegistry
from actors.seams.bell import Bell
from actors.seams.given import giving
from actors.steering.register import Register
from actors.supervision.errors import IntensityExceeded
from actors.supervision.events import SupervisionEvent
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted, Strategy
from actors.supervision.supervisor import Supervisor
from actors.tracing.tracing import Tracing
from actors.values.events import Log
from actors.values.interfaces import Server, ServerIdentity
from engine.core.version import version
from engine.identity.addresses import AddressGate
from engine.identity.gate import Gate
from engine.observability.events import EventLog, supervision_observer
from engine.observability.gpus import GpuMetrics
from engine.observability.openness import openness
from engine.observability.pending import LoadReports
from engine.observability.running_logs import RunningLogs
from engine.observability.streaming import StreamedLog
from engine.observability.system import LoopLag, measure_loop_lag
from engine.observability.traces.opening import TracesUnusable, open_traces
from engine.processes.inheritance import for_workers
from engine.processes.process import trim_memory
from engine.repository.advice import no_directory, single_model
from engine.repository.copies import Janitor
from engine.server.deploying import DeployingParts, compose_deploying
from engine.server.exposing import exposition
from engine.server.identity import address_limits, opened_gate, permit_of, telling
from engine.server.languages.adapters import ServedAdapters
from engine.server.languages.composing import ServedLanguages
from engine.server.machine import Machine, ThisMachine
from engine.server.models import ModelParts, compose_models
from engine.server.ports import Frontends, compose_frontends
from engine.server.reloading import Followed, Follower
from engine.server.residency import memory_available, memory_total
from engine.server.running import RunningServer, ServerFailed
from engine.server.sockets import Sockets, open_sockets
from engine.server.tls import ServerTls, TlsUnusable, open_tls
from engine.settings.forms import to_memory
from engine.settings.listening import SharedMemorySettings
from engine.settings.settings import Settings
from engine.settings.uris import is_remote
from protocols.transport.receiving import Claim, ReceivingRoom

if TYPE_CHECKING:
    from engine.audit.trail import Trail

ROOT_INTENSITY: Final = Intensity(3, 60.0)

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Of the contract's list (http.md section 3), in its order: what this version serves."""


class TreeView:
    """Implements `actors.values.interfaces.Introspection`."""

    def __init__(self, root: Callable[[], Supervisor]) -> None:
        """`root` is asked once the tree stands."""
        self._root = root

    def tree(self) -> Mapping[str, object]:
        """Return the whole tree as JSON values; `since` is on the clock that `now` is read from."""
        return {"now": trio.current_time(), **self._root().tree().as_dict()}


def check_repositories(settings: Settings) -> None:
    """Raise ServerFailed if a repository is no directory (contract, repository.md section 2).

    With `--exit-on-error=false` the server goes on without it: it is not ready, and the log says why.
    """
    if not settings.exit_on_error:
        return
    for path in settings.model_repositories:
        if not is_remote(path) and not Path(path).is_dir():
            raise ServerFailed(
                f"creating server: Invalid argument - repository path is not a valid directory: '{path}'",
                hint=no_directory(Path(path)),
            )
        if settings.control_mode == "none" and not is_remote(path) and (said := single_model(Path(path))):
            raise ServerFailed(f"creating server: Invalid argument - {said}")


@asynccontextmanager
async def open_server(
    settings: Settings,
    *,
    http: bool = True,
    environ: Mapping[str, str] = os.environ,
    machine: Machine | None = None,
    reload: Bell | None = None,
    logs: RunningLogs | None = None,
) -> AsyncIterator[RunningServer]:
    """Run the tree around the block: models load meanwhile.

    Leaving the block stops the tree, children in reverse order. `http` is false if another server, such as
    hypercorn, accepts HTTP connections; gRPC and metrics have their ports then too. `reload` is rung by the
    caller when the operator wants files read again (`engine.server.reloading`). `logs` is what
    changes logging while the server runs. Raises AddressInUse if a port
    is taken, and ServerFailed if the TLS files make no listener or the tree gives up.
    """
    check_repositories(settings)
    machine = machine or ThisMachine()
    try:
        tls = open_tls(settings, http=http, wall_clock=machine.wall_clock, log=EventLog())
    except TlsUnusable as error:
        raise ServerFailed(str(error)) from error
    with open_sockets(settings, http=http) as sockets:
        async with running_tree(
            settings, sockets, tls=tls, reload=reload, environ=environ, machine=machine, logs=logs
        ) as running:
            if running.trail is not None:
                opened = openness(running.settled(), http=http)
                running.trail.note("server_started", {"version": version(), "pid": os.getpid(), **opened})
                running.trail.ends_with("server_stopped", {"version": version(), "pid": os.getpid()})
            yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composition:
    """A server whose parts are connected. Nothing runs yet."""

    running: RunningServer
    frontends: Frontends
    janitor: Janitor
    regions: RegionRegistry


def _compose(
    settings: Settings,
    sockets: Sockets,
    tls: ServerTls,
    followed: Sequence[Followed[Any]],
    reload: Bell,
    environ: Mapping[str, str],
    machine: Machine,
    logs: RunningLogs,
) -> _Composition:
    """Connect the parts of a server. What one part asks of a later one, it asks once the tree runs.

    Raises ServerFailed if the auth file makes no sense, or the audit log can't be one.
    """
    events, lag = _event_feed(settings, machine), LoopLag()
    log = StreamedLog(EventLog(), events, wall_ms=machine.wall_clock, verbose=lambda: logs.settings.verbose)
    logs.tell(log)
    trail = _opened_trail(settings, machine, log)
    of_models = None if trail is None else trail.at("model")
    addresses = address_limits(settings.connections)
    rules = opened_gate(
        settings.auth_file,
        machine,
        lambda: models.router.roster,
        log,
        namespacing=settings.namespacing,
        addresses=addresses,
    )
    gate: Gate | AddressGate | None = AddressGate(addresses, telling(log)) if addresses.limited else None
    permit = None
    if rules is not None:
        gate, permit = rules.gate, permit_of(rules.gate, of_models)
    gpus = GpuMetrics(
        settings.metrics,
        shown=settings.allow_metrics,
        opening=partial(machine.gpus, environ),
        log=log,
    )
    tracing = _opened_traces(settings, machine, environ, log)
    table = machine.gpu_table(environ)
    models = compose_models(
        settings,
        machine,
        environ,
        log,
        on_the_way=lambda name, namespace: deploying.catalog.on_the_way(name, namespace),
        started=lambda: deploying.catalog.finished.is_set(),
        permit=permit,
        logs=logs,
        gpus=table,
        gpu_uuid=gpus.uuid_of,
    )
    deploying = compose_deploying(
        settings, machine, environ, log, models, gpus=table, permit=permit, auditor=of_models
    )
    room = ReceivingRoom(to_memory(settings.connections.receive_memory, memory_total(), "receive-memory"))
    regions = _regions(settings.shared_memory, room, machine.devices(for_workers(settings, environ), table))
    server = Server(
        identity=ServerIdentity(name=settings.id, version=version(), extensions=EXTENSIONS),
        models=models.router,
        repository=deploying.view,
        health=deploying.readiness,
        introspection=TreeView(lambda: root),
        events=events,
        traffic=models.traffic,
        shared_memory=regions,
        steering=_register(settings, machine),
        logs=logs,
        traces=tracing,
        loads=LoadReports(models.router.roster, models.engine_gauges.cache_used),
    )
    frontends = compose_frontends(
        settings,
        sockets,
        server,
        log,
        registrations=deploying.registry,
        languages=ServedLanguages(models.router.roster),
        adapters=ServedAdapters(models.router.roster, log),
        logs=logs,
        tls=tls,
        gate=gate,
        uniform=machine.random().random,
        room=room,
        tracer=tracing,
        exposing=partial(
            exposition,
            settings.metrics,
            models,
            deploying.readiness,
            lag,
            gpus,
            machine.wall_clock,
            gate,
            tls.every,
            room.counts,
            regions.table,
            trail,
            events,
            tracing,
        ),
        trail=trail,
    )
    # The audit log stops last, and what the others do until then is in it.
    services = [] if trail is None else [trail.spec()]
    services.append(events.spec())
    services += [*models.services(machine, deploying.catalog, log), deploying.janitor.spec(), regions.spec()]
    files = (*tls.every, *followed, *([] if rules is None else [rules]))
    noting = None if trail is None else trail.note_reload
    services += [Follower(each, reload, log, noting).spec() for each in files]
    if models.cache is not None:
        services.append(models.cache.spec())
    root = _tree(lag, gpus, tracing, Supervisor(services), models, deploying, frontends)
    running = RunningServer(
        settings=settings,
        server=server,
        app=frontends.app,
        subtrees=models.subtrees,
        router=models.router,
        catalog=deploying.catalog,
        readiness=deploying.readiness,
        residents=models.residents,
        gpus=gpus,
        root=root,
        stopped=trio.Event(),
        http=frontends.http,
        grpc=frontends.grpc,
        grpc_unix=frontends.grpc_unix,
        metrics=frontends.metrics,
        management_http=frontends.management_http,
        management_grpc=frontends.management_grpc,
        openai=frontends.openai,
        sagemaker=frontends.sagemaker,
        vertex=frontends.vertex,
        default_model=frontends.default_model,
        log=log,
        events=events,
        trail=trail,
    )
    return _Composition(running=running, frontends=frontends, janitor=deploying.janitor, regions=regions)


def _regions(settings: SharedMemorySettings, room: ReceivingRoom, devices: Devices | None) -> RegionRegistry:
    """Return the registry of clients' shared memory; what it reads into memory has its place in `room`."""
    nbytes = to_memory(settings.nbytes, memory_total(), "client-shm-bytes")
    # Connections and workers need open files as well.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
    limits = RegionLimits(regions=min(settings.regions, most), nbytes=nbytes, inputs=room.counts().limit)
    return RegionRegistry(
        allowed=settings.allowed, limits=limits, claims=lambda: Claim(room), devices=devices
    )


def _event_feed(settings: Settings, machine: Machine) -> EventFeed:
    kept = settings.events
    limits = FeedLimits(ring=RingLimits(entries=kept.kept, bytes=kept.bytes), followers=kept.followers)
    return EventFeed(limits, boot=f"{machine.random().getrandbits(32):08x}")


def _register(settings: Settings, machine: Machine) -> Register:
    boot = f"{machine.random().getrandbits(64):016x}"
    return Register(replica=settings.replica_name, boot=boot, available=memory_available)


def _opened_trail(settings: Settings, machine: Machine, log: Log) -> Trail | None:
    if not settings.audit.file:
        return None
    from engine.audit.file import AuditUnusable
    from engine.audit.trail import open_trail

    boot = machine.random().getrandbits(32)
    try:
        return open_trail(settings.audit, wall_clock=machine.wall_clock, boot=boot, log=log)
    except AuditUnusable as error:
        raise ServerFailed(f"--audit-log: {error}") from error


def _opened_traces(settings: Settings, machine: Machine, environ: Mapping[str, str], log: Log) -> Tracing:
    clock, random = machine.monotonic, machine.random()
    try:
        return open_traces(settings.trace, log, monotonic=clock, random=random, environ=environ)
    except TracesUnusable as error:
        raise ServerFailed(str(error)) from error


def _tree(
    lag: LoopLag,
    gpus: GpuMetrics,
    tracing: Tracing,
    services: Supervisor,
    models: ModelParts,
    deploying: DeployingParts,
    frontends: Frontends,
) -> Supervisor:
    telemetry = Supervisor(
        [
            tracing.spec(),
            ChildSpec("loop-lag", lambda ctx: measure_loop_lag(ctx, lag)),
            ChildSpec("readiness", deploying.readiness.run),
            ChildSpec("memory", trim_memory),
            *gpus.specs(),
        ]
    )
    return Supervisor(
        [
            telemetry.spec("telemetry"),
            services.spec("services"),
            models.supervisor.spec("models"),
            # What serves needs none of it to go on.
            Supervisor(deploying.actors(), strategy=Strategy.REST_FOR_ONE).spec(
                "repository", intensity=ROOT_INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP
            ),
            frontends.spec(),
        ],
        intensity=ROOT_INTENSITY,
    )


@asynccontextmanager
async def running_tree(
    settings: Settings,
    sockets: Sockets,
    *,
    tls: ServerTls | None = None,
    followed: Sequence[Followed[Any]] = (),
    reload: Bell | None = None,
    environ: Mapping[str, str],
    machine: Machine | None = None,
    logs: RunningLogs | None = None,
) -> AsyncIterator[RunningServer]:
    """Do as `open_server` does, on the caller's listening `sockets`, and on `machine`, not this one.

    `followed` is what is read again while the server runs, and when `reload` rings.
    """
    machine = machine or ThisMachine()
    with giving(machine.seams()):
        logs = logs or RunningLogs(settings.log)
        composition = _compose(
            settings, sockets, tls or ServerTls(), followed, reload or Bell(), environ, machine, logs
        )
        async with _running(composition, machine.random(), logs) as running:
            yield running


@asynccontextmanager
async def _running(
    composition: _Composition, random: Random, logs: RunningLogs
) -> AsyncIterator[RunningServer]:
    running, root = composition.running, composition.running.root
    logs_supervision = supervision_observer(running.log, lambda: logs.settings.verbose)

    def observe(event: SupervisionEvent) -> None:
        logs_supervision(event)
        running.subtrees.observe(event)

    async def serve_tree(task_status: trio.TaskStatus[Supervisor]) -> None:
        try:
            await root.serve(observer=observe, random=random, task_status=task_status)
        except IntensityExceeded as error:
            raise ServerFailed(f"the supervision tree gave up: {error}") from error
        finally:
            running.stopped.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_tree)
        try:
            yield running
        finally:
            with trio.CancelScope(shield=True):
                running.residents.close()
                if root.is_running:
                    root.stop()
                    await running.stopped.wait()
            composition.janitor.finish()
            composition.regions.close()
            if running.trail is not None:
                running.trail.close()
            for frontend in composition.frontends.every:
                frontend.close()
