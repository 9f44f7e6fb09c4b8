"""The tree under a foreign server, started and stopped by an ASGI lifespan on either event loop.

On trio the tree runs in a system task of the same loop. On asyncio it runs in a trio loop on a thread of its
own, and each request crosses over and back. Either way the tree has no parent but the process. If the tree
gives up, the process drains and ends with a status that is not 0, instead of answering without the tree.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from typing import IO, Any

import outcome
import trio

from actors.values.events import Event
from engine.core.ending import end
from engine.observability.announcing import Announcer, hear_python
from engine.observability.events import EventLog
from engine.observability.logs import LogSink, configure_logging, open_sink
from engine.observability.openness import exposures, openness
from engine.observability.running_logs import RunningLogs
from engine.observability.starting.showing import StartDisplay
from engine.processes.collecting import collect_garbage
from engine.processes.kernel import applicable, tell_what_lacks, this_kernel
from engine.processes.process import allow_many_files, in_the_way, leaves, settle_garbage_collection
from engine.repository.advice import advice_on_repositories
from engine.server.running import RunningServer, ServerFailed
from engine.server.sockets import AddressInUse
from engine.server.tree import open_server
from engine.settings.settings import Settings, SettingsError
from protocols.http.admission import Admission
from protocols.http.fields import put_client
from protocols.transport.proxies import TrustedProxies

Message = dict[str, Any]

ONE_PROCESS = (
    "Tritium was started in more than one worker process. One process serves all models and uses the other cores through "
    "workers of its own: start hypercorn with --workers 1 (its default)"
)


NOT_OUR_TLS = (
    "--http-use-ssl and --http-use-ssl-mutual are for `tritium serve`. Here another server accepts HTTP's"
    " connections, and its TLS is its own: give hypercorn --certfile and --keyfile, and --ca-certs with"
    " --verify-mode for clients' certificates"
)


_BY_VARIABLES = (
    "under another server, each flag is an environment variable, such as TRITIUM_MODEL_REPOSITORY=DIR"
)


_NO_PROXY_HEADERS = (
    "--proxy-protocol=http has no effect on HTTP under another server, which reads what comes first on its"
    " connections"
)


_NO_HTTP_AGE = (
    "--http-max-connection-age has no effect on HTTP under another server, whose connections they are"
)


class StartupFailed(Exception):
    """The tree does not stand. The message is for the operator."""


class HostedTree:
    """A server tree without an HTTP listener of its own. `run` is to be run once, in a trio loop."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._stop = trio.Event()
        self._lock: IO[bytes] | None = None
        self._sink: LogSink | None = None
        self._logs: RunningLogs | None = None
        self._announcer: Announcer | None = None
        self.running: RunningServer | None = None
        self._proxies: TrustedProxies | None = None
        # Why the tree ended without being asked to.
        self.failure = ""

    def prepare(self) -> Settings:
        """Read the settings and take what only one process may have. Raises StartupFailed."""
        try:
            settings = Settings.from_environ(self._environ)
            self._sink = open_sink(settings.log)
        except SettingsError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise StartupFailed(f"{error.message}{hint}; {_BY_VARIABLES}") from error
        if settings.http_tls is not None:  # serving without it would deceive
            raise StartupFailed(NOT_OUR_TLS)
        self._lock = _only_process()
        configure_logging(settings.log, self._sink)
        self._logs = RunningLogs(settings.log, partial(configure_logging, sink=self._sink), EventLog())
        self._announcer = Announcer(self._logs, self._sink, EventLog())
        if settings.log.format == "json":
            hear_python(EventLog())
        allow_many_files()
        return settings

    async def run(self, settings: Settings, started: Callable[[], object]) -> None:
        """Run the tree until `stop`, and call `started` once it is up.

        Raises StartupFailed if it does not start.
        """
        kernel = this_kernel()
        found = replace(settings, sandbox=applicable(settings.sandbox, kernel))
        display = None if self._announcer is None else self._announcer.display()
        try:
            async with (
                open_server(found, http=False, environ=self._environ, logs=self._logs) as running,
                trio.open_nursery() as life,
            ):
                self.running = running
                self._proxies = settings.connections.proxies
                for warning in _warnings(settings):
                    running.log(Event.SERVER_STARTING, level="warning", warning=warning)
                tell_what_lacks(settings.sandbox, kernel, running.log)
                running.log(Event.SERVER_OPENED, **openness(running.settled(), http=False))
                started()
                if display is not None:
                    life.start_soon(display.run, running.known, running.is_loading)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_loading, running, display, life)
                    nursery.start_soon(self._watch_tree, running)
                    await self._stop.wait()
                    nursery.cancel_scope.cancel()
                await self._serve_on(running)
                if not await running.drain():
                    self.failure = self.failure or "Exit timeout expired. Exiting immediately."
                life.cancel_scope.cancel()
        except* (AddressInUse, ServerFailed) as group:
            self.failure = "; ".join(map(str, leaves(group)))
        finally:
            self._close()
        if self.running is None:
            raise StartupFailed(self.failure)

    async def _serve_on(self, running: RunningServer) -> None:
        """Have our own listeners serve for the drain delay.

        HTTP's sockets are the foreign server's, and closed by now.
        """
        delay = running.settings.drain_delay
        others = (running.grpc, running.sagemaker, running.vertex)
        if delay and any(others) and not self.failure and running.catalog.finished.is_set():
            running.withdraw()
            with trio.move_on_after(delay):
                await running.wait_stopped()

    def _close(self) -> None:
        if self._sink is not None:
            self._sink.close()
        if self._lock is not None:
            self._lock.close()

    def stop(self) -> None:
        """Have `run` drain and return. On the tree's own thread."""
        self._stop.set()

    async def handle(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        """Answer one HTTP request. On the tree's own thread."""
        assert self.running is not None
        self.put_client(scope)
        await self.running.app(scope, receive, send)

    def put_client(self, scope: Message) -> None:
        """Note whose request it is that a trusted proxy brings. Doing so twice changes nothing."""
        if self._proxies is not None:
            put_client(scope, self._proxies)

    async def _watch_loading(
        self, running: RunningServer, display: StartDisplay | None, life: trio.Nursery
    ) -> None:
        await running.wait_loaded()
        if display is not None:
            display.sum_up(await running.loaded(took=display.took))
            display.end_start()
        settle_garbage_collection()
        life.start_soon(collect_garbage)
        if failure := await running.start_failure():
            self._give_up(str(failure))

    async def _watch_tree(self, running: RunningServer) -> None:
        await running.wait_stopped()
        self._give_up("the supervision tree gave up")

    def _give_up(self, why: str) -> None:
        """Have the foreign server shut down as if it had been told to; `end_process` then gives the status.

        The process to tell is the one that handles signals. Where there is a master, hypercorn's workers do
        not.
        """
        self.failure = why
        EventLog()(Event.SERVER_FAILED, level="error", error=why)
        master = parent_process()
        os.kill(os.getpid() if master is None or master.pid is None else master.pid, signal.SIGTERM)

    def end_process(self) -> None:
        """At the end of the lifespan, make a failure the exit status; the foreign server can't do that."""
        if self.failure:
            end()


def _warnings(settings: Settings) -> tuple[str, ...]:
    found = (
        *settings.warnings,
        *in_the_way(),
        *advice_on_repositories(settings),
        *exposures(settings, http=False),
    )
    if "http" in settings.connections.proxy_protocol:
        found = (*found, _NO_PROXY_HEADERS)
    if settings.connections.max_http_age < math.inf:
        found = (*found, _NO_HTTP_AGE)
    if not settings.drain_delay:
        return found
    http = (
        "--drain-delay-secs has no effect on HTTP under another server, which closes its listening sockets at SIGTERM: have"
        " a preStop hook wait before that"
    )
    return (*found, http)


def _only_process() -> IO[bytes] | None:
    """Take the one place under a server that starts worker processes. Raises StartupFailed if it is taken.

    The place is a lock on a file that exists once for each such server and goes with it.
    """
    master = parent_process()
    if master is None:
        return None
    lock = open(f"/proc/{master.pid}/environ", "rb")  # noqa: SIM115  # held until the tree has ended
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise StartupFailed(ONE_PROCESS) from error
    return lock


class SameLoop:
    """Hosts the tree in the trio loop that the foreign server runs on."""

    def __init__(self, tree: HostedTree) -> None:
        self._tree = tree
        self._ended = trio.Event()
        self.handle = tree.handle

    async def start(self) -> None:
        """Start the tree; returns when it stands. Raises StartupFailed."""
        settings = self._tree.prepare()
        standing = trio.Event()
        results: list[outcome.Outcome[None]] = []

        async def run() -> None:
            results.append(await outcome.acapture(self._tree.run, settings, standing.set))
            standing.set()
            self._ended.set()

        trio.lowlevel.spawn_system_task(run)
        await standing.wait()
        if results:
            results[0].unwrap()

    async def stop(self) -> None:
        """Drain and end the tree."""
        self._tree.stop()
        await self._ended.wait()


class OwnLoop:
    """Hosts the tree in a trio loop on a thread of its own. Made and used from the foreign server's loop."""

    def __init__(self, tree: HostedTree) -> None:
        self.tree = tree
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._thread: threading.Thread | None = None

    def start(self, report: Callable[[BaseException | None], object], ended: Callable[[], object]) -> None:
        """Start the thread.

        On that thread, `report` is told that the tree is up or why not, and `ended` that it has ended.
        """
        settings = self.tree.prepare()

        async def main() -> None:
            async with trio.open_nursery() as self._nursery:
                self._token = trio.lowlevel.current_trio_token()
                try:
                    await self.tree.run(settings, lambda: report(None))
                except StartupFailed as error:
                    report(error)
                finally:
                    self._nursery.cancel_scope.cancel()

        def thread() -> None:
            try:
                trio.run(main)
            except BaseException as error:
                # Heard only by a caller that still waits for the start.
                report(error)
                raise
            finally:
                ended()

        self._thread = threading.Thread(target=thread, name="tritium", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have the tree drain and end. From any thread."""
        self.soon(self.tree.stop)

    def exchange(self, scope: Message, body: bytes, deliver: Callable[[Message | None], object]) -> Crossing:
        """Have the tree answer a request.

        `deliver` is called on its thread with each message of the answer, and at last with None. There are no
        messages if the client no longer wants the answer, and too few if making it failed half-way.
        """
        crossing = Crossing(self, scope, body, deliver)
        self.soon(crossing.begin)
        return crossing

    def admit(self, scope: Message, tell: Callable[[Admission], object]) -> None:
        """Let the application say whether a request's body may come; calls `tell` on the tree's thread."""

        def ask() -> None:
            assert self.tree.running is not None
            self.tree.put_client(scope)
            tell(self.tree.running.app.admit_scope(scope))

        self.soon(ask)

    def soon(self, function: Callable[[], object]) -> None:
        """Call `function` on the tree's thread, unless it has ended."""
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Start a task on the tree's thread, from there."""
        assert self._nursery is not None
        self._nursery.start_soon(run)


class Crossing:
    """One request that crossed over to the tree's thread; the `tritium.disconnect` hook of that request."""

    def __init__(
        self, loop: OwnLoop, scope: Message, body: bytes, deliver: Callable[[Message | None], object]
    ) -> None:
        self._loop = loop
        self._scope = {**scope, "extensions": {"tritium.response": {}, "tritium.disconnect": self}}
        self._body: bytes | None = body
        self._deliver = deliver
        self._begun = False  # part of the answer has been delivered
        self._taken: trio.Event | None = None  # by the foreign server: the part delivered last
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None

    def begin(self) -> None:
        """On the tree's thread: start answering."""
        self._loop.spawn(self._run)

    def leave(self) -> None:
        """From any thread: the client has gone."""
        self._loop.soon(self._left)

    def taken(self) -> None:
        """From any thread: the part of a streamed answer that was delivered last has been written."""
        self._loop.soon(self._let_on)

    def _left(self) -> None:
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
        self._let_on()

    def _let_on(self) -> None:
        if self._taken is not None:
            self._taken.set()

    async def _run(self) -> None:
        try:
            await self._loop.tree.handle(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001
            # The outer edge: the crash of one request is answered and goes no further.
            sys.stderr.write(f"error: a request failed: {error!r}\n")
            if not self._begun:
                self._answer(
                    500, [(b"content-type", b"application/json")], b'{"error":"internal server error"}'
                )
        finally:
            self._deliver(None)

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "tritium.response":
            body = b"".join(message["body"])
            if message["release"] is not None:
                message["release"]()
            self._answer(message["status"], message["headers"], body)
        elif not self.disconnected:
            await self._stream(message)

    def _answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        headers = [*headers, (b"content-length", str(len(body)).encode())]
        self._begun = True
        self._deliver({"type": "http.response.start", "status": status, "headers": headers})
        self._deliver({"type": "http.response.body", "body": body, "more_body": False})

    async def _stream(self, message: Message) -> None:
        """Deliver a message of a streamed answer; wait until a part that has others behind it is written."""
        self._begun = True
        if not message.get("more_body", False):
            self._deliver(message)
            return
        self._taken = trio.Event()
        self._deliver(message)
        await self._taken.wait()
