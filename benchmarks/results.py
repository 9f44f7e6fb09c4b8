"""What was measured, as values, and the little statistics they need. Pure. Times are seconds, sizes bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of values sorted ascending; NaN if there are none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a load client saw in one run."""

    requests: int
    seconds: float
    rate: float  # requests a second
    p50: float
    p99: float
    errors: int  # no answer: connect, read, write, timeout
    refused: int  # an answer with a status that is no success


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one cell against one subject.

    `cpu` is the CPU time of its process tree, None if that is not ours.
    """

    load: Load
    cpu: float | None = None

    @property
    def cpu_per_request(self) -> float | None:
        """CPU seconds of the server for each answer."""
        return None if self.cpu is None or not self.load.requests else self.cpu / self.load.requests


@dataclass(frozen=True, slots=True)
class Cell:
    """A scenario at one concurrency under one load client."""

    scenario: str
    title: str
    concurrency: int  # connections
    client: str
    protocol: Literal["http", "grpc"] = "http"
    streams: int = 1  # requests under way on each connection

    @property
    def at(self) -> str:
        """The concurrency as written in tables.

        It is `16`, or `4×8` for eight streams on each of four connections.
        """
        alone = self.protocol == "http" or self.concurrency * self.streams == 1
        return str(self.concurrency) if alone else f"{self.concurrency}×{self.streams}"


@dataclass(frozen=True, slots=True)
class Measured:
    """All rounds of one cell against one subject. Each figure is the median over the rounds."""

    cell: Cell
    subject: str
    samples: Sequence[Sample]

    def _median(self, figure: Callable[[Sample], float]) -> float:
        return median(map(figure, self.samples))

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self._median(lambda sample: sample.load.rate)

    @property
    def p50(self) -> float:
        """Median latency."""
        return self._median(lambda sample: sample.load.p50)

    @property
    def p99(self) -> float:
        """99th percentile of latency."""
        return self._median(lambda sample: sample.load.p99)

    @property
    def failures(self) -> int:
        """Requests without a good answer, over all rounds (a sum, not a median: each is one too many)."""
        return sum(sample.load.errors + sample.load.refused for sample in self.samples)

    @property
    def cpu_per_request(self) -> float | None:
        """CPU seconds of the server for each answer; None if its processes are not ours to read."""
        known = [sample.cpu_per_request for sample in self.samples if sample.cpu_per_request is not None]
        return median(known) if known else None


@dataclass(frozen=True, slots=True)
class Timings:
    """Repeated timings of one thing: `what` for machines, `title` for people."""

    what: str
    title: str
    subject: str
    seconds: Sequence[float]

    @property
    def p50(self) -> float:
        """Median."""
        return percentile(sorted(self.seconds), 50)

    @property
    def p99(self) -> float:
        """99th percentile by nearest rank: with fewer than 100 timings, the slowest."""
        return percentile(sorted(self.seconds), 99)


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of an idle server: its own process, and its workers one by one."""

    subject: str
    server: int
    workers: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What one hostile input did to a server. Sizes are bytes, times seconds.

    `turn` is the loop's longest turn, of its own CPU time. `memory` is what the server took beyond what it
    had, `allowed` what the rule lets it take. `beside` and `beside_sink` are a neighbour's p99 while the
    input is sent again and again, to the server and to a sink; `beside_p50` is its median beside the server.
    """

    name: str
    size: int
    answer: str
    turn: float
    memory: int
    allowed: int
    beside_p50: float
    beside: float
    beside_sink: float


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was asked for and not measured."""

    what: str
    subject: str
    reason: str
    expected: bool = False  # the machine lacks what it takes: not a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything one run found. `subjects[0]` is the baseline that ratios refer to."""

    subjects: Sequence[str]
    against_yardstick: bool  # the baseline is the bare responder, not a server
    machine: Sequence[tuple[str, str]]  # label and text, in order
    options: Sequence[tuple[str, str]]
    cells: Sequence[Measured]
    transfers: Sequence[tuple[str, Timings]]  # scenario and its copies-and-loopback yardstick
    timings: Sequence[Timings]
    memory: Sequence[Memory]
    attacks: Sequence[Attack] = ()
    skipped: Sequence[Skipped]
    references: Sequence[str] = ()  # measured beside the servers over gRPC

    def measured(self, cell: Cell, subject: str) -> Measured | None:
        """Return the figures of `subject` in `cell`, if it was measured there."""
        return next((each for each in self.cells if (each.cell, each.subject) == (cell, subject)), None)

    @property
    def rows(self) -> Sequence[Cell]:
        """The cells in the order in which they were measured, each once."""
        return list(dict.fromkeys(each.cell for each in self.cells))

    @property
    def failures(self) -> int:
        """Requests without a good answer, over everything."""
        return sum(each.failures for each in self.cells)
