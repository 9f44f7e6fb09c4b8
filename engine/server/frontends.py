"""Listeners as children of the tree.

The sockets are held here, so that a listener may crash and be restarted.
"""

from __future__ import annotations

import functools
import random
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, Restart, Strategy
from actors.supervision.supervisor import Supervisor
from actors.values.auditing import Auditor
from actors.values.callers import Action, HeadGate
from actors.values.events import Event, Log
from actors.values.interfaces import Server
from actors.values.requests import Endings
from actors.values.tracing.spans import NO_TRACER, Tracer
from engine.settings.listening import ConnectionSettings, GrpcSettings, RestrictedHeader, host_port
from engine.settings.pages import PageSettings
from engine.settings.re2 import compiled
from engine.settings.settings import Settings
from protocols.grpc.listener import GrpcListener
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.offered import services
from protocols.http.app import V2App
from protocols.http.listener import ListenerLimits
from protocols.http.options import V2Options
from protocols.http.origins import OriginPolicy
from protocols.http.patience import STATUS_LINES, ConnectionLimits, status_lines
from protocols.kserve.apart import Elsewhere
from protocols.kserve.steering import REPLICA
from protocols.transport.listening import Listener
from protocols.transport.receiving import ReceivingRoom

_ANSWERS_WITHIN: Final = 0.5
"""Seconds that answers have to reach clients; then clients without one are told that the server ends."""


def v2_app(
    settings: Settings,
    server: Server,
    *,
    gate: HeadGate | None = None,
    endings: Endings,
    room: ReceivingRoom,
    elsewhere: Elsewhere | None = None,
    outlives_draining: bool = False,
    auditor: Auditor | None = None,
    tracer: Tracer = NO_TRACER,
) -> V2App:
    """Return the v2 application with what the settings say of it; for the rest see `V2Options`."""
    return V2App(
        server,
        options=V2Options(
            max_input_size=settings.http_max_input_size,
            server_timing=settings.server_timing,
            gate=gate,
            restricted=_restricted(settings.http_restricted_api),
            header_forward_pattern=_pattern(settings.http_header_forward_pattern),
            pages=origin_policy(settings.pages),
            elsewhere=elsewhere,
            outlives_draining=outlives_draining,
            replica=settings.replica_name,
            auditor=auditor,
            endings=endings,
            room=room,
            tracer=tracer,
        ),
    )


def origin_policy(settings: PageSettings) -> OriginPolicy:
    """Return what web pages may ask for."""
    return OriginPolicy(trusted_hosts=settings.trusted_hosts, origins=settings.cors_allowed_origins)


def http_limits(settings: ConnectionSettings, service: str = "http", *, replica: str = "") -> ListenerLimits:
    """Return how many connections the HTTP listener of a service has, and how patient each is.

    `service` is one of those that `--proxy-protocol` names. Answers name the server by `replica`, if it has
    a name.
    """
    named = status_lines((REPLICA.encode(), replica.encode())) if replica else STATUS_LINES
    return ListenerLimits(
        max_connections=settings.most,
        per_address=settings.address_limit,
        proxies=settings.proxies,
        introduced=service in settings.proxy_protocol,
        connection=ConnectionLimits(
            idle_timeout=settings.idle_timeout, max_age=settings.max_http_age, status_lines=named
        ),
    )


def grpc_listener(
    settings: GrpcSettings,
    server: Server,
    *,
    connections: ConnectionSettings | None = None,
    service: str = "grpc",
    tls: Callable[[], ssl.SSLContext] | None,
    gate: HeadGate | None = None,
    endings: Endings,
    log: Log,
    elsewhere: Elsewhere | None = None,
    uniform: Callable[[], float] = random.random,
    room: ReceivingRoom | None = None,
    auditor: Auditor | None = None,
    tracer: Tracer = NO_TRACER,
    replica: str = "",
) -> GrpcListener:
    """Return a gRPC listener for all services, with the settings' options; in the clear without `tls`.

    `service` is the one that `--proxy-protocol` names. `elsewhere`, `replica`: see `GrpcOptions`. `uniform`
    returns random numbers in [0, 1), see `GrpcListener`.
    """
    keepalive = settings.keepalive
    connections = connections or ConnectionSettings()
    options = GrpcOptions(
        max_connections=connections.most,
        per_address=connections.address_limit,
        proxies=connections.proxies,
        introduced=service in connections.proxy_protocol,
        idle_timeout=connections.idle_timeout,
        connection_bytes=settings.connection_bytes,
        compression=settings.compression,
        keepalive_time=keepalive.time,
        keepalive_timeout=keepalive.timeout,
        keepalive_permit_without_calls=keepalive.permit_without_calls,
        max_pings_without_data=keepalive.max_pings_without_data,
        min_ping_interval_without_data=keepalive.min_ping_interval_without_data,
        max_ping_strikes=keepalive.max_ping_strikes,
        max_connection_age=keepalive.max_connection_age,
        max_connection_age_grace=keepalive.max_connection_age_grace,
        restricted=_restricted(settings.restricted_protocol),
        gate=gate,
        auditor=auditor,
        header_forward_pattern=_pattern(settings.header_forward_pattern),
        elsewhere=elsewhere,
        replica=replica,
        endings=endings,
        tracer=tracer,
    )

    def crashed(path: str, bug: Exception) -> None:
        # As a supervisor would tell of a child, though it has cost a call only.
        log(Event.CHILD_EXITED, level="error", call=path, reason=f"crashed: {bug!r}", exc_info=bug)

    return GrpcListener(
        services(server, options),
        options=options,
        tls=tls,
        on_crash=crashed,
        on_refused=refusing(log),
        uniform=uniform,
        room=room,
    )


