"""What one call at a time takes of a server: measured, and laid out in tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import parsers, repository
from benchmarks.report import NOTHING, Table, count, microseconds
from benchmarks.results import percentile
from benchmarks.subjects import NotStarted, Source, Subject, running, tree, wait_ready
from benchmarks.wakeups import counters, timeline, watched
from benchmarks.wakeups.callers import CALLERS, SCENARIO, Caller, caller
from benchmarks.wakeups.counters import Unavailable, Used
from benchmarks.wakeups.timeline import Call, Counts, Moment
from chaos.subject.ports import free_ports

_WARM_UP: Final = 0.5  # seconds
_WATCHED: Final = 2000  # calls whose turns are looked at: the page holds some twice as many
_TRACED: Final = 300  # calls whose system calls are counted
_IDLE: Final = 1.0  # seconds in which an idle server's turns are counted


@dataclass(frozen=True, slots=True)
class Round:
    """One round of calls: how long each took, in nanoseconds, and what server and workers used for them."""

    latencies: Sequence[int]
    server: Used
    workers: Used


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found of one server over one protocol."""

    label: str
    protocol: str
    rounds: Sequence[Round]
    counts: Counts
    moments: Sequence[Moment]
    idle_turns: float  # a second
    system_calls: Mapping[str, Mapping[str, float]]  # of the server and the workers, each for one call


@dataclass(frozen=True, slots=True)
class _Servers:
    """One checkout's servers: one as it is, and one whose loop is watched."""

    label: str
    plain: Subject
    watched: Subject
    page: Path


def measure(sources: Sequence[Source], *, seconds: float, rounds: int, scratch: Path) -> list[Found]:
    """Measure each source over each protocol; rounds go in turn. Raises NotStarted and WrongAnswer."""
    models = scratch / "models"
    models.mkdir()
    for reason in repository.write_some(models, [SCENARIO.model]).values():
        raise NotStarted(f"the model can't be made here: {reason}")
    found = []
    with ExitStack() as stack:
        every = [_started(source, models, scratch, stack) for source in sources]
        for protocol in CALLERS:
            with ExitStack() as connections:
                callers = [connections.enter_context(caller(protocol, each.plain)) for each in every]
                for each in callers:
                    each.calls(_WARM_UP)
                taken: list[list[Round]] = [[] for _ in every]
                for _ in range(rounds):
                    for servers, asking, into in zip(every, callers, taken, strict=True):
                        into.append(_round(servers.plain, asking, seconds))
            found += [
                _looked_into(servers, protocol, into, scratch)
                for servers, into in zip(every, taken, strict=True)
            ]
    return found


def _started(source: Source, models: Path, scratch: Path, stack: ExitStack) -> _Servers:
    if source.directory is None:
        raise NotStarted(f"{source.label} was not started here, and can't be looked into")
    page = scratch / f"loop-{len(list(scratch.glob('loop-*')))}"
    return _Servers(
        source.label,
        stack.enter_context(source.serve(models, scratch)),
        stack.enter_context(_watched(source.label, source.directory, models, page)),
        page,
    )


