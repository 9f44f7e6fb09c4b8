"""One fault at a time against a real server under a small load, and the outcome of every request."""

import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from chaos.clients.clients import Clients, open_clients
from chaos.clients.mix import ORDINARY, arrivals
from chaos.faults.base import Fault, Injection, Stage, Trouble
from chaos.faults.certificates import served_files
from chaos.faults.collector import tracing_flags
from chaos.record.history import History
from chaos.record.outcome import now
from chaos.record.records import Excuse, Fail, Invoke, Ok, Record, Unknown, read_records
from chaos.subject.sabotage import SabotageClient
from chaos.subject.server import LogLines, Server, served
from chaos.workload.answers import expected
from chaos.workload.control import Control
from chaos.workload.repository import write_repository

RATE = 40.0  # requests a second


def bare_stage(folder: Path = Path(), **given: Any) -> Stage:
    """A stage with only so much on it."""
    nothing: dict[str, Any] = dict.fromkeys(("server", "sabotage", "control", "send"))
    return Stage(**{**nothing, "repository": folder / "models", "folder": folder, **given})


@dataclass
class Bench:
    """A server, its load, and everything that a fault can act on."""

    stage: Stage
    server: Server
    clients: Clients
    folder: Path
    injections: list[Injection] = field(default_factory=list)

    async def strike(self, fault: Fault, seed: int = 1) -> Injection:
        """Inject a fault, wait, and heal it, as the runner does. Raises Trouble."""
        injection = await fault.inject(self.stage, random.Random(seed))
        self.injections.append(injection)
        try:
            await trio.sleep(fault.lasts)
        finally:
            with trio.CancelScope(shield=True):
                await injection.undo()
        await trio.sleep(0.3)
        return injection

    async def trouble(self, fault: Fault, seed: int = 1) -> str:
        """Return what a fault complains of."""
        try:
            await self.strike(fault, seed)
        except Trouble as trouble:
            return str(trouble)
        return ""

    def logged(self, event: str, **keys: Any) -> list[dict[str, Any]]:
        """The lines of an event that have these keys."""
        return [
            line
            for path in (self.server.out, self.server.err)
            for line in LogLines(path).fresh()
            if line.get("event") == event and keys.items() <= line.items()
        ]

    def asked(self) -> list[Invoke]:
        """Every request that was sent; once the load has ended."""
        return list(read_records(self.folder / "history.jsonl", Invoke))

    def failed(self) -> list[Fail]:
        """Every error of the ordinary load, with the model in place of the message."""
        ordinary = {each.n: each.model for each in self.asked() if not each.by}
        fails = read_records(self.folder / "history.jsonl", Fail)
        return [replace(each, message=ordinary[each.n]) for each in fails if each.n in ordinary]

    async def until_logged(self, injection: Injection) -> None:
        """Wait until the log has all that an injection expects of it."""
        with trio.fail_after(10):
            for each in injection.expects:
                while True:
                    if self.logged(each.event, **each.keys):
                        break
                    await trio.sleep(0.05)


@asynccontextmanager
async def bench(
    folder: Path, *flags: str, rate: float = RATE, seed: int = 1, collector: int = 0, tls: bool = False
) -> AsyncIterator[Bench]:
    """Run a server and a load around the block; then check that each answer was right or is excused.

    `collector` is the port to which it exports traces. `tls`: its metrics are told over TLS.
    """
    repository, socket = folder / "models", folder / "saboteur"
    write_repository(repository, run=folder)
    certificates = served_files(folder / "tls") if tls else None
    flags = (*flags, *tracing_flags(collector), *(certificates.flags if certificates else ()))
    async with served(repository, folder / "server", *flags, sabotage=socket) as server:
        server.trust = certificates.trust if certificates else None
        with History(folder / "history.jsonl") as history:
            async with open_clients(history, server.http_port, server.grpc_port) as clients:
                stage = Stage(
                    server=server,
                    sabotage=SabotageClient(socket),
                    repository=repository,
                    control=Control(folder),
                    send=partial(clients.send, by=1),
                    folder=folder,
                    collector=collector,
                    certificates=certificates,
                )
                made = Bench(stage, server, clients, folder)
                async with trio.open_nursery() as nursery:
                    stop = trio.Event()
                    nursery.start_soon(_load, clients, rate, seed, stop)
                    yield made
                    stop.set()
        check(folder, made.injections)
        assert await server.metric("tritium_reply_violations_total") == 0


async def _load(clients: Clients, rate: float, seed: int, stop: trio.Event) -> None:
    """Load until told to stop; requests in flight are still answered."""
    for second in itertools.count():
        if stop.is_set():
            return
        begin = now()
        await clients.load(arrivals(ORDINARY, rate, seed + second), begin=begin, until=begin + 0.5)


def check(folder: Path, injections: Sequence[Injection]) -> None:
    """Every request of the ordinary load has an end, which is right, or excused by an injection."""
    asked: dict[int, Invoke] = {}
    ends: dict[int, Record] = {}
    for record in read_records(folder / "history.jsonl", Invoke, Ok, Fail, Unknown):
        if isinstance(record, Invoke):
            asked[record.n] = record
        elif isinstance(record, (Ok, Fail, Unknown)):
            assert record.n not in ends
            ends[record.n] = record
    assert asked.keys() == ends.keys()
    excuses = [excuse for each in injections for excuse in each.excuses]
    bad: Counter[str] = Counter()
    for n, invoke in asked.items():
        end = ends[n]
        if isinstance(end, Ok):
            if invoke.model != "counter" and tuple(end.values) != tuple(expected(invoke)):
                bad[f"{invoke.model}: {end.values}"] += 1
        elif not invoke.by and not any(_excused(excuse, invoke, end) for excuse in excuses):
            bad[f"{invoke.model} {invoke.protocol}: {end}"] += 1
    assert not bad, bad


def _excused(excuse: Excuse, invoke: Invoke, end: Record) -> bool:
    if excuse.models and invoke.model not in excuse.models:
        return False
    return end.code in excuse.codes if isinstance(end, Fail) else excuse.unknown
