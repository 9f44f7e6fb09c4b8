"""A server whose tree stands: what callers of `engine.server.tree.open_server` hold, and how it drains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import trio

from actors.catalog.catalog import Catalog
from actors.events.feed import EventFeed
from actors.health.readiness import Readiness
from actors.residency.residents import Residents
from actors.serving.routing.router import Router
from actors.supervision.supervisor import Supervisor
from actors.values.events import Log
from actors.values.interfaces import IndexEntry, Server
from actors.values.specs import ModelKey
from engine.core.chosen import CORE
from engine.observability.gpus import GpuMetrics
from engine.observability.starting.hints import Address, hints
from engine.observability.starting.summary import Loaded
from engine.repository.view import known
from engine.server.cloud.frontends import choose_default
from engine.server.frontends import Frontend
from engine.server.version_tree import ModelSubtrees
from engine.settings.settings import Settings
from protocols.http.app import V2App
from protocols.http.cloud.vertex import DefaultModel

if TYPE_CHECKING:
    from engine.audit.trail import Trail

LAST_WORDS: Final = 1.0
"""Seconds that clients in flight have to take their answers, when the server has no more time for them."""


_GPUS_WITHIN = 1.0
"""Seconds that the table at the start waits for a driver to tell its GPUs."""


class ServerFailed(Exception):
    """The server can't start or can't go on. The message is for the operator.

    `hint` says what would have worked, if the message does not.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


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
    gpus: GpuMetrics
    root: Supervisor
    stopped: trio.Event
    failures: list[str] = field(default_factory=list)  # why the exit status will not be 0
    http: Frontend | None
    grpc: Frontend | None
    grpc_unix: Frontend | None
    metrics: Frontend | None
    management_http: Frontend | None
    management_grpc: Frontend | None
    openai: Frontend | None
    sagemaker: Frontend | None
    vertex: Frontend | None
    default_model: DefaultModel  # of Vertex AI
    log: Log  # that the stream of events has as well
    events: EventFeed
    trail: Trail | None = None  # the audit log

    def settled(self) -> Settings:
        """Return the settings with the ports that the kernel chose where they are 0."""
        chosen = self.settings
        if self.http is not None:
            chosen = replace(chosen, http_port=self.http.port)
        if self.grpc is not None:
            chosen = replace(chosen, grpc=replace(chosen.grpc, port=self.grpc.port))
        if self.metrics is not None:
            chosen = replace(chosen, metrics_port=self.metrics.port)
        apart = chosen.management
        if self.management_http is not None:
            apart = replace(apart, http_port=self.management_http.port)
        if self.management_grpc is not None:
            apart = replace(apart, grpc_port=self.management_grpc.port)
        cloud = chosen.cloud
        if self.sagemaker is not None:
            cloud = replace(cloud, sagemaker=replace(cloud.sagemaker, port=self.sagemaker.port))
        if self.vertex is not None:
            cloud = replace(cloud, vertex=replace(cloud.vertex, port=self.vertex.port))
        if self.openai is not None:
            chosen = replace(chosen, openai=replace(chosen.openai, port=self.openai.port))
        return replace(chosen, management=apart, cloud=cloud)

    def known(self) -> tuple[Sequence[IndexEntry], Collection[ModelKey]]:
        """Return the versions known now with their loads, and the models on demand. Asks no repository."""
        return known(self.router.roster, self.catalog), self.on_demand()

    def is_loading(self) -> bool:
        """Whether a model is being loaded or unloaded."""
        return bool(self.catalog.busy)

    def on_demand(self) -> frozenset[ModelKey]:
        """Return the models that wait for their first request, or had it."""
        return frozenset(self.residents.models)

    async def loaded(self, *, took: float = 0.0) -> Loaded:
        """Return what came of the loads at the start, which are over, after `took` seconds."""
        models = await self.server.repository.index()
        with trio.move_on_after(_GPUS_WITHIN):
            await self.gpus.known.wait()
        states = list(self.router.roster.states())
        return Loaded(
            entries=models,
            on_demand=self.on_demand(),
            seconds={
                (state.spec.name, state.spec.version): state.executing.standing.load_seconds
                for state in states
            },
            options=[
                ("core", str(CORE)),
                *self.settings.options(),
                ("gpu_metrics", self.gpus.standing),
            ],
            hints=self.hints(),
            took=took,
        )

    def hints(self) -> Sequence[tuple[str, str]]:
        """Return what an operator may try: what it is, and the command or the address."""
        at = self.settled()
        key = bool(at.auth_file)
        http = grpc = metrics = None
        if self.http is not None:
            http = Address(host=at.http_address, port=at.http_port, tls=at.http_tls is not None, key=key)
        if self.grpc is not None:
            grpc = Address(host=at.grpc.address, port=at.grpc.port)
        if self.metrics is not None:
            tls = at.metrics_tls is not None
            metrics = Address(host=at.metrics_address, port=at.metrics_port, tls=tls)
        specs = (state.spec for state in self.router.roster.states())
        elsewhere = http is None and at.allow_http  # another server accepts its connections
        return list(hints(specs, http=http, grpc=grpc, metrics=metrics, elsewhere=elsewhere))

    async def wait_loaded(self) -> None:
        """Wait until every model that is loaded at start is ready or has failed."""
        await self.catalog.finished.wait()

    async def start_failure(self) -> ServerFailed | None:
        """Return why the server ends now that loading is over; None if it goes on."""
        if self.catalog.start_failed and self.settings.exit_on_error:
            return ServerFailed(
                "creating server: Internal - failed to load all models",
                hint="--exit-on-error=false serves the models that do load",
            )
        if self.vertex is None:
            return None
        configured = self.settings.cloud.vertex.default_model
        failure = await choose_default(self.default_model, configured, self.server.repository)
        return ServerFailed(failure) if failure else None

    async def wait_stopped(self) -> None:
        """Wait until the tree has ended, whatever ended it."""
        await self.stopped.wait()

    def withdraw(self) -> None:
        """Say that the server is not ready, so that clients go elsewhere, but serve on.

        `drain` comes later.
        """
        self.readiness.withdraw()
        for frontend in (self.http, self.grpc, self.grpc_unix, self.openai, self.sagemaker, self.vertex):
            if frontend is not None:
                frontend.withdraw()

    async def drain(self) -> bool:
        """Stop accepting, and answer everything that was accepted, within the exit timeout.

        Where management has an HTTP port of its own, that tells about the rest until the rest has ended.

        Returns False if that was too short.
        """
        self.readiness.exit()
        self.residents.close()
        self.events.drain()
        deadline = trio.current_time() + self.settings.exit_timeout
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.subtrees.give_up_stuck, self.settings.unready_after_hang)
            with trio.move_on_at(deadline):
                async with trio.open_nursery() as draining:
                    for frontend in self._frontends:
                        if frontend is not self.management_http:
                            draining.start_soon(frontend.drain)
                self.events.close()
                if self.management_http is not None:
                    await self.management_http.drain()
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
        self.events.close()
        with trio.move_on_after(LAST_WORDS):
            async with trio.open_nursery() as nursery:
                for frontend in self._frontends:
                    nursery.start_soon(frontend.give_up)

    @property
    def _frontends(self) -> list[Frontend]:
        """Those that serve requests."""
        every = (
            self.http,
            self.grpc,
            self.grpc_unix,
            self.openai,
            self.sagemaker,
            self.vertex,
            self.management_http,
            self.management_grpc,
        )
        return [each for each in every if each is not None]
