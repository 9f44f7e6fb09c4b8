"""Faults of clients' shared memory.

Regions are cut off, replaced, shared, taken away in the middle, and left behind by a client that was killed.
Each fault asks a guest of its own, so that no error is excused but those that it expects itself.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import trio

from chaos.faults.base import Fault, Injection, Stage, Trouble, until
from chaos.faults.network.attacks import newcomers
from chaos.faults.network.crowds import EVERYTHING
from chaos.faults.regions.asking import LASTS, NAMES, ROOM, SEATS, Seen, Stand
from chaos.faults.regions.memory import PAGE, Memory
from chaos.faults.shelves import Shelf
from chaos.faults.workers.guests import send_off, until_gone, welcome
from chaos.record.outcome import now
from chaos.wires.http import Reply

SHRUNK: Final = "has been shrunk since it was registered"
UNKNOWN: Final = "Unable to find shared memory region: "

_GUEST: Final = "echo-regions"
_STEP: Final = 0.005  # seconds between two acts of a vandal
_PATIENCE: Final = 30.0  # seconds for a program to start, on a busy machine
_ROOT: Final = Path(__file__).parents[3]
_NUMBERS: Final = itertools.count(1)
_MOST_TOLD: Final = 5

Harm = Callable[[Stand, random.Random], Awaitable[Sequence[str]]]
"""Does the harm, and returns what it saw that should not have been."""


def _name() -> str:
    """Return a name that no other region has, of this run or of another on the machine."""
    return f"{NAMES}{os.getpid()}-{next(_NUMBERS)}"


def _refused(what: str, reply: Reply) -> list[str]:
    return [] if reply.status == 200 else [f"HTTP {reply.status} to {what}: {reply.body[:200]!r}"]


# -- cut off


def whole_or_shrunk(seen: Seen) -> bool:
    """Whether a region that is cut off and grows again was answered as its bytes were, or refused.

    What was cut off is zeros when it grows again: of the input, of the answer, or of a part of it.
    """
    if seen.code:
        return seen.refused("INVALID_ARGUMENT", SHRUNK)
    return bool(np.isin(seen.answer, (seen.value, 0)).all())


def _shrunk(seen: Seen) -> bool:
    return seen.refused("INVALID_ARGUMENT", SHRUNK)


async def _shrink(stand: Stand, target: random.Random) -> list[str]:
    region = _name()
    with Memory(f"/{region}", ROOM) as memory:
        troubles = _refused("register", await stand.register(region, memory))

        async def cut() -> None:
            memory.resize(target.choice((0, PAGE, PAGE + 32, ROOM // 2)))
            await trio.sleep(_STEP)
            memory.resize(ROOM)
            await trio.sleep(_STEP)

        clients = stand.clients(memory, region, target, whole_or_shrunk)
        troubles += await stand.crowd(*clients, harm=cut)
        for seat, left in itertools.product(SEATS, (None, PAGE)):  # now for certain, and one at a time
            memory.resize(ROOM)
            cut_to = left or seat.answer  # its answer is beyond the end, or its input as well
            seen = await stand.ask(memory, region, seat, target, cut_to=cut_to)
            if not _shrunk(seen):
                troubles.append(f"its region was cut off: {seen.told()}")
            if memory.size != cut_to:
                troubles.append(f"a region that was cut off to {cut_to} bytes has {memory.size} now")
        memory.resize(ROOM)
        return troubles + await stand.ask_all(memory, region, target)


# -- replaced


async def _replace(stand: Stand, target: random.Random) -> list[str]:
    region = _name()
    with Memory(f"/{region}", ROOM) as memory:
        troubles = _refused("register", await stand.register(region, memory))

        async def replace() -> None:
            await trio.sleep(LASTS / 3)
            memory.unlink()
            await trio.sleep(LASTS / 3)
            Memory(memory.key, ROOM).close()
            await trio.sleep_forever()

        # The server goes on with the object that it has opened, as its clients do.
        troubles += await stand.crowd(*stand.clients(memory, region, target), harm=replace)
        with Memory(memory.key, ROOM, there=True) as new:
            if new.take(0, ROOM // 4).any():
                troubles.append("what no client has registered was written to")
            troubles += _refused("unregister", await stand.unregister(region))
            troubles += _refused("register anew", await stand.register(region, new))
            return troubles + await stand.ask_all(new, region, target)


# -- overlapping


async def _overlap(stand: Stand, target: random.Random) -> list[str]:
    regions = [_name() for _ in range(3)]
    with Memory(f"/{regions[0]}", ROOM + 2 * PAGE) as memory:
        troubles: list[str] = []
        for page, region in enumerate(regions):
            reply = await stand.register(region, memory, offset=page * PAGE)
            troubles += _refused("register", reply)

        def theirs(seen: Seen) -> bool:
            """Whether the answer is of nothing but what these clients write there."""
            return not seen.code and bool(np.isin(seen.answer, [0, *stand.values]).all())

        # Each client writes and reads by the region's first page on, and the server one and two pages later.
        clients = [stand.client(memory, region, seat, target, theirs) for region in regions for seat in SEATS]
        troubles += await stand.crowd(*clients)
        return troubles + await stand.ask_all(memory, regions[0], target)


# -- taken away


def right_or_unknown(seen: Seen) -> bool:
    """Whether a region that comes and goes was answered rightly, or refused as not there."""
    return seen.right or seen.refused("NOT_FOUND", UNKNOWN)


async def _unregister(stand: Stand, target: random.Random) -> list[str]:
    region = _name()
    with Memory(f"/{region}", ROOM) as memory:
        troubles = _refused("register", await stand.register(region, memory))

        async def take_away() -> None:
            troubles.extend(_refused("unregister", await stand.unregister(region)))
            await trio.sleep(_STEP)
            # It is listed until the last request that holds it has ended.
            await until(
                partial(stand.register, region, memory),
                lambda reply: reply.status == 200,
                lambda reply: f"HTTP {reply and reply.status} to a registration anew",
            )
            await trio.sleep(_STEP)

        clients = stand.clients(memory, region, target, right_or_unknown)
        troubles += await stand.crowd(*clients, harm=take_away)
        troubles += await stand.cleared()
        troubles += await stand.ask_all(
            memory, region, target, lambda seen: seen.refused("NOT_FOUND", UNKNOWN)
        )
        troubles += _refused("register", await stand.register(region, memory))
        return troubles + await stand.ask_all(memory, region, target)


# -- left behind


async def _kill_client(stand: Stand, target: random.Random) -> list[str]:
    region = _name()
    port = str(stand.stage.server.http_port)
    command = [sys.executable, "-m", "chaos.clients.region_owner", port, region, str(ROOM), stand.guest]
    process = await trio.lowlevel.open_process(command, cwd=_ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        said = b""
        with trio.move_on_after(_PATIENCE):
            said = bytes(await process.stdout.receive_some(100))
        await trio.sleep(target.random() * 0.2)  # it goes on to ask meanwhile
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()
    if said != b"answered\n":
        return [f"the client that was to be killed said {said!r}"]
    with Memory(f"/{region}", ROOM, there=True) as memory:
        troubles = [] if region in await stand.listed() else ["a dead client's region is not listed"]
        troubles += await stand.ask_all(memory, region, target)
        return troubles + _refused("unregister", await stand.unregister(region))


async def _troubles(act: Awaitable[Sequence[str]]) -> list[str]:
    """Return what went wrong, also if it was raised."""
    try:
        return [*await act]
    except Trouble as trouble:
        return [str(trouble)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionHarm(Fault):
    """A fault by clients with regions; `harm` is done while it is healed, and judges its effect."""

    harm: Harm
    detail: str

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Bring in the guest. Raises NoTarget if it is there already, and Trouble."""
        t = now()  # from here on the start of two workers may be felt
        shelf, _ = await welcome(stage, _GUEST)
        return Injection(
            t=t, models=EVERYTHING, detail=self.detail, undo=partial(self._do, stage, shelf, target)
        )

    async def _do(self, stage: Stage, shelf: Shelf, target: random.Random) -> None:
        stand = Stand(stage, _GUEST)
        try:
            try:
                troubles = await _troubles(self.harm(stand, target))
            finally:
                left = await _troubles(stand.cleared())
            troubles += [*left, *await newcomers(stage, target)]
        finally:
            await send_off(stage, shelf)
        await until_gone(stage, _GUEST)
        if troubles:
            more = f"; and {len(troubles) - _MOST_TOLD} more" if len(troubles) > _MOST_TOLD else ""
            raise Trouble("; ".join(troubles[:_MOST_TOLD]) + more)


