"""Carries a plan out: verifies an answer, warms up, then loads the subjects in turn, round by round."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from benchmarks import payloads, processes, transfer
from benchmarks.clients import CLIENTS, Client, ClientFailed
from benchmarks.grpc.scenarios import GrpcScenario
from benchmarks.parsers import UnreadableOutput
from benchmarks.payloads import Request, WrongAnswer
from benchmarks.results import Cell, Load, Measured, Sample, Skipped, Timings
from benchmarks.scenarios import MIB, Scenario
from benchmarks.subjects import Subject

WARM_UP: Final = 0.25  # of a round's length, before the first round of a cell
_WARM_UP_LEAST: Final = 0.5  # seconds: enough for an answer of the slowest


class Progress(Protocol):
    """Shows the progress of a run."""

    def step(self, text: str) -> None:
        """Say what is being done now."""

    def result(self, text: str) -> None:
        """Say what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure over HTTP and over gRPC, and for how long."""

    scenarios: Sequence[Scenario]
    clients: Sequence[str] = ("wrk",)
    grpc_scenarios: Sequence[GrpcScenario] = ()
    grpc_clients: Sequence[str] = ("h2load",)
    grpc_references: Sequence[str] = ()
    seconds: float = 3.0
    rounds: int = 1

    @property
    def cells(self) -> int:
        """How many cells there are over HTTP, for the progress display."""
        return sum(len(each.concurrencies) for each in self.scenarios) * len(self.clients)


@dataclass(slots=True)
class Findings:
    """What a run has found so far."""

    cells: list[Measured] = field(default_factory=list)
    transfers: list[tuple[str, Timings]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def extend(self, more: Findings) -> None:
        """Add what another run has found."""
        self.cells += more.cells
        self.transfers += more.transfers
        self.skipped += more.skipped


@dataclass(frozen=True, slots=True)
class Verified:
    """A request to which a server gave the right answer, and the size of that answer's body."""

    request: Request
    answer_size: int


def verify(scenario: Scenario, subject: Subject) -> Verified:
    """Send a scenario's request once and check the answer.

    Raises WrongAnswer, also if there is no answer at all.
    """
    try:
        metadata = subject.get_json(f"/v2/models/{scenario.model}") if scenario.inputs is None else None
        request, expected = payloads.build(scenario, metadata)
        outputs, size = subject.infer(scenario.model, request)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WrongAnswer(f"{scenario.model}: {error!r}") from error
    payloads.check(outputs, expected)
    return Verified(request, size)


def sampled(pid: int | None, load: Callable[[], Load]) -> Sample:
    """Run a load client once, and read the CPU time of a process tree around it, if there is one to read."""
    before = 0.0 if pid is None else processes.cpu_seconds(pid)
    seen = load()
    return Sample(seen, None if pid is None else processes.cpu_seconds(pid) - before)


