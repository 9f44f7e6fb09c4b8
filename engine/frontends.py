"""Listeners as children of the tree: the sockets are held here, so that a listener may crash and come back."""

from __future__ import annotations

import errno
import functools
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from actors.interfaces import Server
from actors.messages.events import Event, Log
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, Restart, Strategy
from actors.supervision.supervisor import Supervisor
from engine.observability.requests import RequestHook
from engine.settings import Settings
from protocols.http.app import V2App, V2Options
from protocols.http.connection import Application
from protocols.http.listener import HttpListener
from protocols.http.routes import Category

BACKLOG: Final = 1024  # as Triton's


class AddressInUse(Exception):
    """A listener's address is taken, or not ours. The message is Triton's."""


def bind(address: str, port: int) -> socket.socket:
    """Return a listening socket. Raises AddressInUse."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=BACKLOG, reuse_port=False)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"Socket '{address}:{port}' already in use ") from error
        raise AddressInUse(f"Socket '{address}:{port}' can't be opened: {error.strerror}") from error


def v2_app(settings: Settings, server: Server, *, on_finished: RequestHook | None) -> V2App:
    """Return the v2 application with what the settings say of it."""
    restricted = {
        Category(api): (header.key, header.value) for api, header in settings.http_restricted_api.items()
    }
    pattern = settings.http_header_forward_pattern
    return V2App(
        server,
        options=V2Options(
            max_input_size=settings.http_max_input_size,
            restricted=restricted,
            header_forward_pattern=re.compile(pattern, re.IGNORECASE) if pattern else None,
            on_finished=on_finished,
        ),
    )


class Frontend:
    """One listening socket, the listener that accepts from it, and the connections it has accepted."""

    def __init__(self, name: str, title: str, sock: socket.socket, app: Application, *, log: Log) -> None:
        self._name = name
        self._title = title
        self._sock = sock
        self._log = log
        self._listener = HttpListener(app)
        self._connections = Supervisor(intensity=Intensity(100, 1.0))
        host, port = sock.getsockname()[:2]
        self.address = f"{host}:{port}"
        self.port: int = port

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
        await self._listener.serve(self._sock, self._spawn, task_status=ctx.task_status)
        await ctx.stopping.wait()  # drained; the end is the tree's

    def _spawn(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._connections.start_child_nowait(
            ChildSpec(name, functools.partial(_run_connection, run), restart=Restart.TEMPORARY)
        )

    async def drain(self) -> None:
        """Stop accepting and wait until the requests in hand are answered."""
        self._listener.drain()
        self._sock.close()
        self._log(Event.LISTENER_CLOSED, service=self._title, address=self.address)
        await self._listener.wait_drained()

    def close(self) -> None:
        """Close what is held here."""
        self._sock.close()
        self._listener.close()


async def _run_connection(run: Callable[[], Awaitable[None]], ctx: ChildContext) -> None:
    del ctx
    await run()
