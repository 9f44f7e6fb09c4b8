"""A minimal load balancer with clients behind it.

A request goes to the server only while the server is in rotation. HTTP clients live here. gRPC clients are a
program with grpcio, which looks at grpc.health.v1 by itself.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Final

import trio

from chaos.clients.real_grpc import Report
from chaos.faults.network.asking import Question
from chaos.record.outcome import now
from chaos.subject.server import Server
from chaos.wires.http import Broken, Connection, Reply, request

LOOK: Final = 0.1
"""Seconds between two looks at readiness, each on a fresh connection."""

CLIENTS: Final = 4
"""HTTP clients of each kind: with a fresh connection for each request, and with one that is kept."""

PATIENCE: Final = 30.0
"""Seconds that a request waits for its answer."""

_PACE: Final = 0.01
_LONGEST: Final = 60.0  # seconds that the load may last
_ROOT: Final = Path(__file__).parents[1]


@dataclass
class Rotation:
    """Whether the server is to get requests, as the last look has shown.

    `out` is the time when it was taken out of rotation (records' time).
    """

    out: float | None = None

    @property
    def open(self) -> bool:
        """Whether the server is in rotation."""
        return self.out is None

    async def watch(self, server: Server) -> None:
        """Look until the server is out of rotation."""
        while await server.is_ready():  # noqa: ASYNC110 (another process's state)
            await trio.sleep(LOOK)
        self.out = now()


class Load:
    """What the clients of one server ask, and the outcomes: a report for each client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begun = 0
        self._all_begun = trio.Event()
        self.rotation = Rotation()
        self.reports: list[Report] = []

    async def client(self, number: int, *, kept: bool) -> None:
        """Ask over HTTP until the server is out of rotation."""
        report = Report(f"http-{'kept' if kept else 'fresh'}-{number}")
        self.reports.append(report)
        draw = random.Random(number)
        connection: Connection | None = None
        for place in itertools.count():
            if not self.rotation.open:
                break
            connection = await self._asked(report, Question.draw("echo", draw), connection, kept=kept)
            if not place:
                self._one_begun()
            await trio.sleep(_PACE)
        if connection is not None:
            connection.close()

    async def _asked(
        self, report: Report, question: Question, connection: Connection | None, *, kept: bool
    ) -> Connection | None:
        """Ask once, on the connection if there is one; return it if it is kept for the next request."""
        report.asked += 1
        try:
            with trio.fail_after(PATIENCE):
                if connection is None:
                    connection = await Connection.open(self._server.http_port)
                fields = {} if kept else {"connection": "close"}
                reply = await connection.ask(request("POST", question.path, question.body, **fields))
        except (OSError, Broken, trio.TooSlowError) as error:
            report.failed += 1
            report.trouble(f"{report.name}: {question.invoke.id}: {error!r}")
            if connection is not None:
                connection.close()
            return None
        judge(report, question, reply)
        if kept and connection.kept:
            return connection
        connection.close()
        return None

    async def grpc(self) -> None:
        """Have the program ask until grpc.health.v1 says that the server does not serve."""
        command = [
            sys.executable,
            "-m",
            "chaos.clients.balanced_grpc",
            str(self._server.grpc_port),
            f"{_LONGEST}",
        ]
        process = await trio.lowlevel.open_process(command, cwd=_ROOT, stdout=PIPE)
        said = b""
        try:
            assert process.stdout is not None  # it is a pipe
            async for piece in process.stdout:
                if not said:
                    self._one_begun()
                said += piece
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if status:
            self.reports.append(Report("grpc", troubles=[f"the clients of gRPC ended with {status}"]))
            return
        self.reports += [Report(**each) for each in json.loads(said)]

    async def wait_begun(self) -> None:
        """Wait until every client has had its first answer."""
        await self._all_begun.wait()

    def _one_begun(self) -> None:
        self._begun += 1
        if self._begun == 2 * CLIENTS + 1:
            self._all_begun.set()

    def total(self, count: Callable[[Report], int]) -> int:
        """Return the sum of something over all clients."""
        return sum(map(count, self.reports))


def judge(report: Report, question: Question, answer: Reply) -> None:
    """Count an HTTP answer as good, as wrong, or as a refusal.

    A request sent to a server in rotation must not be refused.
    """
    if answer.status != 200:
        report.failed += 1
        report.trouble(f"{report.name}: {question.invoke.id}: {answer.status} {answer.body[:200]!r}")
        return
    report.answers += 1
    if wrong := question.judge_http(answer):
        report.wrong += 1
        report.trouble(wrong)


@asynccontextmanager
async def balanced(server: Server) -> AsyncIterator[Load]:
    """Have clients behind a balancer ask around the block, which begins when each has been answered once.

    The block must make the server not ready. Afterwards all requests have ended.
    """
    load = Load(server)
    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(lambda number: load.client(number, kept=False), number)
            nursery.start_soon(lambda number: load.client(number, kept=True), number)
        nursery.start_soon(load.grpc)
        with trio.fail_after(_LONGEST):
            await load.wait_begun()
        nursery.start_soon(load.rotation.watch, server)
        yield load
