"""Plays a script against a listener, in virtual time and over Unix sockets, and notes all that can be seen.

A Unix socket gives to one end at once what the other end sent. So only the script decides what happens,
and a script that is played twice is seen to go the same way, step by step.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import trio
import trio.testing

from actors.seams import threads
from actors.values.callers import Action
from actors.values.errors import TritiumError
from actors.values.requests import Endings, InferRequest, InferResponse
from actors.values.tracing.spans import Span, TraceBook, Traced, Tracer
from actors.values.tracing.spans import Trace as SpanTrace
from engine.server.tls import HTTP_1
from protocols.http.app import V2App
from protocols.http.listener import HttpListener, ListenerLimits
from protocols.http.options import V2Options
from protocols.http.parser import RequestLimits
from protocols.http.patience import ConnectionLimits
from protocols.transport import readiness
from protocols.transport.receiving import ReceivingRoom
from tests.protocols.fakes import FakeServer
from tests.protocols.paths import steps as s
from tests.protocols.paths.steered_models import OVERWRITTEN, Bug, How, Ledger, steered_models
from tests.protocols.paths.written import KEY
from tests.support.callers import KnownCaller, ListedGate
from tests.support.certificates import Authority

PATIENCE = 100_000.0
"""Seconds of virtual time after which a script has hung."""

SMALL = 4_608
"""Bytes of a small socket buffer; the kernel allows no fewer."""

Way = Callable[[V2App], dict[str, Any]]
"""Returns what a listener gets beside, or in place of, the application."""

_numbers = itertools.count()
T = TypeVar("T")


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return what a server and its clients speak TLS with."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        ours = authority.tls_of("server", HTTP_1).context
        return ours, ssl.create_default_context(cafile=str(authority.root))


class Client:
    """One connection after the other of one client, to which nothing happens by itself."""

    def __init__(self, number: int, address: str, *, tls: bool = False) -> None:
        self.number = number
        self.reading = True
        self.ends: list[str] = []  # how each of its connections ended
        self.received = bytearray()  # on its present connection
        self.gone: list[bytes] = []  # what it received on earlier ones
        self.unsent = bytearray()  # what the socket has not taken
        self.back = bytearray()  # what it holds back
        self._address = address
        self._tls = tls
        self._socket: socket.socket | None = None
        self._written = 0
        self._shut = False

    def name(self) -> bytes:
        """Return the name of the next request."""
        self._written += 1
        return b"c%d-%03d" % (self.number, self._written)

    def connect(self) -> socket.socket:
        """Return a socket on which to send."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(self._address)
            self._socket.setblocking(False)
            if self._tls:
                _, theirs = contexts()
                self._socket = theirs.wrap_socket(
                    self._socket, server_hostname="localhost", do_handshake_on_connect=False
                )
            self._shut = False
        return self._socket

    def send(self, octets: bytes) -> None:
        """Send as much as the socket takes; the rest follows."""
        self.connect()
        self.unsent += octets
        self.push()

    def push(self) -> bool:
        """Send of what is left; whether that made any difference."""
        if not self.unsent or self._socket is None or self._shut:
            return False
        try:
            count = self._socket.send(self.unsent)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.unsent.clear()
            return True
        del self.unsent[:count]
        return True

    def take(self, size: int) -> bool:
        """Receive at most `size` bytes; whether that made any difference."""
        if self._socket is None:
            return False
        try:
            part = self._socket.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except (ConnectionResetError, ssl.SSLError):
            self._end("reset")
            return True
        if not part:
            self._end("end")
        self.received += part
        return True

    def shut(self) -> None:
        """End the sending side, once everything was sent."""
        if self._socket is not None and not self._shut:
            self.push()
            self._shut = True
            self.unsent.clear()
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def leave(self) -> None:
        """Close."""
        if self._socket is not None:
            self._end("left")

    def _end(self, how: str) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None
        self.ends.append(how)
        self.gone.append(bytes(self.received))
        self.received.clear()
        self.unsent.clear()
        self.back.clear()

    @property
    def ended(self) -> bool:
        """Whether it has no connection."""
        return self._socket is None

    def seen(self) -> tuple[Any, ...]:
        """Return what it has seen so far."""
        return tuple(self.gone), bytes(self.received), tuple(self.ends)


