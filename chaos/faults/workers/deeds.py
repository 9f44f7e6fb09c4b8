"""Faults of instances that come from within: what a reference model is told to do to itself.

The model is told by a request's input or by a file, as the random numbers decide. The first is a poison
request of one client's; the second befalls whatever ordinary batch comes next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from actors.values.events import Event
from chaos.clients.mix import WIRES
from chaos.faults.base import Fault, Heal, Injection, NoTarget, Stage, Trouble, nothing_to_heal
from chaos.faults.targets import PURE, felt_by, lost_with_workers, one_instance, under_way
from chaos.record.outcome import now
from chaos.record.records import Excuse, Fail, LogExpected, Ok, Wire
from chaos.workload.control import Order

_TAKEN_WITHIN: Final = 3.0  # seconds: every model has several requests a second
_LOOKING: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed(Fault):
    """A model does `action` once.

    `codes` are those of the errors that follow, for as many requests as one execution may have, or for one if
    `alone`. With no codes every answer has to be right. The errors' messages contain `says`. `reason` is why
    the worker dies, if it does. `or_reason` is another reason that it may have, where server and worker both
    notice and either may be first.
    """

    action: str
    models: Sequence[str]
    codes: Sequence[str] = ()
    says: str = ""
    alone: bool = False
    reason: str = ""
    or_reason: str = ""
    within: float = 1.0  # seconds from the deed to the line about the worker's end
    measures: str = ""
    log: LogExpected | None = None

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Have it done; `heal` waits for the outcome of a request that asked for it.

        Raises NoTarget if no worker executes anything.
        """
        model, wire = target.choice(self.models), target.choice(WIRES)
        undo: Heal = nothing_to_heal
        if target.random() < 0.5:
            t = await _ordered(stage, model, self.action)
            detail = f"whoever of '{model}' executes next is told to {self.action}"
        else:
            t, undo = now(), partial(self._send, stage, model, wire)
            detail = f"a request to '{model}' over {wire} makes its worker {self.action}"
        return Injection(
            t=t,
            models=felt_by(model),
            detail=detail,
            excuses=self._excuses(model),
            expects=self._expects(model),
            measures=self.measures,
            model=model if self.measures else "",
            undo=undo,
        )

    def _excuses(self, model: str) -> Sequence[Excuse]:
        if self.reason and self.codes == ("UNAVAILABLE",):
            return lost_with_workers(model)
        if not self.codes:
            return ()
        most = 1 if self.alone else under_way(model)
        excuse = Excuse(models=felt_by(model), codes=self.codes, says=self.says, most=most, after=0.1)
        return [excuse] if self.reason != "hang" else [excuse, _late(model)]

    def _expects(self, model: str) -> list[LogExpected]:
        expects = [] if self.log is None else [self.log]
        if self.reason:
            reason = [self.reason, self.or_reason] if self.or_reason else self.reason
            keys = {"model": model, "reason": reason}
            expects.append(LogExpected(event=Event.WORKER_EXITED.value, keys=keys, within=self.within))
        return expects

    async def _send(self, stage: Stage, model: str, wire: Wire) -> None:
        end = await stage.send(model, poison=self.action, protocol=wire)
        if self.codes:
            right = isinstance(end, Fail) and end.code in self.codes and self.says in end.message
        else:
            right = isinstance(end, Ok)
        if not right:
            due = " or ".join(self.codes) or "the right answer"
            due += f" with '{self.says}'" if self.says else ""
            raise Trouble(f"a request that made '{model}' {self.action} was due {due}, and got {end}")


def _late(model: str) -> Excuse:
    """Excuse requests that wait for a hang to be over, and have less time than that.

    They wait in the batch that hangs or behind it.
    """
    return Excuse(models=felt_by(model), codes=("DEADLINE_EXCEEDED",), most=2 * under_way(model), after=0.1)


async def _ordered(stage: Stage, model: str, action: str) -> float:
    """Give an order and wait until a worker takes it; return a time just before that.

    Raises NoTarget if no worker takes it.
    """
    order = stage.control.once(model, action)
    t = began = now()
    while order.stands:
        t = now()
        if t > began + _TAKEN_WITHIN and order.withdraw():
            raise NoTarget(f"no instance of '{model}' executed anything for {_TAKEN_WITHIN:g} s")
        await trio.sleep(_LOOKING)
    return t


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Fault):
    """All workers of a model do `action` in every execution, for `lasts` seconds."""

    action: str
    models: Sequence[str]

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Begin; `heal` ends it."""
        model = target.choice(self.models)
        t = now()
        order = stage.control.hold(model, self.action)
        return Injection(
            t=t,
            models=felt_by(model),
            detail=f"every execution of '{model}' is to {self.action} for {self.lasts:g} s",
            undo=partial(_withdrawn, order),
        )


async def _withdrawn(order: Order) -> None:
    order.withdraw()


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison(Fault):
    """A request that brings down a pure model's workers, by its inputs alone.

    The request runs again and again, alone in the end, until it is
    refused with `code`. No two of these requests have the same inputs, so that none is known from before.
    """

    poison: str
    code: str
    reason: str
    within: float
    measures: str
    models: Sequence[str] = PURE

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Decide which model, and over which protocol; `heal` sends it. Raises NoTarget if none serves."""
        model = (await one_instance(stage, target, self.models)).model
        wire = target.choice(WIRES)
        keys = {"model": model, "reason": self.reason}
        return Injection(
            t=now(),
            models=felt_by(model),
            detail=f"a request to '{model}' over {wire} whose inputs make its workers die: {self.poison}",
            excuses=self._excuses(model),
            expects=[LogExpected(event=Event.WORKER_EXITED.value, keys=keys, within=self.within)],
            measures=self.measures,
            model=model if self.measures else "",
            undo=partial(self._send, stage, model, wire),
        )

    def _excuses(self, model: str) -> Sequence[Excuse]:
        own = Excuse(models=(model,), codes=(self.code,), most=1, after=0.1)
        return [own] if self.reason != "hang" else [own, _late(model)]

    async def _send(self, stage: Stage, model: str, wire: Wire) -> None:
        end = await stage.send(model, poison=self.poison, protocol=wire)
        if not (isinstance(end, Fail) and end.code == self.code):
            raise Trouble(f"the poison request was due {self.code}, and got {end}")


