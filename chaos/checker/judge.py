"""Judges a run by its folder: reads everything once, and says which goals were reached."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.checker.goals import (
    MOST_EVIDENCE,
    Evidence,
    FaultSummary,
    Findings,
    Goal,
    Verdict,
    at_most,
    write_verdict,
)
from chaos.checker.injections import Blow, blows, by_number
from chaos.checker.rates import AllRates
from chaos.checker.rules.answers import Answers, Expected
from chaos.checker.rules.endings import ending_goals, other_figures
from chaos.checker.rules.errors_told import ErrorsTold
from chaos.checker.rules.excuses import Excuses, offers
from chaos.checker.rules.in_flight import in_flight_errors
from chaos.checker.rules.limits import Limits
from chaos.checker.rules.load import Goodput, Load
from chaos.checker.rules.log import Log, LogLine, hang_times
from chaos.checker.rules.outcomes import Deadlines, Executions, Outcomes
from chaos.checker.rules.recovery import Recovery
from chaos.checker.rules.resources import resource_goals
from chaos.checker.rules.unaffected import Unaffected
from chaos.checker.soak import soak_goals
from chaos.checker.story import End, Pairing, Rule
from chaos.record.records import (
    Ending,
    Executed,
    Fail,
    Healed,
    Injected,
    Invoke,
    Manifest,
    Ok,
    PassedOver,
    R,
    Sample,
    Tally,
    Unknown,
    read_manifest,
    read_records,
)
from engine.observability.reading.reading import read


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that a run has written down. `history` and `journal` can be read once."""

    manifest: Manifest
    history: Iterable[Invoke | End]
    journal: Iterable[Executed]
    faults: Sequence[Injected | Healed]
    samples: Sequence[Sample]
    endings: Sequence[Ending]
    log: Iterable[LogLine]
    passed_over: Sequence[PassedOver] = ()
    tally: Tally | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on a run, and what a report of it is drawn from."""

    manifest: Manifest
    verdict: Verdict
    samples: Sequence[Sample]
    rates: AllRates


def judge_folder(folder: Path, expected: Expected, limits: Limits, *, long: bool = False) -> Judgement:
    """Judge the run in a folder and write its `verdict.json`.

    The resources that a `long` run takes must not grow, either. Raises OSError if a file of the record is
    missing, and ValueError for a line that is not a record.
    """
    judgement = judge(read_run(folder), expected, limits)
    if long:
        verdict = judgement.verdict
        goals = (*verdict.goals, *soak_goals(judgement.samples))
        judgement = replace(judgement, verdict=replace(verdict, goals=goals))
    write_verdict(folder, judgement.verdict)
    return judgement


def read_run(folder: Path) -> Run:
    """Return what the run in a folder has written.

    A run that left out the endings has no `endings.jsonl`. A run that was cut short has neither that nor
    `tally.jsonl`.
    """
    return Run(
        manifest=read_manifest(folder),
        history=read_records(folder / "history.jsonl", Invoke, Ok, Fail, Unknown),
        journal=journal(folder / "journal"),
        faults=list(read_records(folder / "faults.jsonl", Injected, Healed)),
        samples=[*read_records(folder / "samples.jsonl", Sample)],
        endings=[*_if_there(folder / "endings.jsonl", Ending)],
        passed_over=[*read_records(folder / "faults.jsonl", PassedOver)],
        tally=next(_if_there(folder / "tally.jsonl", Tally), None),
        log=read(sorted(path for path in (folder / "server").glob("*") if path.is_file())),
    )


def journal(folder: Path) -> Iterable[Executed]:
    """Return what the models have written into the files of a folder, by time.

    Each file is in the order of time. It is read whole, because a run has more workers than a process may
    have files open. Raises ValueError for a line that is not a record.
    """
    return heapq.merge(
        *([*read_records(path, Executed)] for path in folder.glob("*")), key=lambda each: each.t
    )


def judge(run: Run, expected: Expected, limits: Limits) -> Judgement:
    """Judge a run."""
    manifest, began = run.manifest, run.manifest.began
    hits = blows(run.faults)
    pairing = Pairing()
    offered = offers(hits, manifest, limits)
    excuses = Excuses(offered)
    outcomes = Outcomes(excuses, pairing, limits, run.tally, began)
    recovery = Recovery(hits, limits, began)
    load = Load(manifest, limits)
    errors_told = ErrorsTold(hits, limits, began)
    rules: Sequence[Rule] = (
        load,
        outcomes,
        Executions(limits, pairing, began),
        Answers(expected, began),
        Deadlines(hits, limits, began),
        recovery,
        Unaffected(hits, offered, limits, began),
        Goodput(manifest, limits),
        errors_told,
    )
    rates = AllRates()
    for story in pairing.stories(run.history, run.journal):
        rates.see(story)
        for rule in rules:
            rule.see(story)
    log = Log(run.log, hits, began - manifest.began_wall)
    recovery.told(log.started, log.ready)
    errors_told.told(log.errors)
    goals = [goal for rule in rules for goal in rule.goals()]
    goals += log.goals(began)
    goals += _log_times(log, pairing, outcomes, hits, limits)
    quiet = max((blow.healed for blow in hits), default=None)
    goals += resource_goals(run.samples, manifest, quiet, limits)
    goals += ending_goals(run.endings)
    goals.append(_troubles(hits, began))
    goals.append(_injected(hits, run.passed_over, limits))
    figures = {
        "requests sent": float(load.sent),
        "good answers": float(outcomes.good),
        "executions of unknown requests": float(pairing.unclaimed),
        "faults": float(len(hits)),
        "faults passed over": float(len(run.passed_over)),
        **load.figures(),
        **other_figures(run.endings),
    }
    verdict = Verdict(goals=tuple(goals), figures=figures, faults=_summaries(hits, excuses, log, recovery))
    return Judgement(manifest=manifest, verdict=verdict, samples=run.samples, rates=rates)


def _log_times(
    log: Log, pairing: Pairing, outcomes: Outcomes, hits: Sequence[Blow], limits: Limits
) -> Iterator[Goal]:
    errors = in_flight_errors(outcomes.excused, by_number(hits), log.exits)
    yield at_most(
        limits.in_flight_p99,
        errors,
        name="in-flight error p99",
        about="worker died → error of what it was executing",
        share=0.99,
    )
    hangs = hang_times(log.exits, pairing.unended, limits.execution_timeout)
    yield at_most(
        limits.hang,
        hangs,
        name="hang detected",
        about="the longest time from the end of a hanging execution's limit until the log tells of its worker's end",
    )


def _troubles(hits: Sequence[Blow], began: float) -> Goal:
    troubles = Findings()
    for blow in hits:
        if blow.trouble:
            troubles.add(blow.trouble, f"fault {blow.n}", blow.told(began))
    return troubles.goal(
        "trouble with faults",
        "injections that went wrong, or saw what should not have been",
        measured=len(hits),
    )


def _injected(hits: Sequence[Blow], passed_over: Sequence[PassedOver], limits: Limits) -> Goal:
    missed = [each for each in passed_over if not each.restraint]
    planned = len(hits) + len(missed)
    return Goal(
        name="faults injected",
        about="planned faults that found what they were to hit: a run without faults proves nothing",
        limit=limits.injected,
        figure=len(hits) / planned if planned else None,
        sense="at least",
        unit="×",
        measured=planned,
        found=len(missed),
        evidence=tuple(
            Evidence(what="passed over", id=f"fault {each.n}", story=f"{each.fault}: {each.why}")
            for each in missed[:MOST_EVIDENCE]
        ),
    )


def _summaries(
    hits: Sequence[Blow], excuses: Excuses, log: Log, recovery: Recovery
) -> tuple[FaultSummary, ...]:
    times = recovery.times()
    named: dict[str, list[Blow]] = {}
    for blow in hits:
        named.setdefault(blow.injected.fault, []).append(blow)
    return tuple(_summary(name, named[name], excuses, log, times) for name in sorted(named))


def _summary(
    name: str, hits: Sequence[Blow], excuses: Excuses, log: Log, times: dict[int, float]
) -> FaultSummary:
    excused: dict[str, int] = {}
    for blow in hits:
        for code, count in excuses.used(blow.n).items():
            excused[code] = excused.get(code, 0) + count
    return FaultSummary(
        fault=name,
        count=len(hits),
        excused=excused,
        lines_expected=sum(len(blow.injected.expects) for blow in hits),
        lines_found=sum(log.found(blow.n) for blow in hits),
        recoveries=tuple(times[blow.n] for blow in hits if blow.n in times),
        troubles=tuple(f"{blow.n}: {blow.trouble}" for blow in hits if blow.trouble),
    )


def _if_there(path: Path, kind: type[R]) -> Iterator[R]:
    if path.exists():
        yield from read_records(path, kind)