@dataclass
class Trace:
    """What could be seen behind each step, and at the end."""

    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    answers: list[list[bytes]] = field(default_factory=list)  # of each client, by connection
    wrong: list[str] = field(default_factory=list)  # rules that were broken, whatever the path


class SmallSockets:
    """A listening socket whose connections take few bytes before their client reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one connection."""
        accepted, address = self._sock.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        return accepted, address


class Inline:
    """Threads of a run in which threads would make time jump: work is done on the spot."""

    async def run_sync(self, function: Callable[..., T], *args: object, **_: object) -> T:
        """Do it."""
        await trio.lowlevel.checkpoint()
        return function(*args)


class TracedAll(Tracer, TraceBook):
    """Traces every request, and keeps what frontends note of each: the request, and moments in order."""

    def __init__(self) -> None:
        super().__init__()
        self.active = True
        self.open: dict[SpanTrace, str] = {}  # by trace: the id of its request
        self.over: list[tuple[str, str]] = []

    def begin(self, request: Traced, now: float, *, parent: str = "", state: str = "") -> Span | None:
        trace = SpanTrace(self, None)
        self.open[trace] = request.id
        return trace.open(request, now)

    def forget(self, request: Traced) -> None:
        assert request.span is not None
        del self.open[request.span.trace]
        request.span.trace.over = True
        request.span = None

    def next_number(self) -> int:
        return 1

    def chance(self, bits: int) -> int:
        return bits

    def take(self, trace: SpanTrace) -> None:
        self.over.append((self.open.pop(trace), " ".join(name for name, _ in trace.moments)))