_LEFT: Final = "; once they are unregistered the server has nothing of them open."

FAULTS: Final[Sequence[Fault]] = (
    RegionHarm(
        name="region_shrunk",
        expected="Requests whose region is cut off and grows again are answered by what was there, or"
        " refused as INVALID_ARGUMENT with the"
        " region's name; no answer makes it longer, and no worker dies" + _LEFT,
        harm=_shrink,
        detail="a client's region is cut off and grows, over and over",
    ),
    RegionHarm(
        name="region_replaced",
        expected="A region whose object is unlinked, and replaced by another of its name, is served on as"
        " it was registered; the other is"
        " not touched before it is registered anew" + _LEFT,
        harm=_replace,
        detail="a client's region is unlinked, and another takes its name",
    ),
    RegionHarm(
        name="region_overlapped",
        expected="Clients that write to the same bytes by three regions get answers made of nothing but"
        " what one of them has sent, and no"
        " error" + _LEFT,
        harm=_overlap,
        detail="three regions overlap, and clients write to all of them",
    ),
    RegionHarm(
        name="region_unregistered",
        expected="Requests to a region that is unregistered and registered all the time are answered"
        " rightly, or NOT_FOUND" + _LEFT,
        harm=_unregister,
        detail="a client's region is unregistered and registered, over and over",
    ),
    RegionHarm(
        name="region_client_killed",
        expected="The region of a client that is killed while the server reads and writes it stays, and is"
        " served to others until it is"
        " unregistered" + _LEFT,
        harm=_kill_client,
        detail="a client is killed in the middle of its requests, and leaves its region",
    ),
)
"""The family's faults."""
