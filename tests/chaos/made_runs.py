"""Invented runs: the record that a faultless server would leave, in which tests plant the server's faults."""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos.checker.judge import Judgement, Run, judge
from chaos.checker.rules.limits import Limits
from chaos.checker.story import End
from chaos.record.records import (
    Ending,
    Excuse,
    Executed,
    Fail,
    Healed,
    Injected,
    Invoke,
    LogExpected,
    Manifest,
    Ok,
    PassedOver,
    Phase,
    Record,
    Sample,
    Tally,
    line_of,
    write_manifest,
)
from engine.observability.reading.formats import Line, stamp

BEGAN = 1000.0
WALL = 1_700_000_000.0
MODELS = ("echo", "add_sub", "slow", "batching", "counter", "stream")
JOURNALED = frozenset(MODELS) - {"add_sub"}
LIMITS = Limits(capacity=20.0)


def expected(invoke: Invoke, earlier: Sequence[Invoke]) -> Sequence[int]:
    """What the made-up models answer."""
    match invoke.model:
        case "add_sub":
            return invoke.value + 7, invoke.value - 7
        case "counter":
            return (sum(each.value for each in earlier) + invoke.value,)
        case "stream":
            return tuple(range(invoke.value, invoke.value + invoke.parts))
        case _:
            return (invoke.value,)


