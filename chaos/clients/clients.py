"""All clients of a run: what they send, under which number, and its record."""

from __future__ import annotations

import random
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import trio

from chaos.clients.grpc import GrpcClient
from chaos.clients.http import KEPT, HttpClient
from chaos.clients.mix import ORDINARY, Arrival, Kind, Step, arrival
from chaos.record.history import End, History
from chaos.record.outcome import WENT_AWAY, now
from chaos.record.records import Invoke, Ok, Phase, Unknown, Wire
from chaos.workload.answers import kind_of

PATIENCE: Final = 30.0
"""Seconds after which a client gives up waiting."""

LASTING_RATE: Final = 10.0
"""Requests a second of the client with the lasting stream; they are not part of the load's rate."""

# What half a minute without an answer takes at 500 requests a second.
_CONNECTIONS: Final = 16384

Ask = Callable[[Invoke], Awaitable[End]]


class Clients:
    """Sends requests to one server and writes each of them down.

    `phase` is the phase of the requests that begin from now on, `sent` is how many there were.
    """

    def __init__(
        self, history: History, http: HttpClient, grpc: GrpcClient, *, kinds: Sequence[Kind], seed: int
    ) -> None:
        self._history = history
        self._http = http
        self._grpc = grpc
        self._kinds = {kind.model: kind for kind in kinds}
        self._draw = random.Random(seed)
        self.sent = 0
        self._sequences = 0
        self.phase: Phase = "calm"

    def retarget(self, http_port: int, grpc_port: int) -> None:
        """Send what comes from now on to other ports, because the server was started again."""
        self._http.retarget(http_port)
        self._grpc.retarget(grpc_port)

    @property
    def surplus(self) -> int:
        """Bytes over HTTP and messages over gRPC that no request had asked for."""
        return self._http.surplus + self._grpc.surplus

    # -- the load

    async def load(self, arrivals: Iterable[Arrival], *, begin: float, until: float) -> None:
        """Send the requests of users that arrive from `begin` on and before `until` (records' time).

        Returns when all requests are answered. Users do not wait for each other: a user that was due while
        the loop was busy comes late, but comes.
        """
        async with trio.open_nursery() as nursery:
            for user in arrivals:
                due = begin + user.at
                if due >= until:
                    break
                await _sleep_until(due)
                nursery.start_soon(self._serve, user, due)

    async def last(self, *, begin: float, until: float) -> None:
        """Be one client that asks `echo` from `begin` until `until` (records' time).

        It uses one stream, which lasts as long as nothing ends it. It asks when it has its answer, at most
        `LASTING_RATE` times a second.
        """
        await _sleep_until(begin)
        draw = random.Random(begin)
        while now() < until:
            earliest = now() + 1 / LASTING_RATE
            step = Step(model="echo", protocol="grpc", value=draw.randint(1, 100_000))
            await self.written(self.invoke(step), self._grpc.ask_lasting)
            await _sleep_until(earliest)

    async def _serve(self, user: Arrival, due: float) -> None:
        """Send the steps of a user.

        A sequence with a step that went wrong is over, and the next step begins another one.
        """
        sequence = index = 0
        for place, step in enumerate(user.steps):
            if place:
                due = max(due + step.gap, now())
                await _sleep_until(due)
            if user.sequence and not index:
                sequence = self._next_sequence()
            invoke = replace(
                self.invoke(step, due=due),
                sequence=sequence,
                index=index,
                start=user.sequence and not index,
                end=user.sequence and place == len(user.steps) - 1,
            )
            good = isinstance(await self.written(invoke, self.ask), Ok)
            index = index + 1 if good else 0

    def _next_sequence(self) -> int:
        self._sequences += 1
        return self._sequences

    # -- single requests

    async def send(
        self,
        model: str,
        *,
        poison: str = "",
        protocol: Wire = "http",
        priority: int = 0,
        tenant: str = "",
        by: int = 0,
    ) -> End:
        """Send one request (to a sequence model: a sequence of one) and return what came of it.

        `poison` is an input of the models of `chaos.workload`. Decoupled models are asked by gRPC whatever
        `protocol` says. `by` is the fault that sends the request. Raises ValueError for an unknown model or
        poison.
        """
        kind = self._kinds.get(kind_of(model)) or Kind(model=model)
        step = arrival(replace(kind, steps=None), 0.0, self._draw).steps[0]
        wire: Wire = "grpc" if kind.parts else protocol
        step = replace(step, model=model, protocol=wire, priority=priority, tenant=tenant, deadline=None)
        invoke = replace(self.invoke(step), poison=poison, by=by)
        if kind.steps:
            invoke = replace(invoke, sequence=self._next_sequence(), start=True, end=True)
        return await self.written(invoke, self.ask)

    def invoke(self, step: Step, *, due: float | None = None) -> Invoke:
        """Return the record of a request that is about to be sent, under the next number."""
        self.sent += 1
        at = now()
        return Invoke(
            t=at,
            n=self.sent,
            id=f"r{self.sent}",
            model=step.model,
            protocol=step.protocol,
            phase=self.phase,
            value=step.value,
            parts=step.parts,
            deadline=at + step.deadline if step.deadline is not None else None,
            priority=step.priority,
            tenant=step.tenant,
            due=due,
        )

    async def written(self, invoke: Invoke, ask: Ask) -> End:
        """Write a request down, have `ask` send it, and write down its outcome, whatever happens."""
        self._history.begin(invoke)
        try:
            end = await ask(invoke)
        except BaseException as error:
            reason = f"{WENT_AWAY}: {type(error).__name__}"
            self._history.end(Unknown(t=now(), n=invoke.n, reason=reason))
            raise
        self._history.end(end)
        return end

    async def ask(self, invoke: Invoke) -> End:
        """Send a request that was written down, and return what came of it."""
        if invoke.protocol == "http":
            return await self._http.ask(invoke)
        kind = self._kinds.get(kind_of(invoke.model))
        return await self._grpc.ask(invoke, decoupled=bool(kind and kind.parts))


@asynccontextmanager
async def open_clients(
    history: History,
    http_port: int,
    grpc_port: int,
    *,
    kinds: Sequence[Kind] = ORDINARY,
    seed: int = 0,
    patience: float = PATIENCE,
) -> AsyncIterator[Clients]:
    """Have clients of a server around the block.

    `kinds` says which models are decoupled or have sequences. What the block raises comes out in an exception
    group, because there is a nursery around it.
    """
    _allow_many_connections()
    http = HttpClient(http_port, patience=patience)
    grpc = GrpcClient(grpc_port, patience=patience)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tidy, http)
            yield Clients(history, http, grpc, kinds=kinds, seed=seed)
            nursery.cancel_scope.cancel()
    finally:
        http.close()
        grpc.close()


async def _tidy(http: HttpClient) -> None:
    while True:
        await trio.sleep(KEPT / 4)
        http.tidy()


async def _sleep_until(due: float) -> None:
    """Sleep until a record's time. If that is past, still give way to other tasks."""
    await trio.sleep(max(0.0, due - now()))


def _allow_many_connections() -> None:
    """Each HTTP request under way has a connection of its own, and a server that hangs has many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _CONNECTIONS)), hard))
