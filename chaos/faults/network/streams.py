"""Long streams of a real gRPC client.

It answers what it receives by window updates and pings, as floods do.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from chaos.faults.base import Fault, Injection, NoTarget, Stage, Trouble
from chaos.faults.network.crowds import EVERYTHING
from chaos.faults.shelves import Shelf
from chaos.faults.workers.guests import send_off, until_gone, welcome
from chaos.record.outcome import now

SECONDS: Final = 4.0
LEAST: Final = 1200
"""Answers that each stream has to get, on one connection: a flood's budget is spent long before."""

_GUESTS: Final = ("echo-streamed", "stream-streamed")
_PATIENCE: Final = 60.0  # seconds for the program, on a busy machine
_ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongStreams(Fault):
    """A process with grpcio asks two guests.

    No other fault hits these guests, so that not one error is allowed.
    """

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Bring in the guests; `heal` has the client ask.

        Raises NoTarget if they are there already, and Trouble.
        """
        shelves: list[Shelf] = []
        t = now()  # from here on the start of four workers may be felt
        try:
            for guest in _GUESTS:
                shelf, _ = await welcome(stage, guest)
                shelves.append(shelf)
        except (NoTarget, Trouble):
            for each in shelves:
                await send_off(stage, each)
            raise
        return Injection(
            t=t,
            models=EVERYTHING,
            detail=f"grpcio streams to {' and '.join(_GUESTS)} as fast as answers come",
            undo=partial(_stream, stage, shelves),
        )


async def _stream(stage: Stage, shelves: Sequence[Shelf]) -> None:
    try:
        troubles = await asked(stage.server.grpc_port)
    finally:
        for each in shelves:
            await send_off(stage, each)
    for each in shelves:
        await until_gone(stage, each.model)
    if troubles:
        raise Trouble("; ".join(troubles))


async def asked(port: int) -> list[str]:
    """Have the program ask; return what went wrong."""
    words = [str(port), str(SECONDS), str(LEAST), *_GUESTS]
    # On a small machine other processes go first, even before the program.
    command = ["nice", "-n", "10", sys.executable, "-m", "chaos.clients.long_streams", *words]
    with trio.move_on_after(_PATIENCE):
        done = await trio.run_process(
            command, cwd=_ROOT, capture_stdout=True, capture_stderr=True, check=False
        )
        if done.returncode:
            return [f"the client ended with {done.returncode}: {done.stderr[-500:].decode(errors='replace')}"]
        return troubles_in(json.loads(done.stdout))
    return [f"the client was not done within {_PATIENCE:g} s"]


def troubles_in(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what went wrong, by the reports of the program."""
    found = [f"{each['name']}: {trouble}" for each in reports for trouble in each["troubles"]]
    few = [each for each in reports if each["answers"] < (1 if each["name"] == "unary" else LEAST)]
    return found + [f"{each['name']}: only {each['answers']} answers came" for each in few]


FAULTS: Sequence[Fault] = (
    LongStreams(
        name="real_grpc_streams",
        expected="Streams of grpcio with thousands of small answers on one connection, as fast as they come, and calls beside them on one that"
        " pings: each answer is right, once, and in order; the server ends no stream, and nobody else's request fails.",
    ),
)
"""The family's faults."""
