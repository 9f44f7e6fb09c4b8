"""The composition root: builds the supervision tree, runs it, drains it, ends it. It decides nothing.

root            one_for_one, 3 restarts in 60 s
├─ telemetry    loop-lag monitor, readiness, free memory
├─ services     traffic between versions, residency, spare workers
├─ models       dynamic: a subtree for each version, see `engine.server.version_tree`
├─ repository   rest_for_one: lanes and retirements of models, the catalog, the watcher
└─ frontends    http, grpc and metrics listeners, see `engine.server.frontends`
"""

from __future__ import annotations

import importlib.metadata
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from actors.calls.subjects import Subjects
from actors.catalog.catalog import Catalog, ControlMode
from actors.catalog.loading import Surroundings
from actors.catalog.watcher import Watcher
from actors.health.readiness import Readiness
from actors.residency import residency
from actors.residency.residents import Residents
from actors.seams.given import giving
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.records import Recorder
from actors.serving.routing.router import Router
from actors.supervision.errors import IntensityExceeded
from actors.supervision.events import Event as SupervisionEvent
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted, Strategy
from actors.supervision.supervisor import Supervisor
from actors.traffic.traffic import TrafficControl
from actors.values.errors import TritiumError
from actors.values.events import Event
from actors.values.interfaces import Server, ServerIdentity
from actors.values.specs import ModelKey, ModelSpec
from engine.environments.builder import EnvironmentBuilder
from engine.environments.cache import EnvironmentCache
from engine.observability.custom_metrics import CustomMetrics
from engine.observability.loop_lag import LoopLag, measure_loop_lag
from engine.observability.metrics import MetricsApp
from engine.observability.requests import RequestHook, request_hook
from engine.observability.supervision import supervision_observer
from engine.processes.devices import gpu_count
from engine.processes.inheritance import for_workers
from engine.processes.placement import resolve as resolve_policies
from engine.processes.trimming import trim_memory
from engine.repository.advice import no_models, single_model
from engine.repository.copies import Janitor
from engine.repository.fingerprint import Digests
from engine.repository.observation import Observer
from engine.repository.reader import ReadOptions, RepositoryReader
from engine.repository.source import Source
from engine.repository.view import RepositoryView
from engine.server.composing import Composer
from engine.server.exposing import exposition
from engine.server.frontends import Frontend, grpc_listener, http_limits, v2_app
from engine.server.machine import Machine, ThisMachine
from engine.server.model_control import ModelControl, is_loading
from engine.server.residency import memory_total
from engine.server.sockets import Sockets, open_sockets
from engine.server.tls import TlsUnusable, server_context
from engine.server.version_tree import ModelSubtrees
from engine.settings.forms import SettingsError
from engine.settings.models import read_memory_limit
from engine.settings.settings import Settings
from engine.settings.uris import is_remote
from engine.stores.open import CacheUnusable, OpenCache, open_cache
from protocols.grpc.listener import GrpcListener
from protocols.http.admission import admit_short
from protocols.http.app import V2App
from protocols.http.listener import HttpListener
from protocols.http.routes import is_health
from protocols.transport.listening import Listener

LAST_WORDS: Final = 1.0
"""Seconds that clients in flight have to take their answers, when the server has no more time for them."""

ROOT_INTENSITY: Final = Intensity(3, 60.0)

_GRPC_TITLE: Final = "GRPCInferenceService"

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
)
"""Of the contract's list (http.md section 3), in its order: what this version serves."""


class ServerFailed(Exception):
    """The server can't start or can't go on. The message is for the operator."""