@dataclass
class MadeRun:
    """A record in memory, to be changed at will before it is judged."""

    rng: random.Random
    seconds: float = 40.0
    rate: float = 20.0
    phases: list[tuple[Phase, float, float]] = field(default_factory=list)
    history: list[Invoke | End] = field(default_factory=list)
    journal: list[Executed] = field(default_factory=list)
    faults: list[Injected | Healed] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    log: list[Line] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)
    tally: Tally = field(default_factory=lambda: Tally(t=BEGAN, surplus=0, violations=0))
    untold: set[str] = field(default_factory=set)  # requests of whose errors the log is silent
    workers: dict[str, list[int]] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    pids: Any = field(default_factory=lambda: itertools.count(100))

    def phase_at(self, t: float) -> Phase:
        return next((name for name, begin, end in self.phases if begin <= t < end), "recovery")

    def invoke(self, model: str, t: float, **given: Any) -> Invoke:
        n = next(self.numbers)
        invoke = Invoke(
            t=t,
            n=n,
            id=f"r{n}",
            model=model,
            protocol=given.pop("protocol", "http" if n % 2 else "grpc"),
            phase=self.phase_at(t),
            value=given.pop("value", n % 97),
            due=given.pop("due", t),
            **given,
        )
        self.history.append(invoke)
        return invoke

    def answer(self, invoke: Invoke, took: float, *, earlier: Sequence[Invoke] = (), pid: int = 0) -> Ok:
        end = invoke.t + took
        self.executed(invoke, invoke.t + took * 0.3, invoke.t + took * 0.8, pid=pid)
        ok = Ok(t=end, n=invoke.n, values=tuple(expected(invoke, earlier)), first=end)
        self.history.append(ok)
        return ok

    def executed(self, invoke: Invoke, begin: float, end: float | None, *, pid: int = 0) -> None:
        if invoke.model not in JOURNALED:
            return
        keys: dict[str, Any] = {
            "id": invoke.id,
            "model": invoke.model,
            "pid": pid or self.rng.choice(self.workers[invoke.model]),
            "batch": invoke.n,
        }
        self.journal.append(Executed(t=begin, end=False, **keys))
        if end is not None:
            self.journal.append(Executed(t=end, end=True, **keys))

    def fail(self, invoke: Invoke, t: float, code: str = "UNAVAILABLE") -> Fail:
        fail = Fail(t=t, n=invoke.n, code=code, message="the worker died")
        self.history.append(fail)
        return fail

    def say(self, t: float, event: str, **keys: Any) -> None:
        self.log.append(Line(time=t - BEGAN + WALL, level="warning", event=event, keys=keys))

    def kill(self, n: int, t: float, model: str = "echo") -> Injected:
        """Kill a worker that has one request in hand; its successor answers 0.2 s later."""
        pid = self.workers[model][0]
        victim = self.invoke(model, t - 0.01, protocol="http")
        self.executed(victim, t - 0.005, None, pid=pid)
        self.fail(victim, t + 0.03)
        self.say(t + 0.02, "worker_exited", pid=pid, reason="signal_9", model=model)
        successor = next(self.pids)
        self.workers[model][0] = successor
        self.say(t + 0.05, "worker_started", pid=successor, model=model)
        self.say(t + 0.15, "worker_ready", pid=successor, model=model)
        self.answer(self.invoke(model, t + 0.19), 0.01, pid=successor)
        injected = Injected(
            t=t,
            n=n,
            fault="worker_sigkill",
            models=(model,),
            detail=f"SIGKILL to worker {pid} of '{model}'",
            pid=pid,
            excuses=(Excuse(models=(model,), most=1, after=0.1),),
            expects=(LogExpected(event="worker_exited", keys={"pid": pid, "reason": "signal_9"}),),
            measures="worker",
            model=model,
        )
        self.faults += [injected, Healed(t=t + 0.01, n=n)]
        return injected

    def hang(self, n: int, t: float, model: str = "batching") -> Injected:
        """Have a request hang until its worker is ended."""
        pid = self.workers[model][1]
        poisoned = self.invoke(model, t + 0.001, poison="hang", by=n)
        self.executed(poisoned, t + 0.003, None, pid=pid)
        self.fail(poisoned, t + 2.12, "DEADLINE_EXCEEDED")
        self.say(t + 2.1, "worker_exited", pid=pid, reason="hang", model=model)
        self.workers[model][1] = next(self.pids)
        injected = Injected(
            t=t,
            n=n,
            fault="hang",
            models=(model,),
            detail="a request that hangs",
            excuses=(Excuse(models=(model,), codes=("DEADLINE_EXCEEDED",), most=1, after=2.5),),
            expects=(LogExpected(event="worker_exited", keys={"reason": "hang"}, within=3.0),),
            measures="hang",
            model=model,
        )
        self.faults += [injected, Healed(t=t + 2.2, n=n)]
        return injected

    def crash(self, n: int, t: float, *, measures: str = "actor", wait: float = 0.01) -> Injected:
        """Crash an actor that serves `add_sub`, which holds up the next requests for a moment."""
        path = "models/add_sub/1/scheduler"
        for protocol in ("http", "grpc"):
            self.answer(self.invoke("add_sub", t + 0.001, protocol=protocol), wait)
        self.say(t + 0.005, "child_exited", actor=path)
        injected = Injected(
            t=t,
            n=n,
            fault="crash_scheduler",
            models=("add_sub",),
            detail=path,
            expects=(LogExpected(event="child_exited", keys={"actor": path}),),
            measures=measures,
            model="add_sub",
        )
        self.faults += [injected, Healed(t=t, n=n)]
        return injected

    def run(self) -> Run:
        return Run(
            manifest=manifest(self),
            history=sorted(self.history, key=lambda each: each.t),
            journal=sorted(self.journal, key=lambda each: each.t),
            faults=self.faults,
            samples=sorted(self.samples, key=lambda each: each.t),
            endings=self.endings,
            log=[*self.log, *self.errors_told()],
            passed_over=self.passed_over,
            tally=self.tally,
        )

    def errors_told(self) -> Iterator[Line]:
        """Yield the log's lines about error answers."""
        ids = {each.n: each.id for each in self.history if isinstance(each, Invoke)}
        for each in self.history:
            if isinstance(each, Fail) and ids[each.n] not in self.untold:
                keys = {"request_id": ids[each.n], "code": each.code}
                yield Line(time=each.t - BEGAN + WALL, level="info", event="request_failed", keys=keys)

    def judged(self, limits: Limits = LIMITS) -> Judgement:
        return judge(self.run(), expected, limits)

    # -- choosing what to spoil

    def pairs(self, kind: type[Record], **having: Any) -> list[tuple[Invoke, Any]]:
        """Return the requests of these properties that ended in this way, without poison and sequences."""
        begun = {each.n: each for each in self.history if isinstance(each, Invoke)}
        found = [
            (begun[each.n], each)
            for each in self.history
            if not isinstance(each, Invoke) and isinstance(each, kind)
        ]
        return [
            (invoke, end)
            for invoke, end in found
            if all(getattr(invoke, name) == value for name, value in having.items()) and not invoke.by
        ]

    def any_good(self, **having: Any) -> tuple[Invoke, Ok]:
        invoke, end = self.rng.choice(self.pairs(Ok, **having))
        assert isinstance(end, Ok)
        return invoke, end

    def swap(self, old: Record, new: Any) -> None:
        """Put another record in a record's place."""
        self.history[next(place for place, each in enumerate(self.history) if each is old)] = new


def manifest(run: MadeRun) -> Manifest:
    return Manifest(
        seed=1,
        minutes=run.seconds / 60,
        rate=run.rate,
        faults_per_minute=12,
        began=BEGAN,
        began_wall=WALL,
        version="0.1.0",
        machine="2 cores, 8 GiB",
        command="python -m chaos --minutes 10 --seed 1",
        phases=run.phases,
    )


def made_run(seed: int = 1, *, seconds: float = 40.0, rate: float = 40.0) -> MadeRun:
    """Return the record of a run in which a server has kept all its promises."""
    run = MadeRun(rng=random.Random(seed), seconds=seconds, rate=rate)
    shares = (("calm", 0.0, 0.3), ("standard", 0.3, 0.6), ("overload", 0.6, 0.75), ("recovery", 0.75, 1.0))
    run.phases = [
        (name, BEGAN + begin * seconds, BEGAN + end * seconds)  # type: ignore[misc]
        for name, begin, end in shares
    ]
    run.workers = {model: [next(run.pids), next(run.pids)] for model in MODELS}
    _load(run)
    _overload(run)
    _sequences(run)
    standard = BEGAN + 0.3 * seconds
    run.kill(1, standard + 1.0)
    run.hang(2, standard + 3.0)
    run.crash(3, standard + 6.0)
    run.crash(4, standard + 8.0, measures="supervisor", wait=0.3)
    run.kill(5, BEGAN + 0.75 * seconds + 0.5, "stream")
    _samples(run)
    run.endings = list(ENDINGS)
    return run