def refusing(log: Log) -> Callable[[str, str], None]:
    """Return what logs the address of a client that is turned away, and why."""

    def refused(peer: str, reason: str) -> None:
        # Seen at the first verbose level: a client that is turned away over and over must not fill the log.
        log(Event.CONNECTION_REFUSED, level="debug", peer=peer, reason=reason)

    return refused


def _restricted(apis: Mapping[str, RestrictedHeader]) -> dict[Action, tuple[str, str]]:
    return {Action(api): (header.key, header.value) for api, header in apis.items()}


def _pattern(pattern: str) -> re.Pattern[str] | None:
    return compiled(pattern, re.IGNORECASE) if pattern else None


def address_of(sock: socket.socket) -> str:
    """Return where a socket listens: `host:port`, or `unix:PATH`."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return host_port(host, port)


class Frontend:
    """One listening socket, the listener that accepts from it, and the connections it has accepted."""

    def __init__(
        self, name: str, title: str, sock: socket.socket, listener: Listener[Any], *, log: Log
    ) -> None:
        self._name = name
        self._title = title
        self._sock = sock
        self._log = log
        self._listener = listener
        self._connections = Supervisor(intensity=Intensity(100, 1.0))
        self._draining = False
        self.port: int = 0  # of a Unix socket
        self.address = address_of(sock)
        if sock.family != socket.AF_UNIX:
            self.port = sock.getsockname()[1]

    def spec(self) -> ChildSpec:
        """Return the child spec: a supervisor of the connections and, after them, the listener."""
        supervisor = Supervisor(
            [self._connections.spec("connections"), ChildSpec("listener", self._listen)],
            strategy=Strategy.REST_FOR_ONE,
            intensity=Intensity(10, 10.0),
        )
        return supervisor.spec(self._name)

    async def _listen(self, ctx: ChildContext) -> None:
        ctx.publish(address=self.address)
        self._log(Event.LISTENER_OPENED, service=self._title, address=self.address)
        await self._listener.serve(self._sock, self._spawn, on_exhausted=self._exhausted, task_status=ctx)
        await ctx.stopping.wait()  # drained; the end is the tree's

    def _exhausted(self, failure: OSError) -> None:
        self._log(
            Event.LISTENER_EXHAUSTED,
            level="warning",
            service=self._title,
            address=self.address,
            error=failure.strerror,
        )

    def _spawn(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._connections.start_child_nowait(
            ChildSpec(name, functools.partial(_run_connection, run), restart=Restart.TEMPORARY)
        )

    def withdraw(self) -> None:
        """Have the clients of connections go elsewhere, and serve on."""
        self._listener.withdraw()

    async def drain(self) -> None:
        """Stop accepting and wait until the accepted requests are answered."""
        self._stop_accepting()
        await self._listener.wait_drained()

    def _stop_accepting(self) -> None:
        if not self._draining:
            self._draining = True
            self._listener.drain()
            self._sock.close()
            self._log(Event.LISTENER_CLOSED, service=self._title, address=self.address)

    async def give_up(self) -> None:
        """Wait briefly until clients have their answers; tell those without one that the server ends."""
        self._stop_accepting()
        with trio.move_on_after(_ANSWERS_WITHIN):
            await self._listener.wait_drained()
        self._listener.give_up()
        await self._listener.wait_drained()

    def close(self) -> None:
        """Close what is held here."""
        self._sock.close()
        self._listener.close()


async def _run_connection(run: Callable[[], Awaitable[None]], ctx: ChildContext) -> None:
    del ctx
    await run()