class Log:
    """Events to structlog. Implements `actors.values.events.Log`."""

    def __init__(self) -> None:
        self._logger = structlog.get_logger()

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Write one event."""
        getattr(self._logger, level)(event, **keys)


class TreeView:
    """Implements `actors.values.interfaces.Introspection`."""

    root: Supervisor  # set once it has been composed

    def tree(self) -> Mapping[str, object]:
        """Return the whole tree as JSON values; `since` is on the clock that `now` is read from."""
        return {"now": trio.current_time(), **self.root.tree().as_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server whose tree stands. `failures` says why, if the tree gave up by itself."""

    settings: Settings
    server: Server
    app: V2App
    subtrees: ModelSubtrees
    router: Router
    catalog: Catalog
    readiness: Readiness
    residents: Residents
    root: Supervisor
    stopped: trio.Event
    failures: list[str] = field(default_factory=list)  # why the exit status will not be 0
    http: Frontend | None
    grpc: Frontend | None
    grpc_unix: Frontend | None
    metrics: Frontend | None

    async def wait_loaded(self) -> None:
        """Wait until every model that is loaded at start is ready or has failed."""
        await self.catalog.finished.wait()

    async def wait_stopped(self) -> None:
        """Wait until the tree has ended, whatever ended it."""
        await self.stopped.wait()

    def withdraw(self) -> None:
        """Say that the server is not ready, so that clients go elsewhere, but serve on.

        `drain` comes later.
        """
        self.readiness.withdraw()
        for frontend in (self.http, self.grpc, self.grpc_unix):
            if frontend is not None:
                frontend.withdraw()

    async def drain(self) -> bool:
        """Stop accepting, and answer everything that was accepted, within the exit timeout.

        Returns False if that was too short.
        """
        self.readiness.exit()
        self.residents.close()
        deadline = trio.current_time() + self.settings.exit_timeout
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.subtrees.give_up_stuck, self.settings.unready_after_hang)
            with trio.move_on_at(deadline):
                async with trio.open_nursery() as draining:
                    for frontend in self._frontends:
                        draining.start_soon(frontend.drain)
            drained = await self.subtrees.drain(max(0.0, deadline - trio.current_time()))
            nursery.cancel_scope.cancel()
        if trio.current_time() >= deadline:
            await self.give_up(
                f"not answered within {self.settings.exit_timeout:g} s of its being told to stop (--exit-timeout-secs)"
            )
        return drained

    async def give_up(self, why: str) -> None:
        """Answer open requests with UNAVAILABLE; wait at most `LAST_WORDS` seconds for clients to get it."""
        self.subtrees.give_up(f"the server has stopped, and this was {why}; send it again, to another server")
        with trio.move_on_after(LAST_WORDS):
            async with trio.open_nursery() as nursery:
                for frontend in self._frontends:
                    nursery.start_soon(frontend.give_up)

    @property
    def _frontends(self) -> list[Frontend]:
        """Those that serve requests."""
        return [each for each in (self.http, self.grpc, self.grpc_unix) if each is not None]


def check_repositories(settings: Settings) -> None:
    """Raise ServerFailed if a repository is no directory (contract, repository.md section 2).

    With `--exit-on-error=false` the server goes on without it: it is not ready, and the log says why.
    """
    if not settings.exit_on_error:
        return
    for path in settings.model_repositories:
        if not is_remote(path) and not Path(path).is_dir():
            raise ServerFailed(
                f"creating server: Invalid argument - repository path is not a valid directory: '{path}'"
            )
        if settings.control_mode == "none" and not is_remote(path) and (said := single_model(Path(path))):
            raise ServerFailed(f"creating server: Invalid argument - {said}")


def advice_on_repositories(settings: Settings) -> list[str]:
    """Return warnings about repositories that are likely to be a mistake."""
    if settings.control_mode == "explicit" and not settings.load_models:
        # The server begins empty; models are put into it later.
        return []
    local = [Path(path) for path in settings.model_repositories if not is_remote(path)]
    # The server ends because of one model: see `check_repositories`.
    ends = settings.control_mode == "none" and settings.exit_on_error
    alone = [] if ends else [said for path in local if (said := single_model(path))]
    return alone + [said for path in local if (said := no_models(path))]


@asynccontextmanager
async def open_server(
    settings: Settings,
    *,
    http: bool = True,
    environ: Mapping[str, str] = os.environ,
    machine: Machine | None = None,
) -> AsyncIterator[RunningServer]:
    """Run the tree around the block: models load meanwhile.

    Leaving the block stops the tree, children in reverse order. `http` is false if another server, such as
    hypercorn, accepts HTTP connections; gRPC and metrics have their ports then too. Raises AddressInUse if a
    port is taken, and ServerFailed if the TLS files make no listener or the tree gives up.
    """
    check_repositories(settings)
    grpc_tls = _grpc_tls(settings)
    with open_sockets(settings, http=http) as sockets:
        async with running_tree(
            settings, sockets, grpc_tls=grpc_tls, environ=environ, machine=machine
        ) as running:
            yield running


def _grpc_tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.allow_grpc or settings.grpc.tls is None:
        return None
    try:
        return server_context(settings.grpc.tls)
    except TlsUnusable as error:
        raise ServerFailed(str(error)) from error