_QUICK: Final = ("echo", "slow", "batching", "counter", "stream")


def _dead(
    name: str,
    action: str,
    reason: str,
    expected: str,
    *,
    or_reason: str = "",
    models: Sequence[str] = _QUICK,
    within: float = 1.0,
    measures: str = "worker",
) -> Deed:
    return Deed(
        name=name,
        expected=f"{expected}: what it was executing is answered UNAVAILABLE, with that reason in the log, and the instance"
        " is started again.",
        action=action,
        models=models,
        codes=("UNAVAILABLE",),
        reason=reason,
        or_reason=or_reason,
        within=within,
        measures=measures,
    )


FAULTS: Sequence[Fault] = (
    Deed(
        name="model_raise",
        expected="The whole batch is answered INTERNAL with the exception's text; the worker lives, and the next batch is answered.",
        action="raise",
        models=_QUICK,
        codes=("INTERNAL",),
        says="told to raise",
    ),
    Deed(
        name="member_raise",
        expected="One request of a batch is answered INTERNAL, and its batchmates get their answers.",
        action="raise_member",
        models=_QUICK,
        codes=("INTERNAL",),
        says="told to refuse this request",
        alone=True,
    ),
    Deed(
        name="hang_in_python",
        expected="The worker is ended at the execution limit of 2 s and what it was executing is answered DEADLINE_EXCEEDED.",
        action="hang",
        models=("echo", "batching", "slow"),
        codes=("DEADLINE_EXCEEDED",),
        reason="hang",
        within=3.0,
        measures="hang",
    ),
    Deed(
        name="hang_with_interpreter_lock",
        expected="As a hang in Python: ended at the limit, though no thread of the worker can run.",
        action="hang_lock",
        models=("echo", "batching", "slow"),
        codes=("DEADLINE_EXCEEDED",),
        reason="hang",
        within=3.0,
        measures="hang",
    ),
    _dead("worker_segv", "segv", "signal_11", "The worker dies of SIGSEGV"),
    _dead("worker_exits", "exit0", "exit_0", "The worker exits in mid-request, with status 0"),
    _dead(
        "out_of_memory",
        "oom",
        "oom",
        "The worker is killed as it passes its memory limit",
        models=("echo",),
        within=4.0,  # it takes a while to fill so much
        measures="",  # by a clock that begins with the deed
    ),
    _dead(
        "closed_connection",
        "close_frames",
        "protocol_error",
        "The worker closes its connection, and is killed or ends by itself",
        or_reason="exit_79",  # of a worker that reads beside the model
    ),
    _dead(
        "garbage_frames", "garbage_frames", "protocol_error", "The worker writes garbage and is killed for it"
    ),
    Deed(
        name="stdout_flood",
        expected="Two megabytes on standard output delay nobody and change no answer; what the log does not take is counted in it.",
        action="flood_stdout",
        models=("echo", "batching", "slow"),
        log=LogExpected(event=Event.WORKER_OUTPUT.value, keys={"level": "warning"}, within=2.0),
    ),
    Held(
        name="slow_twentyfold",
        expected="Every answer is right, if later: a backlog forms and is worked off.",
        action="slow",
        models=("echo", "batching"),
        lasts=1.0,
    ),
    Held(
        name="descriptor_leak",
        expected="A worker without a free descriptor goes on to answer.",
        action="leak_descriptors",
        models=("echo", "batching"),
        lasts=2.0,
    ),
    Poison(
        name="poison_request",
        expected="One request in a batch kills workers by SIGFPE until it is found out and answered FAILED_PRECONDITION; its"
        " batchmates get their answers.",
        poison="fpe",
        code="FAILED_PRECONDITION",
        reason="signal_8",
        within=1.0,
        measures="worker",
    ),
    Poison(
        name="poison_hang",
        expected="One request hangs in native code, and is answered DEADLINE_EXCEEDED when it has hung alone; its batchmates get"
        " their answers, after the limit.",
        poison="hang",
        code="DEADLINE_EXCEEDED",
        reason="hang",
        within=3.0,
        measures="hang",
    ),
)
"""Every fault of the family."""
