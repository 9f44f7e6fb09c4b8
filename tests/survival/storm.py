"""Concurrent clients that check every answer, and what became of their requests."""

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import trio

from tests.survival.repository import WIDTH
from tests.survival.server import ServerProcess
from tests.survival.wire import Lost

_BLOCK = 1_000_000  # values a client has to itself; sums stay exact in FP32 up to 16 clients


class Answer(Protocol):
    """A client's answer to a request in any protocol. `id`, `attempts` and `tensors` belong to a success."""

    @property
    def ok(self) -> bool:
        """Whether it is a success."""

    @property
    def status(self) -> int:
        """The protocol's number for the request's outcome."""

    @property
    def error(self) -> str:
        """The error message; empty for a success."""

    @property
    def id(self) -> str:
        """The request's id, as it came back."""

    @property
    def attempts(self) -> int:
        """How often the request was run."""

    def tensors(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The outputs."""


class Asking(Protocol):
    """What a client asks through: a connection, or a part of one."""

    async def infer(self, model: str, *, inputs: Mapping[str, Any], request_id: str) -> Answer:
        """Have a model infer. Raises Lost."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(slots=True)
class Tally:
    """The outcomes of the requests to one model."""

    sent: int = 0
    answered: int = 0  # whatever the answer was
    errors: Counter[int] = field(default_factory=Counter)  # answers other than success, by status
    messages: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    failed_at: list[float] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)

    def check(self) -> None:
        """Check that no request was lost, answered wrongly or answered twice."""
        assert not self.lost, self.lost[:5]
        assert not self.wrong, self.wrong[:5]
        assert self.answered == self.sent

    def report(self) -> dict[str, Any]:
        """The figures for the test's output."""
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
    """Clients against the add/sub models of one server, each with one request at a time, until stopped."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._clients = itertools.count()
        self.stopping = False
        self.tallies: dict[str, Tally] = {}

    async def client(
        self,
        model: str,
        *,
        reconnect: bool = True,
        connect: Callable[[], Awaitable[Asking]] | None = None,
        tally_as: str = "",
    ) -> None:
        """Ask `model` for sums, one after the other, and check each answer.

        `connect` opens the connection, by default a new HTTP connection. A request without an answer is
        counted as lost; without `reconnect`, Lost or OSError is then raised. `tally_as` names the tally, by
        default the model.
        """
        connect = connect or self._server.connect
        tally = self.tallies.setdefault(tally_as or model, Tally())
        number = next(self._clients)
        connection = await connect()
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
                    connection = await connect()
        finally:
            connection.close()

    async def _ask(self, connection: Asking, model: str, tally: Tally, number: int, turn: int) -> None:
        a = np.full((1, WIDTH), number * _BLOCK + 1000 + turn, np.float32)
        b = np.full((1, WIDTH), number + 1, np.float32)
        tally.sent += 1
        began = trio.current_time()
        request_id = f"{number}-{turn}"
        answer = await connection.infer(model, inputs={"A": a, "B": b}, request_id=request_id)
        now = trio.current_time()
        tally.latencies.append(now - began)
        tally.answered += 1
        if answer.ok:
            self._check(answer, tally, a, b, request_id)
        else:
            tally.errors[answer.status] += 1
            tally.messages[answer.error.removeprefix(f"[request id: {request_id}] ")] += 1
            tally.failed_at.append(now)
            if not answer.error:
                tally.wrong.append(f"{answer.status} without a reason to {request_id}")

    def _check(self, answer: Answer, tally: Tally, a: Any, b: Any, request_id: str) -> None:
        tensors = answer.tensors()
        tally.attempts[answer.attempts] += 1
        right = (
            answer.id == request_id
            and np.array_equal(tensors["SUM"], a + b)
            and np.array_equal(tensors["DIFFERENCE"], a - b)
        )
        if not right:
            tally.wrong.append(f"{request_id}: {answer}, {tensors}")


def quantile(values: list[float], share: float) -> float:
    """The smallest value that is not below `share` of them; 0 for none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def milliseconds(seconds: float) -> float:
    """For reports."""
    return round(seconds * 1000, 1)
