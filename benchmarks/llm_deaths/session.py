"""One run: a server, its clients, and a kill now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import trio

from benchmarks.llm_deaths.clients import Clients
from benchmarks.llm_deaths.findings import Found, Kill
from benchmarks.llm_deaths.subject import DeathServer, Engines, Served, kill, wall


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who asks, and how often an engine is killed."""

    streams: int = 16
    whole: int = 0  # clients that do not stream
    seconds: float = 60.0
    every: float = 5.0  # seconds from one kill to the next
    signal: Signals = Signals.SIGKILL


class Ended(Exception):
    """The run was ended by SIGTERM."""


async def run(served: Served, load: Load, scratch: Path, tell: Callable[[str], None]) -> Found:
    """Do it. Raises chaos.subject.server.ServerFailed, and Ended."""
    found: list[Found] = []

    async def do(life: trio.CancelScope) -> None:
        found.append(await _run(served, load, scratch, tell))
        life.cancel()

    # A job's time limit must not leave a server behind.
    with trio.open_signal_receiver(Signals.SIGTERM) as told:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(do, nursery.cancel_scope)
            await anext(told)
            nursery.cancel_scope.cancel()
    if not found:
        raise Ended("ended by SIGTERM")
    return found[0]


async def _run(served: Served, load: Load, scratch: Path, tell: Callable[[str], None]) -> Found:
    flags = served.write(scratch / "models")
    server = DeathServer.start(scratch / "models", scratch / "server", *flags)
    try:
        await server.wait_ready()
        began = wall()
        clients = Clients(server.url, served.prompts(), lambda: wall() - began)
        tell("asking for each answer once, without a kill")
        rights = await clients.rights(chances=served.engine != "fake")
        kills: list[Kill] = []
        engines = Engines(server, began)
        async with trio.open_nursery() as nursery:
            for number in range(load.streams + load.whole):
                nursery.start_soon(_ask, clients, number < load.streams)
            await _kill_on(engines, load, began, kills, tell)
            clients.done = True
        found = Found(clients.streams, engines.completed(kills), rights)
        status = await server.stop()
        if status:
            tell(f"the server ended with {status}: {server.last_words()}")
        return found
    finally:
        server.kill_all()


async def _ask(clients: Clients, streamed: bool) -> None:
    await clients.ask_on(streamed=streamed)


async def _kill_on(
    engines: Engines, load: Load, began: float, kills: list[Kill], tell: Callable[[str], None]
) -> None:
    """Kill an engine every so often, by turns; one that is not there yet is passed over."""
    until = trio.current_time() + load.seconds
    due = trio.current_time()
    while (due := due + load.every) < until:
        await trio.sleep_until(due)
        there = engines.look()
        last = kills[-1].engine if kills else ""
        chosen = sorted(there, key=lambda actor: (actor == last, actor))
        if not chosen:
            tell(f"{wall() - began:7.1f} s  no engine to kill: it starts")
            continue
        at = wall() - began
        if kill(there[chosen[0]], load.signal):
            kills.append(Kill(at, chosen[0], len(there) - 1))
            tell(f"{at:7.1f} s  killed {chosen[0]}, {len(there) - 1} left")
    await trio.sleep_until(until)