class _Composition:
    """All parts of a server, and how they are connected. Nothing runs yet."""

    def __init__(
        self,
        settings: Settings,
        sockets: Sockets,
        grpc_tls: ssl.SSLContext | None,
        environ: Mapping[str, str],
        machine: Machine,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._log = Log()
        self.router = Router(namespacing=settings.namespacing)
        self._loop_lag = LoopLag()
        self._compose_models(environ)
        self._compose_repository(environ)
        self._compose_frontends(sockets, grpc_tls)
        self.root = self._tree()
        self._view.root = self.root

    def _compose_models(self, environ: Mapping[str, str]) -> None:
        settings = self._settings
        self._backends = self._machine.backends(settings.backend_directory)
        self._cache = _open_cache(settings, self._log)
        # What was loaded comes back with it: the catalog, which lives on, believes it to be there.
        self._models = Supervisor(lambda: self.subtrees.standing(), intensity=ROOT_INTENSITY)
        self._subjects = Subjects()
        self._custom_metrics = CustomMetrics(enabled=settings.allow_metrics)
        self._custom_metrics.answer(self._subjects)
        self._launcher = self._machine.launcher(
            self._backends,
            environ=for_workers(settings, environ),
            spare_workers=settings.spare_workers,
            log=self._log,
        )
        self.subtrees = ModelSubtrees(
            self._models,
            self.router,
            self._launcher,
            log=self._log,
            metrics=settings.metrics,
            stop_within=10.0,
            cache=None if self._cache is None else self._cache.cache,
            limiter=RateLimiter(settings.rate_limit_resources) if settings.rate_limit else None,
            start_after=settings.start_after,
            subjects=self._subjects,
            wall_clock=self._machine.wall_clock,
            recorder=self._recorder(),
            cores=self._machine.cores(),
            serving=lambda: self.catalog.finished.is_set(),
        )
        self.traffic = TrafficControl(
            self.router.roster,
            log=self._log,
            random=self._machine.random().random,
            wall_clock=self._machine.wall_clock,
            changeable=ControlMode(settings.control_mode) is ControlMode.EXPLICIT,
        )
        budget = read_memory_limit(settings.resident_memory_limit, memory_total())
        self.residents = Residents(self.router, budget=budget)

    def _compose_repository(self, environ: Mapping[str, str]) -> None:
        settings = self._settings
        self.janitor = Janitor(self._log)
        self._lanes = Supervisor()
        self._retirements = Supervisor()
        digests = Digests(wall_ns=lambda: self._machine.wall_clock() * 1_000_000)
        self._sources = _open_sources(self._machine, settings, environ, digests)
        reader = RepositoryReader(
            self._sources,
            ReadOptions(
                backends=self._backends,
                gpus=gpu_count(environ),
                environ=for_workers(settings, environ),
                backend_settings=settings.backend_settings,
                config_name=settings.model_config_name,
                auto_complete=not settings.disable_auto_complete_config,
                namespacing=settings.namespacing,
                host_policies=_host_policies(settings),
                execution_timeout=settings.default_execution_timeout,
            ),
            self.janitor,
            digests,
            EnvironmentBuilder(
                EnvironmentCache(Path(settings.environment_cache), environ=environ),
                environ=environ,
                log=self._log,
            ),
        )
        around = Surroundings(
            roster=self.router.roster,
            tree=self.subtrees,
            retirements=self._retirements,
            dormant=self.residents.dormant,
            swapped=self._swapped,
            left=self.traffic.forget,
            loads=trio.CapacityLimiter(settings.load_thread_count),
            extra_attempts=settings.load_retry_count,
            log=self._log,
            compose=Composer(self.router),
        )
        mode = ControlMode(settings.control_mode)
        startup = settings.load_models if mode is ControlMode.EXPLICIT else ("*",)
        self.catalog = Catalog(
            around, reader, self._lanes, mode=mode, startup=startup, namespacing=settings.namespacing
        )
        self.router.on_the_way = self.catalog.on_the_way
        self.readiness = Readiness(
            self.router,
            strict=settings.strict_readiness,
            finished=self.catalog.finished,
            log=self._log,
            wall_clock=self._machine.wall_clock,
            missing=lambda: self.catalog.missing,
            hang_bound=settings.unready_after_hang,
        )
        self.router.roster.on_change(lambda _: self.readiness.changed())
        self._repository_view = RepositoryView(self.router.roster, self.catalog, reader)
        control = ModelControl(
            self._repository_view,
            self.readiness,
            started=self.catalog.finished.is_set,
            loading=lambda caller: is_loading(self.router, caller.spec),
            needs=self.catalog.parts.needs,
        )
        control.answer(self._subjects)
        self.catalog.parts.awaited_by = control.awaited_by
        self._watcher: Watcher | None = None
        if mode is ControlMode.POLL:
            self._watcher = Watcher(
                Observer(self._sources, clock=self._machine.monotonic),
                self.catalog.news,
                interval=settings.poll_interval,
                log=self._log,
                wall_clock=lambda: self._machine.wall_clock() / 1000,
                namespacing=settings.namespacing,
            )
            self.catalog.could_not_look = self._watcher.look_again

    def _hook(self, protocol: str) -> RequestHook | None:
        settings = self._settings.log
        if not (settings.requests or settings.verbose):
            return None
        return request_hook(protocol, failures_only=not settings.requests)

    def _recorder(self) -> Recorder | None:
        settings = self._settings.log
        if not settings.requests:
            return None
        return Recorder(self._log, on_internal=request_hook(), stages=settings.verbose > 0)

    def _swapped(self, key: ModelKey, specs: Sequence[ModelSpec]) -> None:
        """The catalog has other versions of a model serve."""
        if specs:
            self.traffic.adopt(key, specs[-1].traffic)

    def _compose_frontends(self, sockets: Sockets, grpc_tls: ssl.SSLContext | None) -> None:
        settings = self._settings
        self._view = TreeView()
        self.server = Server(
            identity=ServerIdentity(name=settings.id, version=version(), extensions=EXTENSIONS),
            models=self.router,
            repository=self._repository_view,
            health=self.readiness,
            introspection=self._view,
            traffic=self.traffic,
        )
        self.app = v2_app(settings, self.server, on_finished=self._hook("http"))
        listen = partial(
            grpc_listener,
            settings.grpc,
            self.server,
            connections=settings.connections,
            on_finished=self._hook("grpc"),
            log=self._log,
            uniform=self._machine.random().random,
        )
        self._grpc_listeners: list[GrpcListener] = []
        self._listeners: dict[str, Sequence[Listener[Any]]] = {}  # by protocol
        self.http = self.grpc = self.grpc_unix = self.metrics = None
        if sockets.http is not None:
            self.http = Frontend(
                "http",
                "HTTPService",
                sockets.http,
                self._http_listener(),
                log=self._log,
            )
        if sockets.grpc is not None:
            listener = listen(tls=grpc_tls)
            self._grpc_listeners.append(listener)
            self._listeners["grpc"] = self._grpc_listeners
            self.grpc = Frontend("grpc", _GRPC_TITLE, sockets.grpc, listener, log=self._log)
        if sockets.grpc_unix is not None:
            listener = listen(tls=None)
            self._grpc_listeners.append(listener)
            self._listeners["grpc"] = self._grpc_listeners
            self.grpc_unix = Frontend("grpc-unix", _GRPC_TITLE, sockets.grpc_unix, listener, log=self._log)
        if sockets.metrics is not None:
            self.metrics = Frontend(
                "metrics",
                "Metrics Service",
                sockets.metrics,
                HttpListener(
                    self._metrics_app(), limits=http_limits(settings.connections), admit=admit_short
                ),
                log=self._log,
            )

    def _http_listener(self) -> HttpListener:
        listener = HttpListener(
            self.app,
            limits=http_limits(self._settings.connections),
            admit=self.app.admit,
            is_welcome=is_health,
        )
        self._listeners["http"] = [listener]
        return listener

    def _metrics_app(self) -> MetricsApp:
        return MetricsApp(
            exposition(
                self._settings.metrics,
                models=self.subtrees.models,
                wall_ms=self._machine.wall_clock,
                readiness=self.readiness,
                roster=self.router.roster,
                traffic=self.traffic,
                residents=self.residents,
                grpc=self._grpc_listeners,
                listeners=self._listeners,
                cache=self._cache,
                spares=self._launcher.spares,
                custom=self._custom_metrics,
                lag=self._loop_lag,
            )
        )

    def _tree(self) -> Supervisor:
        telemetry = Supervisor(
            [
                ChildSpec("loop-lag", lambda ctx: measure_loop_lag(ctx, self._loop_lag)),
                ChildSpec("readiness", self.readiness.run),
                ChildSpec("memory", trim_memory),
            ]
        )
        services = Supervisor(
            [
                ChildSpec("traffic-guard", self.traffic.guard),
                ChildSpec("mirror", self.traffic.compare),
                ChildSpec(
                    "residency",
                    partial(
                        residency.run,
                        residents=self.residents,
                        catalog=self.catalog,
                        memory=self._machine.memory(),
                        log=self._log,
                        wall_clock=self._machine.wall_clock,
                    ),
                    intensity=Intensity(3, 60.0),
                    on_exhausted=OnExhausted.RETRY_AT_CAP,
                ),
                ChildSpec(
                    "spares",
                    self._launcher.spares.run,
                    shutdown=10.0,
                    intensity=Intensity(3, 60.0),
                    on_exhausted=OnExhausted.RETRY_AT_CAP,
                ),
                self.janitor.spec(),
                *([] if self._cache is None else [self._cache.spec()]),
            ]
        )
        repository = [
            self._lanes.spec("lanes"),
            self._retirements.spec("retiring"),
            self.catalog.spec(),
        ]
        if self._watcher is not None:
            repository.append(self._watcher.spec())
        frontends = Supervisor(
            [frontend.spec() for frontend in self.frontends], intensity=Intensity(10, 60.0)
        )
        return Supervisor(
            [
                telemetry.spec("telemetry"),
                services.spec("services"),
                self._models.spec("models"),
                # What serves needs none of it to go on.
                Supervisor(repository, strategy=Strategy.REST_FOR_ONE).spec(
                    "repository", intensity=ROOT_INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP
                ),
                frontends.spec("frontends"),
            ],
            intensity=ROOT_INTENSITY,
        )

    @property
    def frontends(self) -> list[Frontend]:
        """Those whose ports are open."""
        every = (self.http, self.grpc, self.grpc_unix, self.metrics)
        return [frontend for frontend in every if frontend is not None]

    def running(self) -> RunningServer:
        """Return the handle that callers of `open_server` get."""
        return RunningServer(
            settings=self._settings,
            server=self.server,
            app=self.app,
            subtrees=self.subtrees,
            router=self.router,
            catalog=self.catalog,
            readiness=self.readiness,
            residents=self.residents,
            root=self.root,
            stopped=trio.Event(),
            http=self.http,
            grpc=self.grpc,
            grpc_unix=self.grpc_unix,
            metrics=self.metrics,
        )


@asynccontextmanager
async def running_tree(
    settings: Settings,
    sockets: Sockets,
    *,
    grpc_tls: ssl.SSLContext | None = None,
    environ: Mapping[str, str],
    machine: Machine | None = None,
) -> AsyncIterator[RunningServer]:
    """Do as `open_server` does, on the caller's listening `sockets`, and on `machine`, not this one."""
    machine = machine or ThisMachine()
    with giving(machine.seams()):
        async with _running_tree(
            _Composition(settings, sockets, grpc_tls, environ, machine), machine
        ) as running:
            yield running


@asynccontextmanager
async def _running_tree(composition: _Composition, machine: Machine) -> AsyncIterator[RunningServer]:
    running, root = composition.running(), composition.root
    logs_supervision = supervision_observer(structlog.get_logger())

    def observe(event: SupervisionEvent) -> None:
        logs_supervision(event)
        composition.subtrees.observe(event)

    async def serve_tree(task_status: trio.TaskStatus[Supervisor]) -> None:
        try:
            await root.serve(observer=observe, random=machine.random(), task_status=task_status)
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
                composition.residents.close()
                if root.is_running:
                    root.stop()
                    await running.stopped.wait()
            composition.janitor.finish()
            for frontend in composition.frontends:
                frontend.close()


def _host_policies(settings: Settings) -> Mapping[str, tuple[int, ...]]:
    try:
        return resolve_policies(settings.host_policies, os.sched_getaffinity(0))
    except SettingsError as error:
        raise ServerFailed(f"{error.message}; {error.hint}") from error


def _open_cache(settings: Settings, log: Log) -> OpenCache | None:
    try:
        return None if settings.cache is None else open_cache(settings.cache, log)
    except CacheUnusable as error:
        raise ServerFailed(str(error)) from error


def _open_sources(
    machine: Machine, settings: Settings, environ: Mapping[str, str], digests: Digests
) -> Sequence[Source]:
    try:
        return machine.sources(settings, environ, digests)
    except TritiumError as error:
        raise ServerFailed(f"creating server: {error.code.rendered} - {error.message}") from error


def version() -> str:
    """Return Tritium's version, from the installed distribution if there is one."""
    try:
        return importlib.metadata.version("tritium")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