@contextmanager
def _watched(label: str, checkout: Path, models: Path, page: Path) -> Iterator[Subject]:
    http, grpc, metrics = free_ports(3)
    command = [sys.executable, "-P", watched.__file__, str(page), f"--model-repository={models}"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--http-port={http}"]
    command += [f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    log = page.with_suffix(".log")
    with running(command, cwd=checkout, log=log) as child:
        subject = Subject(label=label, host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
        wait_ready(subject, child, log)
        yield subject


def _used(subject: Subject) -> tuple[Used, Used]:
    assert subject.pid is not None
    return counters.used(subject.pid), counters.used(*_workers(subject))


def _workers(subject: Subject) -> Sequence[int]:
    return parsers.worker_pids(tree(subject), SCENARIO.model)


def _round(subject: Subject, asking: Caller, seconds: float) -> Round:
    before = _used(subject)
    made = asking.calls(seconds)
    server, workers = _used(subject)
    return Round([call.received - call.sent for call in made], server - before[0], workers - before[1])


def _looked_into(servers: _Servers, protocol: str, rounds: Sequence[Round], scratch: Path) -> Found:
    page = watched.Page(servers.page)
    before = page.count
    time.sleep(_IDLE)
    idle = sum(what == watched.Mark.WOKEN for _, what in page.since(before)) / _IDLE
    with caller(protocol, servers.watched) as asking:
        asking.calls(_WARM_UP)
        before = page.count
        made = [asking.call() for _ in range(_WATCHED)]
        marks = page.since(before)
    names = watched.names_of(servers.page).read_text().splitlines()
    seen = list(timeline.turns(marks, names))
    return Found(
        label=servers.label,
        protocol=protocol,
        rounds=rounds,
        counts=timeline.counts(seen, len(made)),
        moments=timeline.timeline(seen, made),
        idle_turns=idle,
        system_calls=_traced(servers.plain, protocol, scratch),
    )


def _traced(subject: Subject, protocol: str, scratch: Path) -> Mapping[str, Mapping[str, float]]:
    assert subject.pid is not None
    of = {"server": subject.pid, "worker": _workers(subject)[0]}
    with caller(protocol, subject) as asking:
        asking.call()

        def ask() -> list[Call]:
            return [asking.call() for _ in range(_TRACED)]

        try:
            return {
                who: {name: number / _TRACED for name, number in counters.traced(pid, ask, scratch).items()}
                for who, pid in of.items()
            }
        except Unavailable as reason:
            print(f"benchmarks: system calls are not counted: {reason}", file=sys.stderr)
            return {}


def tables(found: Sequence[Found]) -> Sequence[Table]:
    """Lay out what was found."""
    return [_figures(found), _turns(found), _system_calls(found), *map(_moments, found)]


def _figures(found: Sequence[Found]) -> Table:
    columns = ["server", "protocol", "calls/s", "p50 µs", "p99 µs", "server CPU µs", "worker CPU µs"]
    columns += ["server sleeps", "displaced", "worker sleeps", "displaced"]
    return Table(
        "One call at a time, each figure for one call; medians over rounds",
        columns,
        [_figures_row(each) for each in found],
        words=2,
    )


def _figures_row(found: Found) -> list[str]:
    each = [(sorted(one.latencies), one) for one in found.rounds]
    switches = [
        median(getattr(getattr(one, who), what) / len(took) for took, one in each)
        for who in ("server", "workers")
        for what in ("slept", "driven")
    ]
    return [
        found.label,
        found.protocol,
        count(median(1e9 * len(took) / sum(took) for took, _ in each)),
        microseconds(median(percentile(took, 50) for took, _ in each) / 1e9),
        microseconds(median(percentile(took, 99) for took, _ in each) / 1e9),
        f"{median(one.server.cpu / len(took) for took, one in each) / 1e3:.1f}",
        f"{median(one.workers.cpu / len(took) for took, one in each) / 1e3:.1f}",
        *(f"{figure:.2f}" for figure in switches),
    ]


def _turns(found: Sequence[Found]) -> Table:
    rows = []
    for each in found:
        seen = each.counts
        tasks = ", ".join(f"{name} {number:.2f}" for name, number in seen.tasks if number >= 0.005)
        figures = [f"{seen.turns:.2f}", f"{seen.polls:.2f}", f"{seen.steps:.2f}", f"{each.idle_turns:.0f}"]
        rows.append([each.label, each.protocol, tasks, *figures])
    columns = ["server", "protocol", "steps by task", "turns", "without sleep", "steps of tasks"]
    return Table("Turns of the loop for one call", [*columns, "idle: turns a second"], rows, words=3)


def _system_calls(found: Sequence[Found]) -> Table:
    rows = []
    for each in found:
        for who, made in each.system_calls.items():
            often = sorted(made.items(), key=lambda item: -item[1])
            what = ", ".join(f"{name} {number:.2f}" for name, number in often if number >= 0.02)
            rows.append([each.label, each.protocol, who, what or NOTHING, f"{sum(made.values()):.2f}"])
    return Table("System calls for one call", ["server", "protocol", "of", "which", "all"], rows, words=4)


def _moments(found: Found) -> Table:
    rows = [[moment.what, f"{moment.at / 1e3:.1f}"] for moment in found.moments]
    title = f"Time line of one call over {found.protocol} to {found.label}, watched; medians"
    return Table(title, ["what", "at µs"], rows)
