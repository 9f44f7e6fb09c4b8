"""Clients that ask each server of a fleet by turns, and count what comes of it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from chaos.fleet.ground import MODEL
from chaos.wires.http import Broken, Connection, request

_INPUTS: Final = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}]
_REQUEST: Final = request("POST", f"/v2/models/{MODEL}/infer", json.dumps({"inputs": _INPUTS}).encode())


@dataclass(slots=True)
class Tally:
    """What clients saw so far: answers and errors by port, the slowest answer in seconds."""

    answers: Counter[int] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    said: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Requests that have an outcome."""
        return sum(self.answers.values()) + sum(self.errors.values())


async def ask(ports: Sequence[int], tally: Tally, *, pause: float) -> None:
    """Ask the servers at `ports` by turns, for ever, with `pause` seconds between requests."""
    connections: dict[int, Connection] = {}
    for port in itertools.cycle(ports):
        began = trio.current_time()
        try:
            connection = connections.get(port)
            if connection is None:
                connection = connections[port] = await Connection.open(port)
            reply = await connection.ask(_REQUEST)
        except (OSError, Broken) as error:
            connections.pop(port, None)
            tally.errors[port] += 1
            tally.said.append(str(error))
        else:
            if reply.status == 200:
                tally.answers[port] += 1
            else:
                tally.errors[port] += 1
                tally.said.append(reply.body.decode(errors="replace"))
            tally.slowest = max(tally.slowest, trio.current_time() - began)
        await trio.sleep(pause)
