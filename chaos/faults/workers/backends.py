"""Faults of the workers of other backends: kills, stops, poison by inputs alone, and what they refuse.

Only a run with these models has them (`chaos.workload.backends`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from chaos.clients.mix import WIRES
from chaos.faults.base import Fault, Injection, Stage, Trouble
from chaos.faults.targets import one_instance
from chaos.faults.workers.deeds import Deed, Poison
from chaos.faults.workers.signals import Killed, Stopped
from chaos.record.outcome import now
from chaos.record.records import Excuse, Fail, Wire
from chaos.workload.backends.kinds import BACKENDS, harmed_by

OFTEN: Final = 12.0
"""How often they are drawn, beside the other faults of workers."""

_ALL: Final = tuple(BACKENDS)
_REFUSALS: Final = ("INTERNAL", "INVALID_ARGUMENT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Fault):
    """A request that a framework refuses to compute, in the middle of whatever batch it comes into."""

    models: Sequence[str]
    poison: str = "raise"

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Decide which model, and over which protocol; `heal` sends it. Raises NoTarget."""
        model = (await one_instance(stage, target, self.models)).model
        wire = target.choice(WIRES)
        return Injection(
            t=now(),
            models=(model,),
            detail=f"a request to '{model}' over {wire} that it refuses to compute",
            excuses=[Excuse(models=(model,), codes=_REFUSALS, most=1, own=True, after=0.1)],
            undo=partial(self._send, stage, model, wire),
        )

    async def _send(self, stage: Stage, model: str, wire: Wire) -> None:
        end = await stage.send(model, poison=self.poison, protocol=wire)
        if not (isinstance(end, Fail) and end.code in _REFUSALS):
            raise Trouble(f"the request was due {' or '.join(_REFUSALS)}, and got {end}")


FAULTS: Sequence[Fault] = (
    Killed(
        name="backend_sigkill",
        expected="Nothing at all of a model whose requests may run again, and at most what that worker was"
        " executing of another, is an error; every answer of every backend is right.",
        models=_ALL,
        weight=2 * OFTEN,
        measures="",
    ),
    Killed(
        name="backend_all_workers_sigkill",
        expected="The same of all workers of a model at once: its queue waits for the first to be back.",
        models=_ALL,
        everyone=True,
        weight=OFTEN,
        measures="",
    ),
    Stopped(
        name="backend_sigstop",
        expected="What the stopped worker executes is answered rightly once it goes on; the other instance"
        " answers all else meanwhile.",
        models=_ALL,
        lasts=0.7,
        weight=OFTEN,
    ),
    Poison(
        name="backend_poison",
        expected="One request in a batch traps in PyTorch or in C, and kills workers by SIGFPE until it is"
        " found out and answered FAILED_PRECONDITION; its batchmates get their answers.",
        models=harmed_by("fpe"),
        poison="fpe",
        code="FAILED_PRECONDITION",
        reason="signal_8",
        within=1.0,
        measures="",
        weight=OFTEN,
    ),
    Poison(
        name="backend_poison_hang",
        expected="One request hangs in a backend's native code, and is answered DEADLINE_EXCEEDED when it"
        " has hung alone; its batchmates get their answers, after the limit.",
        models=harmed_by("hang"),
        poison="hang",
        code="DEADLINE_EXCEEDED",
        reason="hang",
        within=3.0,
        measures="",
        weight=OFTEN,
    ),
    Refused(
        name="backend_refuses",
        expected="One request in a batch is refused by its framework: it alone has an error, and its"
        " batchmates get their answers.",
        models=harmed_by("raise"),
        weight=OFTEN,
    ),
    Deed(
        name="family_segv",
        expected="The worker of a backend in Python dies of SIGSEGV: what it was executing is answered"
        " UNAVAILABLE, with that reason in the log, and the instance is started again.",
        action="segv",
        models=("family",),
        codes=("UNAVAILABLE",),
        reason="signal_11",
        weight=OFTEN,
    ),
    Deed(
        name="family_hang",
        expected="The worker of a backend in Python is ended at the execution limit of 2 s and what it was"
        " executing is answered DEADLINE_EXCEEDED.",
        action="hang_lock",
        models=("family",),
        codes=("DEADLINE_EXCEEDED",),
        reason="hang",
        within=3.0,
        weight=OFTEN,
    ),
)
"""The family's faults."""
