"""Carries a plan out: verifies an answer, warms up, then loads the subjects in turn, round by round."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from benchmarks import payloads, processes, transfer
from benchmarks.clients import CLIENTS, Client, ClientFailed
from benchmarks.parsers import UnreadableOutput
from benchmarks.payloads import Request, WrongAnswer
from benchmarks.results import Cell, Measured, Sample, Skipped, Timings
from benchmarks.scenarios import MIB, Scenario
from benchmarks.subjects import Subject

WARM_UP: Final = 0.25  # of a round's length, before the first round of a cell


class Progress(Protocol):
    """Whoever watches."""

    def step(self, text: str) -> None:
        """Say what is being done now."""

    def result(self, text: str) -> None:
        """Say what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure and for how long."""

    scenarios: Sequence[Scenario]
    clients: Sequence[str] = ("wrk",)
    seconds: float = 3.0
    rounds: int = 1

    @property
    def cells(self) -> int:
        """How many cells there are, for whoever counts."""
        return sum(len(each.concurrencies) for each in self.scenarios) * len(self.clients)


@dataclass(slots=True)
class Findings:
    """What a run has found so far."""

    cells: list[Measured] = field(default_factory=list)
    transfers: list[tuple[str, Timings]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verified:
    """A request to which a server gave the right answer, and the size of that answer's body."""

    request: Request
    answer_size: int


def verify(scenario: Scenario, subject: Subject) -> Verified:
    """Send a scenario's request once and check the answer. Raises WrongAnswer, also where there is none at all."""
    try:
        metadata = subject.get_json(f"/v2/models/{scenario.model}") if scenario.inputs is None else None
        request, expected = payloads.build(scenario, metadata)
        outputs, size = subject.infer(scenario.model, request)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WrongAnswer(f"{scenario.model}: {error!r}") from error
    payloads.check(outputs, expected)
    return Verified(request, size)


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
        self.findings = Findings()
        self._plan = plan
        self._servers = servers
        self._yardstick = yardstick
        self._progress = progress
        self._clients = clients
        self._done = 0

    def run(self) -> Findings:
        """Measure everything; what can't be measured is listed in the findings with its reason."""
        for scenario in self._plan.scenarios:
            answering = self._verify(scenario)
            if not answering:
                self._done += len(scenario.concurrencies) * len(self._plan.clients)
                continue
            if scenario.transfer and self._yardstick is not None:
                self._transfer(scenario)
            subjects = [subject for subject, _ in answering]
            _, verified = answering[0]
            if self._yardstick is not None:
                subjects.insert(0, self._yardstick)
            for cell in self._cells(scenario):
                self._done += 1
                self._measure(cell, scenario, subjects, verified)
        return self.findings

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
                self._skip(scenario.name, subject.label, str(error))
        return answering

    def _skip(self, what: str, subject: str, reason: str) -> None:
        self.findings.skipped.append(Skipped(what, subject, reason))
        self._progress.result(f"{what} of {subject} is left out: {reason}")

    def _transfer(self, scenario: Scenario) -> None:
        title = f"two copies and a loopback trip, {scenario.transfer // MIB} MiB"
        self._progress.step(title)
        times = transfer.measure(scenario.transfer, min(1.0, self._plan.seconds))
        timings = Timings("transfer", title, "memory and loopback", times)
        self.findings.transfers.append((scenario.name, timings))
        self._progress.result(f"{title}: {timings.p50 * 1e3:.2f} ms")

    def _measure(
        self, cell: Cell, scenario: Scenario, subjects: Sequence[Subject], verified: Verified
    ) -> None:
        samples: dict[Subject, list[Sample]] = {subject: [] for subject in subjects}
        for turn in range(-1, self._plan.rounds):  # turn -1 warms up
            for subject in list(samples):
                self._say(cell, subject, turn)
                url = subject.url(scenario.model, verified.answer_size)
                seconds = self._plan.seconds * (1.0 if turn >= 0 else WARM_UP)
                try:
                    sample = self._sample(cell, subject, url, verified.request, seconds)
                except (ClientFailed, UnreadableOutput) as error:
                    del samples[subject]
                    self._skip(f"{cell.scenario} at {cell.concurrency}", subject.label, str(error))
                else:
                    samples[subject] += [sample] if turn >= 0 else []
        for subject, taken in samples.items():
            self._found(Measured(cell, subject.label, taken))

    def _sample(self, cell: Cell, subject: Subject, url: str, request: Request, seconds: float) -> Sample:
        """Run the load client once, and read the CPU time of the subject's processes around it."""
        before = 0.0 if subject.pid is None else processes.cpu_seconds(subject.pid)
        load = self._clients[cell.client](url, request, concurrency=cell.concurrency, seconds=seconds)
        return Sample(load, None if subject.pid is None else processes.cpu_seconds(subject.pid) - before)

    def _found(self, measured: Measured) -> None:
        self.findings.cells.append(measured)
        cell = measured.cell
        self._progress.result(
            f"{cell.title}, {cell.client} at {cell.concurrency}, {measured.subject}: {measured.rate:,.0f} req/s, "
            f"p50 {measured.p50 * 1e3:.3f} ms"
            + (f", {measured.failures} FAILED" if measured.failures else "")
        )

    def _say(self, cell: Cell, subject: Subject, turn: int) -> None:
        which = "warm-up" if turn < 0 else f"round {turn + 1} of {self._plan.rounds}"
        where = f"[{self._done}/{self._plan.cells}]"
        self._progress.step(
            f"{where} {cell.title}, {cell.client} at {cell.concurrency}, {subject.label}, {which}"
        )
