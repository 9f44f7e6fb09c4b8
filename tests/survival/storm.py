"""Concurrent clients that check every answer, and what became of their requests."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from tests.survival.repository import WIDTH
from tests.survival.server import ServerProcess
from tests.survival.wire import Lost, Response

_BLOCK = 1_000_000  # values a client has to itself; sums stay exact in FP32 up to 16 clients


@dataclass(slots=True)
class Tally:
    """What became of the requests to one model."""

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    failed_at: list[float] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        """Requests that got an answer, whatever it was."""
        return sum(self.statuses.values())

    @property
    def errors(self) -> dict[int, int]:
        """Answers other than success, by status."""
        return {status: count for status, count in self.statuses.items() if status != 200}

    def check(self) -> None:
        """No request was lost, none was answered wrongly, none twice."""
        assert not self.lost, self.lost[:5]
        assert not self.wrong, self.wrong[:5]
        assert self.answered == self.sent

    def report(self) -> dict[str, Any]:
        """The figures, for whoever reads the test's output."""
        return {
            "answered": self.answered,
            "errors": self.errors,
            "lost": len(self.lost),
            "wrong": len(self.wrong),
            "run more than once": sum(count for attempts, count in self.attempts.items() if attempts > 1),
            "worst latency ms": milliseconds(max(self.latencies, default=0.0)),
            "median latency ms": milliseconds(quantile(self.latencies, 0.5)),
        }


class Storm:
    """Clients against the add/sub models of one server, each with one request under way, until told to stop."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._clients = itertools.count()
        self.stopping = False
        self.tallies: dict[str, Tally] = {}

    async def client(self, model: str, *, reconnect: bool = True) -> None:
        """Ask `model` for sums, one after the other, and check each answer.

        A request without an answer is counted as lost; where not to `reconnect`, Lost or OSError is then raised.
        """
        tally = self.tallies.setdefault(model, Tally())
        number = next(self._clients)
        connection = await self._server.connect()
        try:
            for turn in itertools.count():
                if self.stopping:
                    return
                try:
                    await self._ask(connection, model, tally, number, turn)
                except Lost as error:
                    tally.lost.append(f"client {number}, request {turn}: {error}")
                    if not reconnect:
                        raise
                    connection.close()
                    connection = await self._server.connect()
        finally:
            connection.close()

    async def _ask(self, connection: Any, model: str, tally: Tally, number: int, turn: int) -> None:
        a = np.full((1, WIDTH), number * _BLOCK + 1000 + turn, np.float32)
        b = np.full((1, WIDTH), number + 1, np.float32)
        tally.sent += 1
        began = trio.current_time()
        response = await connection.infer(model, inputs={"A": a, "B": b}, request_id=f"{number}-{turn}")
        now = trio.current_time()
        tally.latencies.append(now - began)
        tally.statuses[response.status] += 1
        if response.status == 200:
            self._check(response, tally, a, b, f"{number}-{turn}")
        else:
            tally.messages[response.error.partition("] ")[2]] += 1
            tally.failed_at.append(now)
            if not response.error:
                tally.wrong.append(f"{response.status} without a reason to {number}-{turn}")

    def _check(self, response: Response, tally: Tally, a: Any, b: Any, request_id: str) -> None:
        document, tensors = response.json(), response.tensors()
        tally.attempts[document.get("parameters", {}).get("attempts", 1)] += 1
        right = (
            document["id"] == request_id
            and np.array_equal(tensors["SUM"], a + b)
            and np.array_equal(tensors["DIFFERENCE"], a - b)
        )
        if not right:
            tally.wrong.append(f"{request_id}: {document}, {tensors}")


def quantile(values: list[float], share: float) -> float:
    """The smallest value that is not below `share` of them; 0 for none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def milliseconds(seconds: float) -> float:
    """For reports."""
    return round(seconds * 1000, 1)
