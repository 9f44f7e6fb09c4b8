"""Faults of instances that come from outside: signals to their workers."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from chaos.faults.base import Fault, Injection, NoTarget, Stage
from chaos.faults.targets import (
    PURE,
    PYTHON,
    Instance,
    at_work,
    exit_of,
    felt_by,
    instances,
    lost_with_all_workers,
    lost_with_workers,
    one_instance,
    signalled,
    under_way,
)
from chaos.record.outcome import now
from chaos.record.records import Excuse

_LOOKING: Final = 0.002
_AT_WORK_WITHIN: Final = 3.0  # seconds in which a worker has to be met at work


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed(Fault):
    """SIGKILL to one worker, or to all workers of a model at once."""

    models: Sequence[str]
    everyone: bool = False
    measures: str = "worker"

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Kill. Raises NoTarget if no worker serves."""
        first = await one_instance(stage, target, self.models)
        hit = await instances(stage, (first.model,)) if self.everyone else [first]
        t = now()
        killed = [each for each in hit if signalled(each.pid, signal.SIGKILL)]
        if not killed:
            raise NoTarget(f"the workers of '{first.model}' have just ended")
        return Injection(
            t=t,
            models=felt_by(first.model),
            detail=f"SIGKILL to {_named(killed)}",
            pid=killed[0].pid,
            excuses=lost_with_all_workers(first.model) if self.everyone else lost_with_workers(first.model),
            expects=[exit_of(each, "signal_9") for each in killed],
            measures=self.measures,
            model=first.model if self.measures else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Fault):
    """SIGSTOP to one worker, and SIGCONT after `lasts` seconds.

    With `limit`, the seconds that an execution may take, the worker is stopped in the middle of an execution,
    for longer than that, and is ended meanwhile. A stopped worker that executes nothing would only be passed
    over: its requests go to others.
    """

    models: Sequence[str]
    limit: float | None = None

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Stop it. Raises NoTarget if no worker serves, or none executes anything."""
        hit = await one_instance(stage, target, self.models)
        t = now()
        if self.limit is not None:
            t = await _stopped_at_work(stage, hit)
        elif not signalled(hit.pid, signal.SIGSTOP):
            raise NoTarget(f"the worker of {hit.path} has just ended")
        return Injection(
            t=t,
            models=felt_by(hit.model),
            detail=f"SIGSTOP to {_named([hit])}, SIGCONT after {self.lasts:g} s",
            pid=hit.pid,
            excuses=() if self.limit is None else _overslept(hit.model),
            expects=() if self.limit is None else [exit_of(hit, "hang", within=self.lasts)],
            undo=partial(_continue, hit),
        )


async def _stopped_at_work(stage: Stage, hit: Instance) -> float:
    """Stop a worker while it executes, and return when it was stopped. Raises NoTarget."""
    with trio.move_on_after(_AT_WORK_WITHIN):
        while True:
            await trio.sleep(_LOOKING)
            if not at_work(stage.folder, hit):
                continue
            t = now()
            if not signalled(hit.pid, signal.SIGSTOP):
                raise NoTarget(f"the worker of {hit.path} has just ended")
            if at_work(stage.folder, hit):
                return t
            signalled(hit.pid, signal.SIGCONT)  # it was done a moment before
    raise NoTarget(f"{hit.path} was not seen to execute anything for {_AT_WORK_WITHIN:g} s")


def _overslept(model: str) -> tuple[Excuse, ...]:
    """Excuse what a stopped worker was executing, unless it may run again.

    Requests with less time than the limit are excused as well.
    """
    late = Excuse(models=felt_by(model), codes=("DEADLINE_EXCEEDED",), most=2 * under_way(model), after=0.1)
    return (late, *lost_with_workers(model))


async def _continue(instance: Instance) -> None:
    signalled(instance.pid, signal.SIGCONT)


def _named(killed: Sequence[Instance]) -> str:
    return ", ".join(f"{each.path} (pid {each.pid})" for each in killed)


FAULTS: Sequence[Fault] = (
    Killed(
        name="worker_sigkill",
        expected="At most what that worker was executing is answered UNAVAILABLE within 100 ms, nothing at all of a pure"
        " model; the instance is back within the time of a worker's start, and nobody else notices.",
        models=(*PYTHON, *PURE),
        weight=3.0,
    ),
    Killed(
        name="all_workers_sigkill",
        expected="What was executing of that model is answered UNAVAILABLE, its queue waits for the first instance to be back,"
        " and a pure model has no error.",
        models=(*PYTHON, *PURE),
        everyone=True,
    ),
    Stopped(
        name="worker_sigstop",
        expected="What the stopped worker executes is answered rightly once it goes on; the other instance answers all else meanwhile.",
        models=(*PYTHON, *PURE),
        lasts=0.7,
    ),
    Stopped(
        name="worker_sigstop_too_long",
        expected="A worker that is stopped while it executes is ended at the execution limit, with the reason hang; what it was executing is"
        " an error, and whatever it was only sent is answered by others.",
        models=("slow",),  # of which an execution takes long enough to be met
        lasts=3.5,
        limit=2.0,
    ),
)
