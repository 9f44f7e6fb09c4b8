"""The frontends of a server: a listener for each port that is open."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors.supervision.spec import ChildSpec, Intensity
from actors.supervision.supervisor import Supervisor
from actors.values.auditing import Auditor
from actors.values.callers import HeadGate
from actors.values.events import Log
from actors.values.generation.adapters import AdapterControl
from actors.values.generation.facts import Languages
from actors.values.interfaces import Registrations, Server
from actors.values.requests import Endings
from actors.values.tracing.spans import Tracer
from engine.observability.metrics import Exposition, MetricsApp
from engine.observability.requests import request_hook
from engine.observability.running_logs import RunningLogs
from engine.server.cloud.frontends import Served, serve_sagemaker, serve_vertex
from engine.server.frontends import (
    Frontend,
    address_of,
    grpc_listener,
    http_limits,
    origin_policy,
    refusing,
    v2_app,
)
from engine.server.sockets import Sockets
from engine.server.tls import ListenerTls, ServerTls
from engine.settings.reporting import LogSettings
from engine.settings.settings import Settings
from protocols.grpc.listener import GrpcListener
from protocols.http.admission import admit_short
from protocols.http.app import V2App
from protocols.http.cloud.app import CloudApp
from protocols.http.cloud.vertex import DefaultModel
from protocols.http.conversation import Application
from protocols.http.listener import HttpListener
from protocols.http.routes import is_health
from protocols.kserve.apart import Elsewhere
from protocols.transport.listening import Listener
from protocols.transport.receiving import ReceivingRoom

if TYPE_CHECKING:
    from engine.audit.trail import Trail
    from protocols.openai.app import OpenAiApp

Exposing = Callable[[Sequence[GrpcListener], Mapping[str, Sequence[Listener[Any]]]], Exposition]
"""From the gRPC listeners, and the listeners of each protocol, to what the metrics port tells."""

_GRPC_TITLE: Final = "GRPCInferenceService"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontends:
    """The applications that answer over HTTP, and a frontend for each port that is open."""

    app: V2App
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
    working: Sequence[ChildSpec]  # what works for them without a port

    @property
    def every(self) -> list[Frontend]:
        """Those whose ports are open. What manages comes first, so that it ends last."""
        every = (
            self.management_http,
            self.management_grpc,
            self.http,
            self.grpc,
            self.grpc_unix,
            self.openai,
            self.sagemaker,
            self.vertex,
            self.metrics,
        )
        return [frontend for frontend in every if frontend is not None]

    def spec(self) -> ChildSpec:
        """Return their place in the tree."""
        children = [*(frontend.spec() for frontend in self.every), *self.working]
        return Supervisor(children, intensity=Intensity(10, 60.0)).spec("frontends")


def compose_frontends(
    settings: Settings,
    sockets: Sockets,
    server: Server,
    log: Log,
    *,
    registrations: Registrations,
    languages: Languages,
    adapters: AdapterControl,
    logs: RunningLogs,
    tls: ServerTls,
    gate: HeadGate | None,
    uniform: Callable[[], float],
    room: ReceivingRoom,
    exposing: Exposing,
    tracer: Tracer,
    trail: Trail | None = None,
) -> Frontends:
    """Return the frontends of these sockets.

    `registrations` takes the repositories of models that a platform brings. `languages` are the language
    models that serve. `gate` says who may do what;
    None: all may do everything. `uniform` returns random numbers in [0, 1), see `GrpcListener`. All requests
    have one `room` on their way in. `trail` is the audit log, if there is one. `tracer` says which requests
    are traced.
    """

    audited = partial(_auditor, trail)
    elsewhere = _elsewhere(sockets)
    app = v2_app(
        settings,
        server,
        gate=gate,
        endings=endings(logs, "http"),
        elsewhere=elsewhere,
        room=room,
        auditor=audited("http"),
        tracer=tracer,
    )
    on_grpc: list[GrpcListener] = []
    listeners: dict[str, list[Listener[Any]]] = {}  # by protocol

    refused = refusing(log)

    def http(app: V2App, service: str = "http") -> HttpListener:
        listener = HttpListener(
            app,
            limits=http_limits(settings.connections, service, replica=settings.replica_name),
            admit=app.admit,
            is_welcome=is_health,
            tls=_contexts(tls.http),
            on_refused=refused,
            room=room,
            direct=app.direct,
            uniform=uniform,
        )
        listeners.setdefault("http", []).append(listener)
        return listener

    def management() -> HttpListener:
        return http(
            v2_app(
                settings,
                server,
                gate=gate,
                endings=endings(logs, "http"),
                outlives_draining=True,
                room=room,
                auditor=audited("management-http"),
                tracer=tracer,
            ),
            "management",
        )

    def grpc(
        name: str, tls: ListenerTls | None, elsewhere: Elsewhere | None, service: str = "grpc"
    ) -> GrpcListener:
        listener = grpc_listener(
            settings.grpc,
            server,
            connections=settings.connections,
            service=service,
            tls=_contexts(tls),
            gate=gate,
            endings=endings(logs, "grpc"),
            log=log,
            elsewhere=elsewhere,
            uniform=uniform,
            room=room,
            auditor=audited(name),
            tracer=tracer,
            replica=settings.replica_name,
        )
        on_grpc.append(listener)
        listeners.setdefault("grpc", []).append(listener)
        return listener

    metrics_app: Application | None = None
    if settings.allow_metrics:
        metrics_app = MetricsApp(
            exposing(on_grpc, listeners),
            gate,
            pages=origin_policy(settings.pages),
            auditor=audited("metrics"),
        )

    def beside(
        app: CloudApp | OpenAiApp,
        name: str,
        is_welcome: Callable[[bytes], bool],
        secured: ListenerTls | None = None,
    ) -> HttpListener:
        listener = HttpListener(
            app,
            limits=http_limits(settings.connections, name, replica=settings.replica_name),
            admit=app.admit,
            is_welcome=is_welcome,
            tls=_contexts(secured),
            on_refused=refused,
            room=room,
            uniform=uniform,
        )
        listeners.setdefault(name, []).append(listener)
        return listener

    working: list[ChildSpec] = []

    def openai() -> HttpListener:
        # Few servers serve this API, and it is 23 modules.
        from engine.server.languages.openai import keeping_alive, serve_openai
        from protocols.openai.routes import is_health as is_openai_health

        app = serve_openai(
            settings,
            server,
            languages,
            metrics=metrics_app,
            gate=gate,
            auditor=audited("openai"),
            endings=endings(logs, "openai"),
            tracer=tracer,
            adapters=adapters,
        )
        working.append(keeping_alive(app))
        return beside(app, "openai", is_openai_health, tls.http)

    default_model = DefaultModel()

    def platform_v2(name: str) -> V2App:
        # A platform's headers become no parameters, as in Triton.
        return v2_app(
            replace(settings, http_header_forward_pattern=""),
            server,
            gate=gate,
            endings=endings(logs, name),
            room=room,
            auditor=audited(name),
            tracer=tracer,
        )

    def platform(served: Served, name: str) -> HttpListener:
        # Platforms speak in the clear, and no proxy introduces them.
        return beside(served.app, name, served.platform.is_health)

    def sagemaker(name: str = "sagemaker") -> HttpListener:
        v2 = platform_v2(name)
        return platform(serve_sagemaker(settings, server, registrations, v2, audited(name)), name)

    def vertex(name: str = "vertex-ai") -> HttpListener:
        v2 = platform_v2(name)
        return platform(serve_vertex(settings.cloud.vertex, default_model, metrics_app, v2), name)

    def opened(
        name: str, title: str, sock: socket.socket | None, listener: Callable[[], Listener[Any]]
    ) -> Frontend | None:
        return None if sock is None else Frontend(name, title, sock, listener(), log=log)

    return Frontends(
        app=app,
        http=opened("http", "HTTPService", sockets.http, lambda: http(app)),
        grpc=opened("grpc", _GRPC_TITLE, sockets.grpc, lambda: grpc("grpc", tls.grpc, elsewhere)),
        grpc_unix=opened(
            "grpc-unix", _GRPC_TITLE, sockets.grpc_unix, lambda: grpc("grpc-unix", None, elsewhere)
        ),
        metrics=opened(
            "metrics",
            "Metrics Service",
            sockets.metrics,
            lambda: _on_metrics(settings, metrics_app, tls, refused, room),
        ),
        management_http=opened(
            "management-http", "HTTPManagementService", sockets.management_http, management
        ),
        management_grpc=opened(
            "management-grpc",
            "GRPCManagementService",
            sockets.management_grpc,
            lambda: grpc("management-grpc", tls.grpc, None, "management"),
        ),
        openai=opened("openai", "OpenAI HTTPService", sockets.openai, openai),
        sagemaker=opened("sagemaker", "Sagemaker HTTPService", sockets.sagemaker, sagemaker),
        vertex=opened("vertex-ai", "Vertex AI HTTPService", sockets.vertex, vertex),
        default_model=default_model,
        working=working,
    )


def _on_metrics(
    settings: Settings,
    app: Application | None,
    tls: ServerTls,
    refused: Callable[[str, str], None],
    room: ReceivingRoom,
) -> HttpListener:
    assert app is not None, "the port of what is switched off was opened"
    return HttpListener(
        app,
        limits=http_limits(settings.connections, "metrics"),
        admit=admit_short,
        tls=_contexts(tls.metrics),
        on_refused=refused,
        room=room,
    )


def _auditor(trail: Trail | None, name: str) -> Auditor | None:
    return None if trail is None else trail.at(name)


def _elsewhere(sockets: Sockets) -> Elsewhere | None:
    """Return where management is served, if it has ports of its own."""
    http, grpc = sockets.management_http, sockets.management_grpc
    if http is None:
        return None
    return Elsewhere(http=address_of(http), grpc="" if grpc is None else address_of(grpc))


def _contexts(tls: ListenerTls | None) -> Callable[[], ssl.SSLContext] | None:
    return None if tls is None else tls.context


def endings(logs: RunningLogs, protocol: str) -> Endings:
    """Return what is told of requests: every one's end, the failures, or nothing, as the log wants it now."""
    told = Endings()

    def follow(settings: LogSettings) -> None:
        wanted = settings.requests or settings.verbose
        told.hook = request_hook(protocol, failures_only=not settings.requests) if wanted else None

    logs.follow(follow)
    return told
