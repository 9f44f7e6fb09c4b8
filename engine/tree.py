"""The composition root: builds the supervision tree, runs it, drains it, ends it. It decides nothing.

root            one_for_one, 3 restarts in 60 s
├─ telemetry    loop-lag monitor
├─ repository   rest_for_one: the catalog
├─ models       dynamic: a subtree for each version, see `engine.subtree`
└─ frontends    http and metrics listeners, see `engine.frontends`
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
import trio

from actors.catalog import Catalog, FoundModel
from actors.interfaces import IndexEntry, Server, ServerIdentity
from actors.messages.events import Event
from actors.model import Status
from actors.router import Router
from actors.supervision.errors import IntensityExceeded
from actors.supervision.events import Event as SupervisionEvent
from actors.supervision.spec import ChildSpec, Intensity, Strategy
from actors.supervision.supervisor import Supervisor
from engine.config.backends import BackendTraits, discover
from engine.config.load import load_model_config
from engine.config.problems import Severity
from engine.devices import gpu_count
from engine.frontends import Frontend, bind, v2_app
from engine.launch import WorkerLauncher
from engine.observability.loop_lag import LoopLag, measure_loop_lag
from engine.observability.metrics import Exposition, MetricsApp
from engine.observability.requests import request_hook
from engine.observability.supervision import supervision_observer
from engine.observability.system import MachineSampler
from engine.repository.layout import DUPLICATE_REASON, ModelDirectory, scan
from engine.settings import Settings
from engine.subtree import ModelSubtrees, milliseconds_since_epoch
from protocols.http.app import V2App

ROOT_INTENSITY: Final = Intensity(3, 60.0)

EXTENSIONS: Final = (
    "classification",
    "model_repository",
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
    """Events to structlog. Implements `actors.messages.events.Log`."""

    def __init__(self) -> None:
        self._logger = structlog.get_logger()

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Write one event."""
        getattr(self._logger, level)(event, **keys)


