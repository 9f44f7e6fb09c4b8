"""Faults by many clients at once.

There are floods, storms of probes, and crowds that hold all descriptors and say nothing.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import trio

from chaos.faults.base import Stage
from chaos.faults.network.asking import Question, together
from chaos.faults.network.attacks import Attack
from chaos.record.records import Excuse, Fail, Unknown
from chaos.wires.frames import Calls
from chaos.wires.http import Connection, request

LASTS: Final = 2.0
"""Seconds that a storm or a flood lasts."""

EVERYTHING: Final = ("echo", "slow", "batching", "counter", "add_sub", "pipeline", "stream")
"""One event loop serves them all, so what takes its time may be felt by each."""


# -- floods

FLOODED: Final = "slow"
# Clients, each with ten requests a second: three times what the model can do.
_FLOOD: Final = 32
_PAUSE: Final = 0.1
_LOWER: Final = 2  # priority level
_TENANT: Final = "flood"
_ITS_OWN: Final = (Excuse(models=(FLOODED,), own=True),)


async def _flood(stage: Stage, target: random.Random, *, priority: int = 0, tenant: str = "") -> list[str]:
    """Ask for far more than a model can do.

    Each request must be answered, or refused as UNAVAILABLE.
    """
    until = trio.current_time() + LASTS

    async def client(number: int) -> str:
        await trio.sleep(_PAUSE * number / _FLOOD)
        wrong: Counter[str] = Counter()
        while trio.current_time() < until:
            end = await stage.send(
                FLOODED, priority=priority, tenant=tenant, protocol="http" if number % 2 else "grpc"
            )
            if isinstance(end, Unknown):
                wrong[f"no answer: {end.reason}"] += 1
            elif isinstance(end, Fail) and end.code != "UNAVAILABLE":
                wrong[f"{end.code}: {end.message}"] += 1
            await trio.sleep(_PAUSE)
        return "; ".join(f"{count} × {what}" for what, count in wrong.items())

    return await together((partial(client, each) for each in range(_FLOOD)), patience=LASTS + 10)


# -- storms of probes

_PROBES: Final = ("/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready", "/v2", "/v2/models/echo")
_METHODS: Final = ("ServerLive", "ServerReady", "ServerMetadata")
_PROBERS: Final = 4  # connections of each protocol
_PROBE_PAUSE: Final = 0.01
_SCRAPE_PAUSE: Final = 0.02


async def _storm(
    paths: Sequence[str],
    connect: Callable[[], Awaitable[Connection]],
    fine: Callable[[int, bytes], bool],
    pause: float,
) -> str:
    """Ask for these paths in turn on one connection, for as long as a storm lasts."""
    until = trio.current_time() + LASTS
    async with await connect() as connection:
        for path in itertools.cycle(paths):
            if trio.current_time() >= until:
                break
            await connection.send(request("GET", path))
            answer = await connection.answer()
            if not fine(answer.status, answer.body):
                return f"GET {path}: {answer.status}, {len(answer.body)} bytes: {answer.body[:100]!r}"
            await trio.sleep(pause)
    return ""


async def _storm_grpc(port: int) -> str:
    until = trio.current_time() + LASTS
    async with await Calls.open(port) as calls:
        await calls.begin()
        for stream, method in zip(itertools.count(1, 2), itertools.cycle(_METHODS), strict=False):
            if trio.current_time() >= until:
                break
            await calls.call(stream, method, b"")
            answer = await calls.finished(stream)
            if answer.status:
                return f"{method}: status {answer.status}, {answer.details}"
            await trio.sleep(_PROBE_PAUSE)
    return ""


async def _health(stage: Stage, target: random.Random) -> list[str]:
    # A server that is not ready answers 400, and another fault may have made it not ready.
    connect = partial(Connection.open, stage.server.http_port)
    ask = partial(_storm, _PROBES, connect, lambda status, _: status in (200, 400), _PROBE_PAUSE)
    over_grpc = partial(_storm_grpc, stage.server.grpc_port)
    return await together([ask] * _PROBERS + [over_grpc] * _PROBERS)


async def _scrape(stage: Stage, target: random.Random) -> list[str]:
    def whole(status: int, body: bytes) -> bool:
        return status == 200 and body.endswith(b"\n")

    ask = partial(_storm, ["/metrics"], stage.server.scraper, whole, _SCRAPE_PAUSE)
    return await together([ask] * _PROBERS)


# -- idle connections

_ROOM: Final = 48  # descriptors that are left when the crowd comes
_TOO_MANY: Final = 24  # and so many more come than there is room for
_HELD: Final = 0.6  # seconds: less than any deadline of the ordinary load


async def _idle(stage: Stage, target: random.Random) -> list[str]:
    """Lower the server's limit to a little over what it has open, take all of that and more, then undo it.

    A client that was connected before is served throughout. A client that comes too late waits, and is served
    when there is room.
    """
    server = psutil.Process(stage.server.pid)
    limits = server.rlimit(psutil.RLIMIT_NOFILE)
    async with AsyncExitStack() as stack:
        early = await stack.enter_async_context(await Connection.open(stage.server.http_port))
        troubles = [await _asked(early, target)]
        limit = _highest_descriptor(server.pid) + _ROOM
        server.rlimit(psutil.RLIMIT_NOFILE, (limit, limits[1]))
        try:
            ports = itertools.cycle((stage.server.http_port, stage.server.grpc_port))
            crowd = [
                await stack.enter_async_context(await Connection.open(next(ports)))
                for _ in range(_ROOM + _TOO_MANY)
            ]
            late = await stack.enter_async_context(await Connection.open(stage.server.http_port))
            await trio.sleep(_HELD)
            troubles += await together([partial(_asked, early, target)])
        finally:
            server.rlimit(psutil.RLIMIT_NOFILE, limits)
        troubles += await together([partial(_asked, late, target)])
        for each in crowd:
            each.close()
    return [each for each in troubles if each]


async def _asked(connection: Connection, target: random.Random) -> str:
    question = Question.draw("echo", target)
    await connection.send(question.http)
    return question.judge_http(await connection.answer())


def _highest_descriptor(pid: int) -> int:
    """Return the highest descriptor of a process: a limit on descriptors is one on their numbers."""
    return max(map(int, os.listdir(Path("/proc", str(pid), "fd"))))


FAULTS: Final[Sequence[Attack]] = (
    Attack(
        name="flood_by_priority",
        expected=f"Three times more than '{FLOODED}' can do, at a lower priority, is answered or refused as UNAVAILABLE; requests of "
        "the ordinary priority are all answered, and wait for one execution more at most.",
        attack=partial(_flood, priority=_LOWER),
        detail=f"a flood of '{FLOODED}' at priority {_LOWER}",
        excuses=_ITS_OWN,
        models=(FLOODED,),
    ),
    Attack(
        name="flood_by_tenant",
        expected=f"Three times more than '{FLOODED}' can do, by one tenant, is answered or refused as UNAVAILABLE; the other tenants' "
        "requests are all answered.",
        attack=partial(_flood, tenant=_TENANT),
        detail=f"a flood of '{FLOODED}' by the tenant '{_TENANT}'",
        excuses=_ITS_OWN,
        models=(FLOODED,),
    ),
    Attack(
        name="health_storm",
        expected="Hundreds of probes a second are all answered; no request fails for it.",
        attack=_health,
        detail=f"{2 * _PROBERS} clients ask for health and metadata without a rest",
        models=EVERYTHING,
    ),
    Attack(
        name="scrape_storm",
        expected="Scrapes of the metrics without a rest are all answered, whole; no request fails for it.",
        attack=_scrape,
        detail=f"{_PROBERS} clients scrape the metrics without a rest",
        models=EVERYTHING,
    ),
    Attack(
        name="idle_connections",
        expected="With all descriptors taken by idle connections, those that were connected before are served on; newcomers wait, are "
        "refused nothing, and are served as soon as there is room.",
        attack=_idle,
        detail="the limit on descriptors is lowered, and idle connections take what is left",
        models=EVERYTHING,
    ),
)
"""The family's faults."""
