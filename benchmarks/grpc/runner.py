"""Carries the gRPC part of a plan out.

It verifies, loads servers and references in turn, and compares the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.grpc import judge, payloads
from benchmarks.grpc.clients import GRPC_CLIENTS, GrpcClient, Task, for_way
from benchmarks.grpc.judge import Address
from benchmarks.grpc.scenarios import GrpcScenario, Shape
from benchmarks.grpc.subjects import GrpcSubject
from benchmarks.payloads import WrongAnswer
from benchmarks.results import Cell, Load, Sample
from benchmarks.runner import Findings, Plan, Progress, Turns, sampled
from benchmarks.scenarios import MIB


@dataclass(frozen=True, slots=True)
class _Answering:
    """A subject that gave the right answer, or pretends to, and the size of an answer's message."""

    subject: GrpcSubject
    address: Address
    answer_size: int


class GrpcRunner:
    """Runs a plan's gRPC scenarios against servers, and against references where they are given."""

    def __init__(
        self,
        plan: Plan,
        servers: Sequence[GrpcSubject],
        references: Sequence[GrpcSubject],
        progress: Progress,
        clients: Mapping[str, GrpcClient] = GRPC_CLIENTS,
    ) -> None:
        self._plan = plan
        self._servers = servers
        self._references = references
        self._clients = clients
        cells = sum(len(list(self._cells(each))) for each in plan.grpc_scenarios)
        self._turns = Turns(seconds=plan.seconds, rounds=plan.rounds, cells=cells, progress=progress)

    def run(self) -> Findings:
        """Measure everything; what can't be measured is listed in the findings with its reason."""
        for scenario in self._plan.grpc_scenarios:
            servers = list(self._verified(scenario, self._servers))
            if not servers:
                self._turns.pass_over(len(list(self._cells(scenario))))
                continue
            references = self._beside(scenario, servers[0].answer_size)
            if scenario.transfer and self._references:
                mib = scenario.transfer // MIB
                title = f"two copies and a loopback trip, {mib} MiB, beside gRPC"
                self._turns.transfer(scenario.name, scenario.transfer, title)
            for cell, shape in self._cells(scenario):
                takers = {
                    each.subject.label: self._taker(cell, shape, scenario, each)
                    for each in (*references, *servers)
                }
                self._turns.measure(cell, takers)
        return self._turns.findings

    def _cells(self, scenario: GrpcScenario) -> Iterator[tuple[Cell, Shape]]:
        for client in for_way(scenario.way, tuple(self._plan.grpc_clients)):
            for shape in scenario.shapes:
                yield (
                    Cell(scenario.name, scenario.title, shape.connections, client, "grpc", shape.streams),
                    shape,
                )

    def _verified(self, scenario: GrpcScenario, subjects: Sequence[GrpcSubject]) -> Iterator[_Answering]:
        for subject in subjects:
            if subject.address is None:
                self._turns.skip(scenario.name, subject.label, "its gRPC port is not known")
                continue
            try:
                judge.counts(subject.address, scenario.models)
                size = judge.verify(scenario, subject.address)
            except WrongAnswer as error:
                self._turns.skip(scenario.name, subject.label, str(error))
            else:
                yield _Answering(subject, subject.address, size)

    def _beside(self, scenario: GrpcScenario, answer_size: int) -> list[_Answering]:
        """Return what is measured beside the servers.

        The bare responder gives answers as large as theirs.
        """
        if scenario.on_gpu or not scenario.referenced:
            return []
        bare = [
            _Answering(each, each.address, answer_size)
            for each in self._references
            if each.is_bare and each.address is not None
        ]
        others = [each for each in self._references if not each.is_bare]
        return [*bare, *self._verified(scenario, others)]

    def _taker(
        self, cell: Cell, shape: Shape, scenario: GrpcScenario, answering: _Answering
    ) -> Callable[[float], Sample]:
        subject, client = answering.subject, self._clients[cell.client]
        task = Task(
            address=answering.address,
            path=subject.path(scenario.way, answering.answer_size),
            way=scenario.way,
            shape=shape,
            messages=_messages(scenario, shape),
            answer_size=answering.answer_size,
        )
        # h2load ends with calls under way, which a server may count as failed; the own client waits for their
        # answers.
        cut_off = shape.outstanding if cell.client == "h2load" else 0

        def take(seconds: float) -> Sample:
            if subject.is_bare:
                return sampled(subject.pid, lambda: client(task, seconds))
            before = judge.counts(answering.address, scenario.models)
            sample = sampled(subject.pid, lambda: client(task, seconds))
            wrong = judge.unaccounted(
                answering.address, scenario.models, before, answered=sample.load.requests, cut_off=cut_off
            )
            return replace(sample, load=_with_refused(sample.load, wrong))

        return take


def _messages(scenario: GrpcScenario, shape: Shape) -> Sequence[Sequence[bytes]]:
    """Return what each of the calls under way sends, over and over; one for all if they don't differ."""
    inputs = scenario.inputs()
    scripts = (
        [[scenario.first]] if scenario.script is None else map(scenario.script, range(shape.outstanding))
    )
    return [[payloads.encode(each, inputs).SerializeToString() for each in script] for script in scripts]


def _with_refused(load: Load, wrong: int) -> Load:
    """Return the load with the larger of the two counts of refusals.

    They are the client's and the server's of the same calls.
    """
    return replace(load, refused=max(load.refused, wrong))
