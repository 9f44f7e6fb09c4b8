"""The faults of the server's own actors: each is killed where it stands, or raises at a fault point.

Paths are those of the supervision tree. A supervisor's death takes with it everything below it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.values.events import Event
from chaos.faults.base import Injection, Measure, NoTarget, Stage, now
from chaos.faults.budgets import Budget
from chaos.faults.targets import PURE, PYTHON, felt_by, lost_with_all_workers, lost_with_workers
from chaos.record.records import Excuse, LogExpected, Wire
from chaos.subject.sabotage import SabotageRefused
from chaos.workload.repository import INSTANCES

ROOT: Final = Budget(most=2, period=60.0)
"""The root allows 3 restarts in 60 s, of all its supervisors together.

So do a version and the repository.
"""

OFTEN: Final = Budget(most=2, period=5.0)
"""Most supervisors allow 3 restarts in 5 s."""

MODELS: Final = (*PYTHON, *PURE, "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The actor or supervisor at a path is killed. Implements `chaos.faults.base.Fault`.

    `path` is a pattern that the whole path has to match. Its group `model`, if it has one, names the model to
    which the actor belongs. `felt` are the models that may feel it, besides that one; `excuses` is asked for
    the model.
    """

    name: str
    expected: str
    path: str
    budget: Budget = OFTEN
    felt: Sequence[str] = ()
    excuses: Callable[[str], Sequence[Excuse]] = lambda model: ()
    measures: Measure = "actor"
    comes_back: bool = True
    weight: float = 1.0
    lasts: float = 0.0

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Kill it. Raises NoTarget if there is none, or its supervisor had too many restarts lately."""
        paths = sorted(each for each in await stage.sabotage.list() if re.fullmatch(self.path, each))
        if not paths:
            raise NoTarget(f"there is nothing at {self.path}")
        path = target.choice(paths)
        if self.comes_back:
            self.budget.spend(stage.server.pid, _supervisor_of(path), now())
        model = _model_of(self.path, path)
        t = now()
        try:
            await stage.sabotage.crash(path)
        except SabotageRefused as why:  # connections come and go, and supervisors stop
            raise NoTarget(f"{path} was there a moment ago: {why}") from why
        return Injection(
            t=t,
            models=(*felt_by(model), *self.felt) if model else self.felt,
            detail=f"{path} is killed",
            excuses=self.excuses(model),
            expects=_told(path, comes_back=self.comes_back),
            measures=self.measures,
            model=_measured(self.measures, model),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """An exception comes out of an actor at a fault point, see `actors.seams.faults`.

    Implements `chaos.faults.base.Fault`. Which of several actors passes there first depends on the load. A
    point that no actor passed is disarmed at the end.
    """

    name: str
    expected: str
    points: Sequence[str]
    felt: Sequence[str] = MODELS
    excuses: Sequence[Excuse] = ()
    # The path of the actor that passes there, if only one does.
    actor: str = ""
    weight: float = 1.0
    lasts: float = 1.0

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Arm one of the points.

        Raises NoTarget if there were many crashes there lately, or if there is no such actor.
        """
        if self.actor and self.actor not in await stage.sabotage.list():
            raise NoTarget(f"there is no {self.actor}")
        point = target.choice(self.points)
        OFTEN.spend(stage.server.pid, point, now())
        t = now()
        await stage.sabotage.fail(point)
        injected = LogExpected(
            event=Event.FAULT_INJECTED.value, keys={"fault": "raise", "target": point}, within=self.lasts
        )
        keys = {"context": "child_terminated", **({"actor": self.actor} if self.actor else {})}
        ended = LogExpected(event=Event.CHILD_EXITED.value, keys=keys, within=self.lasts)
        return Injection(
            t=t,
            models=self.felt,
            detail=f"whoever passes {point} next raises",
            excuses=self.excuses,
            expects=[injected, ended],
            undo=partial(_disarm, stage, point),
        )


