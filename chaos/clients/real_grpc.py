"""grpcio in its usual use, for programs that are put before a server.

It holds options, methods, and what a client is owed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.clients.grpc_messages import read
from chaos.record.records import Invoke
from chaos.wires.frames import SERVICE
from chaos.workload.answers import expected
from protocols.kserve.proto import grpc_service_pb2 as pb

INFER: Final = f"{SERVICE}ModelInfer"
STREAM: Final = f"{SERVICE}ModelStreamInfer"
HEALTH: Final = "/grpc.health.v1.Health/Check"

ALONE: Final = ("grpc.use_local_subchannel_pool", 1)
"""Otherwise equal channels of a process share a connection."""

MOST_TOLD: Final = 5


def pinging(seconds: float) -> Sequence[tuple[str, int]]:
    """Return the options of a channel that pings every so many seconds, even when nothing is under way."""
    return (
        ALONE,
        ("grpc.keepalive_time_ms", int(seconds * 1000)),
        ("grpc.keepalive_timeout_ms", 60_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


@dataclass
class Report:
    """What became of the requests of one client; a line of what its program prints."""

    name: str
    asked: int = 0
    answers: int = 0  # parts, each of them
    failed: int = 0  # requests that ended with an error, or without an end
    wrong: int = 0  # answers that are not right, or are owed to no request
    troubles: list[str] = field(default_factory=list)

    def trouble(self, what: str) -> None:
        """Note something that should not have been; the first few are enough."""
        if len(self.troubles) < MOST_TOLD:
            self.troubles.append(what)


class Ledger:
    """What one client has asked for and is owed: for each request all its parts, right, in order, and once.

    Threads may share it.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self._owed: dict[str, tuple[Invoke, int]] = {}  # with the number of parts that have come
        self._changed = threading.Condition()

    def ask(self, invoke: Invoke) -> None:
        """A request is sent."""
        with self._changed:
            self._owed[invoke.id] = (invoke, 0)
            self.report.asked += 1

    def came(self, response: pb.ModelInferResponse, error: str = "") -> None:
        """An answer, a part of one, or an error has come."""
        with self._changed:
            self._judge(response, error)
            self._changed.notify_all()

    def fail(self, invoke: Invoke, why: str) -> None:
        """A request has ended without an answer."""
        with self._changed:
            self._owed.pop(invoke.id, None)
            self.report.failed += 1
            self.report.trouble(f"{invoke.id}: {why}")
            self._changed.notify_all()

    def wait_fewer(self, most: int, seconds: float) -> bool:
        """Wait until fewer than `most` requests are under way.

        Returns whether that came about in so many seconds.
        """
        with self._changed:
            return self._changed.wait_for(lambda: len(self._owed) < most, seconds)

    def settle(self) -> None:
        """No more comes: what is owed still is lost."""
        with self._changed:
            for name, (_, came) in self._owed.items():
                self.report.failed += 1
                self.report.trouble(f"{name} is without its answer, after {came} parts")
            self._owed.clear()
            self._changed.notify_all()

    def _judge(self, response: pb.ModelInferResponse, error: str) -> None:
        if response.id not in self._owed:
            self.report.wrong += 1
            self.report.trouble(f"an answer to '{response.id}' came, which is owed none {error}".rstrip())
            return
        invoke, came = self._owed.pop(response.id)
        if error:
            self.report.failed += 1
            self.report.trouble(f"{invoke.id} was answered with the error: {error}")
            return
        right = list(expected(invoke))
        parts = right[came : came + 1] if invoke.parts > 1 else right
        try:
            got = list(read(invoke, response)[0])
        except ValueError as unreadable:
            self.report.wrong += 1
            self.report.trouble(f"part {came} of {invoke.id} can't be read: {unreadable}")
            return
        self.report.answers += 1
        if got != parts:
            self.report.wrong += 1
            self.report.trouble(f"part {came} of {invoke.id} is {got}, not {parts}")
        if came + 1 < invoke.parts:
            self._owed[invoke.id] = (invoke, came + 1)