class Turns:
    """Loads subjects in turn, cell by cell, and keeps what was found."""

    def __init__(self, *, seconds: float, rounds: int, cells: int, progress: Progress) -> None:
        self.findings = Findings()
        self._seconds = seconds
        self._rounds = rounds
        self._cells = cells
        self._progress = progress
        self._done = 0

    def pass_over(self, cells: int) -> None:
        """Count cells that are not measured."""
        self._done += cells

    def skip(self, what: str, subject: str, reason: str) -> None:
        """Say that something is left out."""
        self.findings.skipped.append(Skipped(what, subject, reason))
        self._progress.result(f"{what} of {subject} is left out: {reason}")

    def transfer(self, scenario: str, nbytes: int, title: str) -> None:
        """Measure what copies and loopback take, for a scenario."""
        self._progress.step(title)
        timings = Timings(
            "transfer", title, "memory and loopback", transfer.measure(nbytes, min(1.0, self._seconds))
        )
        self.findings.transfers.append((scenario, timings))
        self._progress.result(f"{title}: {timings.p50 * 1e3:.2f} ms")

    def measure(self, cell: Cell, takers: Mapping[str, Callable[[float], Sample]]) -> None:
        """Warm up, then take the rounds of a cell.

        `takers` are the subjects' labels, each with the function that loads the subject for so many seconds.
        """
        self._done += 1
        samples: dict[str, list[Sample]] = {label: [] for label in takers}
        for turn in range(-1, self._rounds):  # turn -1 warms up
            for label in list(samples):
                self._say(cell, label, turn)
                seconds = self._seconds if turn >= 0 else max(self._seconds * WARM_UP, _WARM_UP_LEAST)
                try:
                    sample = takers[label](seconds)
                except (ClientFailed, UnreadableOutput, WrongAnswer) as error:
                    del samples[label]
                    self.skip(f"{cell.scenario} at {cell.at}", label, str(error))
                else:
                    samples[label] += [sample] if turn >= 0 else []
        for label, taken in samples.items():
            self._found(Measured(cell, label, taken))

    def _found(self, measured: Measured) -> None:
        self.findings.cells.append(measured)
        cell = measured.cell
        self._progress.result(
            f"{cell.title}, {cell.client} at {cell.at}, {measured.subject}: {measured.rate:,.0f} req/s, "
            f"p50 {measured.p50 * 1e3:.3f} ms, p99 {measured.p99 * 1e3:.3f} ms"
            + (f", {measured.failures} FAILED" if measured.failures else "")
        )

    def _say(self, cell: Cell, label: str, turn: int) -> None:
        which = "warm-up" if turn < 0 else f"round {turn + 1} of {self._rounds}"
        where = f"[{self._done}/{self._cells}]"
        self._progress.step(f"{where} {cell.title}, {cell.client} at {cell.at}, {label}, {which}")


class Runner:
    """Runs a plan's scenarios against servers, and the yardstick where one is given."""

    def __init__(
        self,
        plan: Plan,
        servers: Sequence[Subject],
        yardstick: Subject | None,
        progress: Progress,
        clients: Mapping[str, Client] = CLIENTS,
    ) -> None:
        self._plan = plan
        self._servers = servers
        self._yardstick = yardstick
        self._clients = clients
        self._turns = Turns(seconds=plan.seconds, rounds=plan.rounds, cells=plan.cells, progress=progress)

    def run(self) -> Findings:
        """Measure everything; what can't be measured is listed in the findings with its reason."""
        for scenario in self._plan.scenarios:
            answering = self._verify(scenario)
            if not answering:
                self._turns.pass_over(len(scenario.concurrencies) * len(self._plan.clients))
                continue
            if scenario.transfer and self._yardstick is not None:
                mib = scenario.transfer // MIB
                self._turns.transfer(
                    scenario.name, scenario.transfer, f"two copies and a loopback trip, {mib} MiB"
                )
            subjects = [subject for subject, _ in answering]
            _, verified = answering[0]
            if self._yardstick is not None:
                subjects.insert(0, self._yardstick)
            for cell in self._cells(scenario):
                takers = {each.label: self._taker(cell, scenario, each, verified) for each in subjects}
                self._turns.measure(cell, takers)
        return self._turns.findings

    def _cells(self, scenario: Scenario) -> Iterator[Cell]:
        for client in self._plan.clients:
            for concurrency in scenario.concurrencies:
                yield Cell(scenario.name, scenario.title, concurrency, client)

    def _verify(self, scenario: Scenario) -> list[tuple[Subject, Verified]]:
        answering = []
        for subject in self._servers:
            try:
                answering.append((subject, verify(scenario, subject)))
            except WrongAnswer as error:
                self._turns.skip(scenario.name, subject.label, str(error))
        return answering

    def _taker(
        self, cell: Cell, scenario: Scenario, subject: Subject, verified: Verified
    ) -> Callable[[float], Sample]:
        url, client = subject.url(scenario.model, verified.answer_size), self._clients[cell.client]

        def take(seconds: float) -> Sample:
            run = partial(client, url, verified.request, concurrency=cell.concurrency, seconds=seconds)
            return sampled(subject.pid, run)

        return take