async def _disarm(stage: Stage, point: str) -> None:
    await stage.sabotage.disarm(point)


def _supervisor_of(path: str) -> str:
    """The path of the supervisor of the actor at `path`; a version's name has a slash in it."""
    parts = path.split("/")
    return "models" if len(parts) == 3 and parts[0] == "models" else "/".join(parts[:-1])


def _model_of(pattern: str, path: str) -> str:
    found = re.fullmatch(pattern, path)
    return "" if found is None else found.groupdict().get("model", "")


def _measured(measures: Measure, model: str) -> str:
    """If an actor belongs to no model, measure its effect at a model that uses all of the server."""
    return (model or "echo") if measures else ""


def _told(path: str, *, comes_back: bool) -> list[LogExpected]:
    told = [
        LogExpected(event=Event.FAULT_INJECTED.value, keys={"fault": "crash", "target": path}),
        LogExpected(event=Event.CHILD_EXITED.value, keys={"actor": path, "reason": "killed"}),
    ]
    if comes_back:
        told.append(LogExpected(event=Event.CHILD_RESTARTED.value, keys={"actor": path}))
    return told


def _all_workers(_: str) -> Sequence[Excuse]:
    """Excuse what all workers were executing, and requests with less time than the workers take to start."""
    lost = [excuse for model in PYTHON for excuse in lost_with_workers(model, INSTANCES)]
    hurried = Excuse(models=("slow",), codes=("UNAVAILABLE", "DEADLINE_EXCEEDED"), most=40, after=2.0)
    late = Excuse(models=("echo", "add_sub"), codes=("DEADLINE_EXCEEDED",), most=10, after=2.0)
    return [*lost, hurried, late]


def _cut_off(most: int, *protocols: Wire) -> Callable[[str], Sequence[Excuse]]:
    """Excuse requests whose connection ends under them.

    Their clients hear nothing, or over gRPC UNAVAILABLE, which grpcio makes.
    """
    excuse = Excuse(codes=("UNAVAILABLE",), unknown=True, most=most, after=0.1, protocols=protocols)
    return lambda _: [excuse]


_OF_A_MODEL: Final = rf"models/(?P<model>{'|'.join(MODELS)})/\d+(@\d+)?"
_WITH_WORKERS: Final = rf"models/(?P<model>{'|'.join((*PYTHON, *PURE))})/\d+(@\d+)?"
_UNTOUCHED: Final = "no request fails or waits for longer than the restart takes"

