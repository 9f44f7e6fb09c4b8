"""One run from start to end: when each subject is started, and what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import machine, operations, repository
from benchmarks.awake import kept_awake
from benchmarks.grpc.clients import for_way
from benchmarks.grpc.runner import GrpcRunner
from benchmarks.grpc.subjects import of as grpc_face
from benchmarks.grpc.subjects import reference
from benchmarks.hostile.measure import Siege
from benchmarks.operations import NoRecovery
from benchmarks.payloads import WrongAnswer
from benchmarks.results import Attack, Memory, Report, Skipped, Timings
from benchmarks.runner import Findings, Plan, Progress, Runner
from benchmarks.scenarios import RECOVERY_SCENARIO
from benchmarks.subjects import Source, Subject, Target, prepared, yardstick

STARTUP_MODELS: Final = 10
BUSY: Final = 0.3  # load a core above which a person is warned


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a session is asked to measure."""

    plan: Plan
    operations: frozenset[str]
    targets: Sequence[Target]
    comparing: bool
    kills: int
    hostile: str = ""
    awake: bool = False  # whether a core is kept awake meanwhile


class Session:
    """One run: what it was asked, what it has found."""

    def __init__(self, asked: Order, progress: Progress, scratch: Path) -> None:
        self._asked = asked
        self._progress = progress
        self._scratch = scratch
        self._timings: list[Timings] = []
        self._memory: list[Memory] = []
        self._attacks: Sequence[Attack] = ()
        self._skipped: list[Skipped] = []

    def run(self) -> Report:
        """Measure everything that was asked.

        Raises NotStarted if a server or the yardstick does not come up.
        """
        plan = self._asked.plan
        described = machine.describe(self._clients)
        if machine.busy() > BUSY:
            self._progress.result(
                f"this machine is busy ({machine.busy():.2f} a core): expect low and noisy figures"
            )
        options = [("rounds", f"{plan.rounds} of {plan.seconds:g} s a cell, after a warm-up; medians")]
        with ExitStack() as stack:
            if self._asked.awake:
                options.append(("kept awake", stack.enter_context(kept_awake())))
            sources = [stack.enter_context(prepared(target, self._scratch)) for target in self._asked.targets]
            if "startup" in self._asked.operations:
                self._startup(sources)
            if "hostile" in self._asked.operations:
                self._besiege(sources)
            found, subjects = self._serve(sources)
        return Report(
            subjects=subjects,
            against_yardstick=not self._asked.comparing,
            machine=described,
            options=options,
            cells=found.cells,
            transfers=found.transfers,
            timings=self._timings,
            memory=self._memory,
            attacks=self._attacks,
            skipped=[*self._skipped, *found.skipped],
            references=self._references if plan.grpc_scenarios else (),
        )

    @property
    def _clients(self) -> Sequence[str]:
        plan = self._asked.plan
        over_http = plan.clients if plan.scenarios else ()
        over_grpc = (
            each for row in plan.grpc_scenarios for each in for_way(row.way, tuple(plan.grpc_clients))
        )
        return list(dict.fromkeys([*over_http, *over_grpc]))

    @property
    def _models(self) -> Sequence[str]:
        plan = self._asked.plan
        recovery = [RECOVERY_SCENARIO.model] if "recovery" in self._asked.operations else []
        over_grpc = [model for row in plan.grpc_scenarios for model in (row.model, *row.models)]
        return [*(each.model for each in plan.scenarios), *over_grpc, *recovery]

    def _serve(self, sources: Sequence[Source]) -> tuple[Findings, Sequence[str]]:
        """Start every subject and measure memory, load and recovery, in this order.

        Returns the load's findings.
        """
        models = self._scratch / "models"
        models.mkdir()
        left_out = repository.write_some(models, self._models)
        with ExitStack() as stack:
            servers = []
            for source in sources:
                self._progress.step(f"starting {source.label}")
                servers.append(stack.enter_context(source.serve(models, self._scratch)))
            ours = [subject for subject in servers if subject.pid is not None]
            if "memory" in self._asked.operations:
                self._memory = [operations.idle_memory(subject) for subject in ours]
            bare = None
            if not self._asked.comparing:
                bare = stack.enter_context(yardstick(self._scratch))
            subjects = [subject.label for subject in (*filter(None, [bare]), *servers)]
            plan = self._without(left_out)
            found = Runner(plan, servers, bare, self._progress).run()
            found.extend(self._grpc(plan, servers))
            if "recovery" in self._asked.operations:
                for subject in ours:
                    self._recovery(subject)
        return found, subjects

    def _grpc(self, plan: Plan, servers: Sequence[Subject]) -> Findings:
        """Load the servers over gRPC, beside the references unless servers are compared with one another."""
        if not plan.grpc_scenarios:
            return Findings()
        with ExitStack() as stack:
            references = [stack.enter_context(reference(name, self._scratch)) for name in self._references]
            faces = [grpc_face(subject) for subject in servers]
            return GrpcRunner(plan, faces, references, self._progress).run()

    @property
    def _references(self) -> Sequence[str]:
        return () if self._asked.comparing else self._asked.plan.grpc_references

    def _without(self, left_out: Mapping[str, str]) -> Plan:
        """Return the plan without scenarios whose model could not be written."""
        plan = self._asked.plan
        models = [(each.name, each.model) for each in plan.scenarios]
        models += [(each.name, each.model) for each in plan.grpc_scenarios]
        for name, model in models:
            if model in left_out:
                reason = left_out[model]
                self._skipped.append(Skipped(name, "all", reason, expected=reason == repository.NO_GPU))
        return replace(
            plan,
            scenarios=[each for each in plan.scenarios if each.model not in left_out],
            grpc_scenarios=[each for each in plan.grpc_scenarios if each.model not in left_out],
        )

    def _startup(self, sources: Sequence[Source]) -> None:
        models = self._scratch / "startup"
        try:
            repository.write_copies(models, STARTUP_MODELS)
        except repository.Unavailable as error:
            self._skipped.append(Skipped("startup", "all", str(error)))
            return
        startable = [source for source in sources if source.directory is not None]
        taken: dict[str, list[float]] = {source.label: [] for source in startable}
        for turn in range(max(3, self._asked.plan.rounds)):
            for source in startable:
                self._progress.step(f"start-up {turn + 1}, {source.label}")
                taken[source.label].append(operations.startup(source, models, self._scratch))
        for label, seconds in taken.items():
            title = f"start to ready, {STARTUP_MODELS} ONNX models"
            self._add(Timings("startup", title, label, seconds))

    def _besiege(self, sources: Sequence[Source]) -> None:
        checkout = next((source.directory for source in sources if source.directory is not None), None)
        if checkout is None:
            self._skipped.append(
                Skipped("hostile", "all", "a server that was not started here can't be looked into")
            )
            return
        siege = Siege(checkout, self._scratch, self._progress, seconds=self._asked.plan.seconds)
        self._attacks, skipped = siege.run(self._asked.hostile)
        self._skipped += skipped

    def _recovery(self, subject: Subject) -> None:
        seconds: list[float] = []
        try:
            for each in operations.recoveries(subject, RECOVERY_SCENARIO, self._asked.kills):
                seconds.append(each)
                self._progress.step(f"worker killed {len(seconds)} times, {subject.label}")
        except (NoRecovery, WrongAnswer, OSError) as error:
            self._skipped.append(Skipped("recovery", subject.label, f"after {len(seconds)} kills: {error}"))
        if seconds:
            self._add(Timings("recovery", "worker killed to next good answer", subject.label, seconds))

    def _add(self, timings: Timings) -> None:
        self._timings.append(timings)
        self._progress.result(
            f"{timings.title}, {timings.subject}: p50 {timings.p50 * 1e3:.1f} ms, p99 {timings.p99 * 1e3:.1f} ms"
        )
