"""The faults of the server's own actors: each is killed where it stands.

What they do about exceptions of their own is tried by the simulation, at every fault point.

Paths are those of the supervision tree. A supervisor's death takes with it everything below it.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from actors.values.events import Event
from chaos.faults.base import Fault, Injection, NoTarget, Restrained, Stage
from chaos.faults.targets import PURE, PYTHON, felt_by, lost_with_all_workers, lost_with_workers
from chaos.record.outcome import now
from chaos.record.records import Excuse, LogExpected, Wire
from chaos.subject.sabotage import SabotageRefused
from chaos.workload.repository import INSTANCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """At most `most` crashes within `period` seconds under each supervisor of each server.

    That a supervisor gives up is a promise as well, and no bug: it ends everything below it, in the end the
    server (docs/architecture.md, "What supervises what"). Faults stay one restart below what is allowed, so
    that there is room for a restart that no fault has caused.
    """

    most: int
    period: float
    _spent: dict[tuple[int, str], deque[float]] = field(default_factory=dict, compare=False, repr=False)

    def spend(self, server: int, supervisor: str, now: float) -> None:
        """Note a crash under a supervisor of the server with this process id.

        Raises Restrained if that would be too many.
        """
        times = self._spent.setdefault((server, supervisor), deque())
        while times and times[0] < now - self.period:
            times.popleft()
        if len(times) >= self.most:
            raise Restrained(
                f"'{supervisor or 'root'}' had {len(times)} restarts in {self.period:g} s, and allows hardly more"
            )
        times.append(now)


ROOT: Final = Budget(most=2, period=60.0)
"""The root allows 3 restarts in 60 s, of all its supervisors together.

So do a version and the repository.
"""

OFTEN: Final = Budget(most=2, period=5.0)
"""Most supervisors allow 3 restarts in 5 s."""

MODELS: Final = (*PYTHON, *PURE, "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(Fault):
    """The actor or supervisor at a path is killed.

    `path` is a pattern that the whole path has to match. Its group `model`, if it has one, names the model to
    which the actor belongs. `felt` are the models that may feel it, besides that one; `excuses` is asked for
    the model.
    """

    path: str
    budget: Budget = OFTEN
    felt: Sequence[str] = ()
    excuses: Callable[[str], Sequence[Excuse]] = lambda model: ()
    measures: str = "actor"
    comes_back: bool = True

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Kill it. Raises NoTarget if there is none, or its supervisor had too many restarts lately."""
        there = sorted(await stage.sabotage.list())
        matches = [found for each in there if (found := re.fullmatch(self.path, each))]
        if not matches:
            raise NoTarget(f"there is nothing at {self.path}")
        match = target.choice(matches)
        path, model = match[0], match.groupdict().get("model", "")
        if self.comes_back:
            self.budget.spend(stage.server.pid, _supervisor_of(path), now())
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
            # If an actor belongs to no model, its effect is measured at a model that uses all of the server.
            model=(model or "echo") if self.measures else "",
        )


def _supervisor_of(path: str) -> str:
    """The path of the supervisor of the actor at `path`; a version's name has a slash in it."""
    parts = path.split("/")
    return "models" if len(parts) == 3 and parts[0] == "models" else "/".join(parts[:-1])


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

FAULTS: Final[Sequence[Fault]] = (
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
        expected=f"Traffic guard, mirror, residency, janitor, spare workers and the stream of events are not needed to serve; {_UNTOUCHED}.",
        path="services/(traffic-guard|mirror|residency|spares|janitor|events)",
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
)
"""Every fault of the family."""