class Readiness:
    """Implements `actors.interfaces.Health` (contract, repository.md section 8)."""

    def __init__(self, router: Router, catalog: Catalog, *, strict: bool) -> None:
        self._router = router
        self._catalog = catalog
        self._strict = strict
        self.exiting = False

    def live(self) -> bool:
        """The loop turns, or nobody would answer."""
        return True

    async def ready(self) -> bool:
        """Whether everything was loaded, and in strict mode, whether all of it serves and says so itself."""
        if not self._catalog.finished.is_set():
            return False
        if not self._strict:
            return True
        ready = self._router.all_ready()
        for state in self._router.states():
            ready = ready and (state.status is not Status.READY or await state.says_ready())
        return ready

    async def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a version serves and says so itself; raises like `Models.resolve`."""
        return await self._router.resolve(name, version).says_ready()


class RepositoryView:
    """Implements `actors.interfaces.Repository`: the index from the router, changes through the catalog."""

    def __init__(self, router: Router, catalog: Catalog) -> None:
        self._router = router
        self._catalog = catalog

    def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return every version with its state."""
        return self._router.index(ready_only=ready_only)

    async def load(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load a model."""
        await self._catalog.load(name, parameters)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model."""
        await self._catalog.unload(name, unload_dependents=unload_dependents)


class TreeView:
    """Implements `actors.interfaces.Introspection`."""

    root: Supervisor  # set once it has been composed

    def tree(self) -> Mapping[str, object]:
        """Return the whole tree as JSON values; `since` is on the clock that `now` is read from."""
        return {"now": trio.current_time(), **self.root.tree().as_dict()}


class RepositoryReader:
    """Finds the models of the repositories and reads their configurations, off the loop."""

    def __init__(self, settings: Settings, backends: Mapping[str, BackendTraits], *, gpus: int) -> None:
        self._settings = settings
        self._backends = backends
        self._gpus = gpus
        self._limiter = trio.CapacityLimiter(1)

    async def __call__(self) -> Sequence[FoundModel]:
        """Return every model of the repositories, readable or not."""
        return await trio.to_thread.run_sync(self._read, limiter=self._limiter)

    def _read(self) -> list[FoundModel]:
        found = scan([Path(path) for path in self._settings.model_repositories])
        unusable = [
            FoundModel(name=problem.key or problem.path.name, reason=problem.reason, warnings=(str(problem),))
            for problem in found.problems
            if problem.severity is Severity.ERROR
            and problem.path is not None
            and problem.message != DUPLICATE_REASON
        ]
        duplicates = [
            FoundModel(
                name=name, reason=DUPLICATE_REASON, warnings=("not unique across all model repositories",)
            )
            for name in found.duplicates
        ]
        return [*unusable, *duplicates, *map(self._read_model, found.models.values())]

    def _read_model(self, directory: ModelDirectory) -> FoundModel:
        loaded = load_model_config(
            directory.path,
            backends=self._backends,
            gpus=self._gpus,
            backend_settings=self._settings.backend_settings,
            config_name=self._settings.model_config_name,
            auto_complete=not self._settings.disable_auto_complete_config,
        )
        return FoundModel(
            name=directory.name,
            specs=loaded.specs,
            versions=loaded.versions,
            reason=loaded.reason,
            warnings=[str(problem) for problem in loaded.problems],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server whose tree stands. `failed` is set, with `failure`, if the tree gave up by itself."""

    settings: Settings
    server: Server
    app: V2App
    subtrees: ModelSubtrees
    router: Router
    catalog: Catalog
    readiness: Readiness
    root: Supervisor
    stopped: trio.Event
    failures: list[str] = field(default_factory=list)  # why the exit status will not be 0
    http: Frontend | None
    metrics: Frontend | None

    async def wait_loaded(self) -> None:
        """Wait until every model of the repository is ready or has failed."""
        await self.catalog.finished.wait()

    async def wait_stopped(self) -> None:
        """Wait until the tree has ended, whoever ended it."""
        await self.stopped.wait()

    async def drain(self) -> bool:
        """Stop accepting, answer everything that was accepted, within the exit timeout. False if that was too short."""
        self.readiness.exiting = True
        deadline = trio.current_time() + self.settings.exit_timeout
        if self.http is not None:
            with trio.move_on_at(deadline):
                await self.http.drain()
        return await self.subtrees.drain(max(0.0, deadline - trio.current_time()))


def check_repositories(settings: Settings) -> None:
    """Raise ServerFailed where a repository is no directory (contract, repository.md section 2)."""
    for path in settings.model_repositories:
        if not Path(path).is_dir():
            raise ServerFailed(
                f"creating server: Invalid argument - repository path is not a valid directory: '{path}'"
            )


@asynccontextmanager
async def open_server(
    settings: Settings, *, http: bool = True, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[RunningServer]:
    """Run the tree around the block: models load meanwhile. Leaving the block stops it, children in reverse order.

    `http` is false where another server, such as hypercorn, accepts the connections. Raises AddressInUse where a port is
    taken, and ServerFailed where the tree gives up.
    """
    check_repositories(settings)
    with ExitStack() as sockets:
        http_socket = metrics_socket = None
        if http and settings.allow_http:
            http_socket = sockets.enter_context(bind(settings.http_address, settings.http_port))
        if settings.allow_metrics:
            metrics_socket = sockets.enter_context(bind(settings.metrics_address, settings.metrics_port))
        async with _running_tree(settings, http_socket, metrics_socket, environ) as running:
            yield running


@asynccontextmanager
async def _running_tree(
    settings: Settings,
    http_socket: socket.socket | None,
    metrics_socket: socket.socket | None,
    environ: Mapping[str, str],
) -> AsyncIterator[RunningServer]:
    backends = discover()
    log = Log()
    router = Router()
    loop_lag = LoopLag()
    models = Supervisor(intensity=ROOT_INTENSITY)
    subtrees = ModelSubtrees(
        models,
        router,
        WorkerLauncher(backends, environ=environ),
        log=log,
        metrics=settings.metrics,
        stop_within=10.0,
    )
    catalog = Catalog(
        router,
        subtrees,
        RepositoryReader(settings, backends, gpus=gpu_count(environ)),
        log=log,
        loads_at_once=settings.load_thread_count,
        extra_attempts=settings.load_retry_count,
    )
    readiness = Readiness(router, catalog, strict=settings.strict_readiness)
    root_view = TreeView()
    server = Server(
        identity=ServerIdentity(name=settings.id, version=version(), extensions=EXTENSIONS),
        models=router,
        repository=RepositoryView(router, catalog),
        health=readiness,
        introspection=root_view,
    )
    hook = None
    if settings.log.requests or settings.log.verbose:
        hook = request_hook(failures_only=not settings.log.requests)
    http_app = v2_app(settings, server, on_finished=hook)
    metrics_app = MetricsApp(
        Exposition(
            subtrees,
            settings.metrics,
            wall_ms=milliseconds_since_epoch,
            loop_lag=loop_lag,
            machine=MachineSampler(interval=settings.metrics.interval, clock=trio.current_time)
            if settings.metrics.cpu
            else None,
        )
    )
    http = None if http_socket is None else Frontend("http", "HTTPService", http_socket, http_app, log=log)
    metrics = None
    if metrics_socket is not None:
        metrics = Frontend("metrics", "Metrics Service", metrics_socket, metrics_app, log=log)
    frontends = Supervisor(
        [frontend.spec() for frontend in (http, metrics) if frontend is not None],
        intensity=Intensity(10, 60.0),
    )
    telemetry = Supervisor([ChildSpec("loop-lag", lambda ctx: measure_loop_lag(ctx, loop_lag))])
    repository = Supervisor([ChildSpec("catalog", catalog.run)], strategy=Strategy.REST_FOR_ONE)
    root = Supervisor(
        [
            telemetry.spec("telemetry"),
            models.spec("models"),
            repository.spec("repository"),
            frontends.spec("frontends"),
        ],
        intensity=ROOT_INTENSITY,
    )
    root_view.root = root
    running = RunningServer(
        settings=settings,
        server=server,
        app=http_app,
        subtrees=subtrees,
        router=router,
        catalog=catalog,
        readiness=readiness,
        root=root,
        stopped=trio.Event(),
        http=http,
        metrics=metrics,
    )
    logs_supervision = supervision_observer(structlog.get_logger())

    def observe(event: SupervisionEvent) -> None:
        logs_supervision(event)
        subtrees.observe(event)

    async def serve_tree(task_status: trio.TaskStatus[Supervisor]) -> None:
        try:
            await root.serve(observer=observe, random=random.Random(), task_status=task_status)
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
                if root.is_running:
                    root.stop()
                    await running.stopped.wait()
            for frontend in (http, metrics):
                if frontend is not None:
                    frontend.close()


def version() -> str:
    """Return Tritium's version, from the installed distribution where there is one."""
    try:
        return importlib.metadata.version("tritium")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