FAULTS: Sequence[Crash | Raise] = (
    Crash(
        name="scheduler_crash",
        expected=f"It is restarted at once and finds its queue as it was; {_UNTOUCHED}.",
        path=f"{_OF_A_MODEL}/scheduler",
        weight=2.0,
    ),
    Crash(
        name="instance_actor_crash",
        expected="Its worker is ended with it; what that was executing is answered UNAVAILABLE, or runs again if the model is pure, and"
        " another worker is started at once.",
        path=rf"{_WITH_WORKERS}/instances/\d+",
        excuses=lost_with_workers,
        measures="worker",
    ),
    Crash(
        name="instances_supervisor_crash",
        expected="All workers of the version are ended and started again, its scheduler too; the queue waits for them, and only what"
        " was executing is answered UNAVAILABLE.",
        path=f"{_WITH_WORKERS}/instances",
        excuses=lost_with_all_workers,
        measures="supervisor",
    ),
    Crash(
        name="version_supervisor_crash",
        expected="As that of its instances: the queue, which it does not own, waits for its successor.",
        path=_WITH_WORKERS,
        budget=ROOT,
        excuses=lost_with_all_workers,
        measures="supervisor",
    ),
    Crash(
        name="models_supervisor_crash",
        expected="Every worker is ended; all versions come back as they were, and their queues have waited for them.",
        path="models",
        budget=ROOT,
        felt=MODELS,
        excuses=_all_workers,
        measures="supervisor",
        weight=0.5,
    ),
    Crash(
        name="catalog_crash",
        expected=f"It is restarted, and the watcher after it; {_UNTOUCHED}.",
        path="repository/(catalog|lanes/[^/]+|retiring)",
    ),
    Crash(
        name="watcher_crash",
        expected=f"It is restarted and looks again; {_UNTOUCHED}.",
        path="repository/watcher",
    ),
    Crash(
        name="repository_supervisor_crash",
        expected=f"Catalog, lanes and watcher are all started again and know what serves; {_UNTOUCHED}.",
        path="repository",
        budget=ROOT,
    ),
    Crash(
        name="listener_crash",
        expected=f"The socket is held outside, and the listener accepts again at once; connections stay, and {_UNTOUCHED}.",
        path="frontends/(http|grpc|metrics)/listener",
        weight=2.0,
    ),
    Crash(
        name="http_connection_crash",
        expected="The one request of that connection, if there is one, gets no answer; others notice nothing.",
        path="frontends/http/connections/.+",
        felt=MODELS,
        excuses=_cut_off(1, "http"),
        comes_back=False,
        measures="",
    ),
    Crash(
        name="grpc_connection_crash",
        expected="The calls of that connection end without an answer, its client connects anew, and others notice nothing.",
        path="frontends/grpc/connections/.+",
        felt=MODELS,
        excuses=_cut_off(40, "grpc"),
        comes_back=False,
        measures="",
    ),
    Crash(
        name="frontends_supervisor_crash",
        expected="All connections end with what was under way on them; the ports stay open, and whoever comes next is answered.",
        path="frontends(/http|/grpc|/metrics)?",
        budget=ROOT,
        felt=MODELS,
        excuses=_cut_off(80, "http", "grpc"),
        measures="",
        weight=0.5,
    ),
    Crash(
        name="telemetry_crash",
        expected=f"It is restarted; {_UNTOUCHED}.",
        path="telemetry/(loop-lag|readiness|memory)",
    ),
    Crash(
        name="telemetry_supervisor_crash",
        expected=f"All telemetry is started again; {_UNTOUCHED}.",
        path="telemetry",
        budget=ROOT,
        weight=0.5,
    ),
    Crash(
        name="service_crash",
        expected=f"Traffic guard, mirror, residency, janitor and spare workers are not needed to serve; {_UNTOUCHED}.",
        path="services/(traffic-guard|mirror|residency|spares|janitor)",
        # Some of them have budgets of their own, as large.
        budget=ROOT,
    ),
    Crash(
        name="services_supervisor_crash",
        expected=f"All services are started again; {_UNTOUCHED}.",
        path="services",
        budget=ROOT,
        weight=0.5,
    ),
    Raise(
        name="scheduler_raises",
        expected="A scheduler's turn fails, whoever's task has taken it: the scheduler alone crashes, its successor takes the turn"
        " again, and no request fails.",
        points=("batcher.turn", "sequencer.turn", "ensemble.turn"),
    ),
    Raise(
        name="instance_raises",
        expected="An instance's actor fails as it reads what its worker says: the worker is ended with it, what that was executing is"
        " answered UNAVAILABLE, or runs again if the model is pure, and another is started.",
        points=("instance.packet",),
        excuses=(
            Excuse(
                models=(*PYTHON, "pipeline"), codes=("UNAVAILABLE", "INVALID_ARGUMENT"), most=8, after=1.0
            ),
        ),
    ),
    Raise(
        name="watcher_raises",
        expected=f"The watcher crashes as it looks, with the exception in the log, and looks again; {_UNTOUCHED}.",
        points=("watcher.look",),
        actor="repository/watcher",
        felt=(),
    ),
    Raise(
        name="telemetry_raises",
        expected=f"The loop's lag can't be recorded, and is again by the next life of who does; {_UNTOUCHED}.",
        points=("loop_lag.record",),
        actor="telemetry/loop-lag",
        felt=(),
    ),
)
"""Every fault of the family."""