ENDINGS = (
    Ending(
        t=0,
        how="sigterm",
        figures={
            "not_ready": 0.02,
            "dropped": 0,
            "status": 0,
            "children": 0,
            "sockets": 0,
            "memory": 0,
            "took": 1.5,
        },
    ),
    Ending(
        t=0,
        how="sigterm_hung",
        figures={"late": 0.2, "untold": 0, "children": 0, "sockets": 0, "memory": 0},
    ),
    Ending(t=0, how="sigterm_twice", figures={"ended": 0.1, "children": 0, "sockets": 0, "memory": 0}),
    Ending(t=0, how="sigkill", figures={"children": 0, "descriptors": 0, "sockets": 0, "memory": 0}),
)


def _load(run: MadeRun) -> None:
    """Poisson arrivals, spread over all models but the counter; a killing fault changes their workers."""
    t = BEGAN
    models = [model for model in MODELS if model != "counter"]
    for place in itertools.count():
        t += run.rng.expovariate(run.rate * 1.05)
        if t >= BEGAN + run.seconds - 0.2:
            return
        model = models[place % len(models)]
        given: dict[str, Any] = {"parts": run.rng.randint(2, 5)} if model == "stream" else {}
        if run.rng.random() < 0.2:
            given["deadline"] = t + 0.5
        run.answer(run.invoke(model, t, **given), run.rng.uniform(0.002, 0.006), pid=_stable(run, model))


def _stable(run: MadeRun, model: str) -> int:
    """The second worker of those whose first is killed, the first of the others: they live all the time."""
    return run.workers[model][0 if model == "batching" else 1]


def _overload(run: MadeRun) -> None:
    _, begin, end = run.phases[2]
    t = begin
    while (t := t + run.rng.expovariate(60)) < end - 0.2:
        invoke = run.invoke("slow", t)
        if run.rng.random() < 0.4:
            run.answer(invoke, 0.1)
        else:
            run.fail(invoke, t + 0.002)


def _sequences(run: MadeRun) -> None:
    for sequence in range(1, 21):
        pid = run.rng.choice(run.workers["counter"])
        t = BEGAN + run.rng.uniform(0, run.seconds - 2)
        length = run.rng.randint(1, 6)
        earlier: list[Invoke] = []
        for index in range(length):
            invoke = run.invoke(
                "counter", t, sequence=sequence, index=index, start=index == 0, end=index == length - 1
            )
            t = run.answer(invoke, 0.004, earlier=earlier, pid=pid).t + run.rng.uniform(0, 0.2)
            earlier.append(invoke)


def _samples(run: MadeRun) -> None:
    for second in range(int(run.seconds * 2)):
        t = BEGAN + second / 2
        run.samples.append(
            Sample(
                t=t,
                rss=80 << 20,
                workers_rss=400 << 20,
                descriptors=60 + run.rng.randint(0, 4) if second > 2 else 64,
                threads=9,
                children=14,
                phase=run.phase_at(t),
            )
        )


def write(run: MadeRun, folder: Path) -> None:
    """Write a run as the harness does."""
    made = run.run()
    write_manifest(folder, made.manifest)
    contents: Mapping[str, Callable[[], Sequence[Record]]] = {
        "history.jsonl": lambda: list(made.history),
        "faults.jsonl": lambda: [*made.faults, *made.passed_over],
        "tally.jsonl": lambda: [run.tally],
        "samples.jsonl": lambda: list(made.samples),
        "endings.jsonl": lambda: list(made.endings),
    }
    for name, records in contents.items():
        (folder / name).write_text("".join(line_of(each) + "\n" for each in records()))
    (folder / "journal").mkdir()
    by_pid: dict[int, list[Executed]] = {}
    for each in made.journal:
        by_pid.setdefault(each.pid, []).append(each)
    for pid, records_of in by_pid.items():
        (folder / "journal" / f"{pid}.jsonl").write_text("".join(line_of(each) + "\n" for each in records_of))
    (folder / "server").mkdir()
    (folder / "server" / "stderr.log").write_text(
        "".join(_log_line(each) for each in [*run.log, *run.errors_told()])
    )


def _log_line(line: Line) -> str:
    return (
        json.dumps({"timestamp": stamp(line.time), "level": line.level, "event": line.event, **line.keys})
        + "\n"
    )


def later(record: Any, seconds: float) -> Any:
    """Return a record, moved in time."""
    return replace(record, t=record.t + seconds)