class Stage:
    """A listener and all that is around it."""

    def __init__(self, house: s.House, path: Way) -> None:
        self.ledger = Ledger()
        self.models = steered_models(self.ledger)
        self.busy = next(each for each in self.models if each.spec.name == "busy")
        self.callers = [_caller("good", 10**9), _caller("anonymous", 1)]
        self.finished: list[str] = []
        self.traces = TracedAll()
        self.crashes: list[str] = []
        self.scopes: list[trio.CancelScope] = []  # of connections
        self.room = ReceivingRoom(house.room)
        self.app = V2App(_server(self.models).server, options=self._options(house))
        self.listener = HttpListener(
            limits=_limits(house),
            admit=self.app.admit,
            is_welcome=lambda path: path.startswith(b"/v2/health"),
            room=self.room,
            tls=(lambda: contexts()[0]) if house.tls else None,
            **{"app": self.app, **path(self.app)},
        )
        self.trace = Trace()
        self.drained = False
        self._address = f"\0tritium-paths-{os.getpid()}-{next(_numbers)}"
        self.clients = [Client(number, self._address, tls=house.tls) for number in range(s.CLIENTS)]

    def _options(self, house: s.House) -> V2Options:
        good, anonymous = self.callers
        return V2Options(
            max_input_size=house.longest_text,
            max_body_size=house.longest_body,
            restricted={Action.INFERENCE: ("X-Key", "open")} if house.restricted else {},
            header_forward_pattern=re.compile("^x-forward", re.IGNORECASE) if house.forwards else None,
            server_timing=house.server_timing,
            gate=ListedGate({KEY.encode(): good, b"": anonymous}) if house.gate else None,
            endings=Endings(self._note_finished),
            room=self.room,
            tracer=self.traces,
        )

    def _note_finished(self, request: InferRequest, outcome: InferResponse | TritiumError, peer: str) -> None:
        self.finished.append(f"{request.id} {type(outcome).__name__} {peer}")

    async def play(self, house: s.House, steps: tuple[s.Step, ...]) -> None:
        """Play all steps, and then let everything come to its end."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(self._address)
            sock.listen(100)
            listening: Any = SmallSockets(sock) if house.small_sockets else sock
            async with trio.open_nursery() as nursery:

                def spawn(name: str, run: Callable[[], Awaitable[None]]) -> None:
                    nursery.start_soon(self._supervised, run, name=name)

                await nursery.start(self.listener.serve, listening, spawn)
                for step in steps:
                    await self.step(step)
                    await self.settle()
                    self.note(repr(step))
                await self.end()
                nursery.cancel_scope.cancel()
        self.listener.close()

    async def _supervised(self, run: Callable[[], Awaitable[None]]) -> None:
        scope = trio.CancelScope()
        self.scopes.append(scope)
        try:
            with scope:
                await run()
        except Exception as crash:  # noqa: BLE001  # as a supervisor does
            self.crashes.append(repr(crash))

    # Steps

    async def step(self, step: s.Step) -> None:
        """Do one step."""
        match step:
            case s.Write():
                await self._write(step)
            case s.Nothing():
                pass
            case s.Wait(seconds):
                await trio.sleep(seconds)
            case s.Together(steps):
                for each in steps:
                    await self.step(each)
            case s.Answer(which, how):
                self.answer(which, how)
            case s.Fill(full):
                if full:
                    self.busy.shut = True
                else:
                    self.busy.open()
            case s.Tell("kill"):
                for scope in self.scopes:
                    scope.cancel()
            case s.Tell(what):
                self.drained = self.drained or what == "drain"
                getattr(self.listener, what)()
            case _:
                _do(self.clients[step.client], step)

    async def _write(self, step: s.Write) -> None:
        client = self.clients[step.client]
        signed = [each.signed(client.name()) for each in step.requests]
        octets = bytes(client.back) + b"".join(signed)
        kept = max(0, len(octets) - step.back)
        sent, client.back = octets[:kept], bytearray(octets[kept:])
        if self.drained:
            return  # none is accepted
        pieces = min(20, len(sent) // step.piece) if step.piece else 0
        for at in range(pieces):
            client.send(sent[at * step.piece : (at + 1) * step.piece])
            await self.settle()
            if client.ended:
                return
        client.send(sent[pieces * step.piece :])

    def answer(self, which: int, how: How) -> None:
        """Have a model answer one of the requests that it has."""
        held = sorted(self.ledger.held)
        if held:
            self.ledger.answer(held[which % len(held)], how)

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        while True:
            await trio.testing.wait_all_tasks_blocked()
            moved = False
            for client in self.clients:
                moved |= client.push()
                if client.reading:
                    while client.take(65_536):
                        moved = True
            if not moved:
                return

    # What can be seen

    def note(self, step: str) -> None:
        """Note what can be seen behind a step."""
        now = self.listener.statistics()
        counts = self.listener.counts()
        self.trace.seen.append(
            (
                step,
                {
                    "clients": [client.seen() for client in self.clients],
                    "phases": {phase.value: count for phase, count in now.phases.items()},
                    "buffered": now.buffered,
                    "accepted": now.accepted,
                    "connections": counts,
                    "submitted": sorted(self.ledger.submitted),
                    "cancelled": sorted(self.ledger.cancelled),
                    "released": dict(sorted(self.ledger.released.items())),
                    "held": sorted(self.ledger.held),
                    "finished": sorted(self.finished),
                    "traces": sorted(self.traces.over),
                    "crashes": sorted(self.crashes),
                    "room": self.room.counts(),
                    "callers": [(caller.running, sorted(caller.bytes)) for caller in self.callers],
                },
            )
        )

    async def end(self) -> None:
        """Let everything come to its end: all models answer, all clients read, the server drains."""
        for client in self.clients:
            client.reading = True
            client.back.clear()
        self.busy.open()
        await self.settle()
        while self.ledger.held:
            self.answer(0, How.BORROWED)
            await self.settle()
        self.note("all is answered")
        self.listener.drain()
        drained = False
        for _ in range(400):
            with trio.move_on_after(1.0):
                await self.listener.wait_drained()
                drained = True
                break
            await self.settle()
            while self.ledger.held:
                self.answer(0, How.BORROWED)
                await self.settle()
        await self.settle()
        self.note("the server has drained")
        self._judge(drained)

    def _judge(self, drained: bool) -> None:
        wrong = self.trace.wrong
        wrong += self.ledger.violations
        wrong += [f"a trace never ends: {each}" for each in self.traces.open.values()]
        if not drained:
            wrong.append(f"it does not drain: {self.listener.statistics()}")
        wrong += [f"released {n} times: {key}" for key, n in self.ledger.released.items() if n != 1]
        wrong += [
            f"{caller.name} has {caller.running} under way" for caller in self.callers if caller.running
        ]
        if held := self.room.counts().held:
            wrong.append(f"{held} bytes of the room are never given back")
        if buffered := self.listener.statistics().buffered:
            wrong.append(f"{buffered} bytes wait, and no connection has them")
        wrong += [
            f"unexpected crash: {each}"
            for each in self.crashes
            if not each.startswith("Bug(") and "object of type 'int'" not in each
        ]
        for client in self.clients:
            answers = [*client.gone, bytes(client.received)]
            self.trace.answers.append(answers)
            if any(bytes([OVERWRITTEN]) * 4 in each for each in answers):
                wrong.append(f"client {client.number} was sent memory that had been given back")
            wrong += _out_of_order(client.number, answers)


def _out_of_order(number: int, answers: list[bytes]) -> Iterator[str]:
    """Tell of a connection on which requests are not answered one after the other, each once."""
    for answer in answers:
        named = re.findall(rb'"id":"c(\d)-(\d+)"', answer)
        if any(int(of) != number for of, _ in named):
            yield f"client {number} got another client's answer: {named}"
        places = [int(place) for _, place in named]
        if places != sorted(places):
            yield f"client {number} was answered out of order: {places}"


def _do(client: Client, step: s.Go | s.Pause | s.Take | s.Resume | s.Shut | s.Leave) -> None:
    match step:
        case s.Go(_, size):
            part = bytes(client.back[:size])
            del client.back[:size]
            if part:
                client.send(part)
        case s.Pause():
            client.reading = False
        case s.Take(_, size):
            client.take(size)
        case s.Resume():
            client.reading = True
        case s.Shut():
            client.shut()
        case s.Leave():
            client.leave()


def _caller(name: str, most: float) -> KnownCaller:
    models = ("echo", "held", "texts", "busy", "marked", "fails", "refuses", "crashes", "streams")
    return KnownCaller(name, {(Action.INFERENCE, model) for model in models}, most=most)


def _server(models: Any) -> FakeServer:
    """Return a server that knows one more model, which can't be looked up."""
    server = FakeServer(models)
    resolve = server.models.resolve

    def resolving(name: str, version: str = "") -> Any:
        if name == "unresolvable":
            raise Bug("resolve")
        return resolve(name, version)

    server.models.resolve = resolving  # type: ignore[method-assign]  # a bug, on purpose
    return server


def _limits(house: s.House) -> ListenerLimits:
    return ListenerLimits(
        max_connections=house.most_connections,
        connection=ConnectionLimits(
            request=RequestLimits(max_head_size=65_536, max_body_size=house.longest_body), grace=20.0
        ),
    )


def played(script: s.Script, path: Way) -> Trace:
    """Play a script on one path, and return what could be seen."""
    stages: list[Stage] = []

    async def main() -> None:
        threads.give(Inline())
        with trio.fail_after(PATIENCE):
            stages.append(Stage(script.house, path))
            await stages[0].play(script.house, script.steps)

    oldest = 0 if script.house.portions else readiness.DIRECT
    with mock.patch.object(readiness, "DIRECT", oldest):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return stages[0].trace
