"""Faults of instances that can't start: initialisation fails a few times, or for ever."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from actors.values.events import Event
from chaos.faults.base import PATIENCE, Fault, Injection, NoTarget, Stage, Trouble, until
from chaos.faults.shelves import Shelf
from chaos.faults.targets import (
    PYTHON,
    Instance,
    exit_of,
    felt_by,
    lost_with_workers,
    node_at,
    one_instance,
    signalled,
)
from chaos.faults.workers.guests import send_off, until_gone, welcome
from chaos.record.outcome import now
from chaos.record.records import LogExpected, Ok
from chaos.subject.server import Node
from chaos.workload.control import Order

_LOOKING: Final = 0.02
# Seconds, on a busy machine. This says nothing about when the log has to tell of each start.
_TAKEN_WITHIN: Final = 20.0
# Seconds until the log tells: five starts, and 1.5 s of waiting between them.
_WORN_OUT_WITHIN: Final = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailsToStart(Fault):
    """A worker is killed, and its successors fail to load the model `times` times."""

    models: Sequence[str]
    times: int

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Order the failures, then kill. Raises NoTarget if no worker serves."""
        hit = await one_instance(stage, target, self.models)
        orders = [stage.control.once(hit.model, "init_fail") for _ in range(self.times)]
        t = now()
        if not signalled(hit.pid, signal.SIGKILL):
            for order in orders:
                order.withdraw()
            raise NoTarget(f"the worker of {hit.path} has just ended")
        return Injection(
            t=t,
            models=felt_by(hit.model),
            detail=f"SIGKILL to {hit.path} (pid {hit.pid}), whose next {self.times} starts fail",
            pid=hit.pid,
            excuses=lost_with_workers(hit.model),
            expects=[
                exit_of(hit, "signal_9"),
                LogExpected(
                    event=Event.WORKER_EXITED.value,
                    keys={"actor": hit.path, "reason": "start_failed"},
                    within=2.0,
                ),
            ],
            undo=partial(_wait_taken, orders, hit.path),
        )


async def _wait_taken(orders: Sequence[Order], path: str) -> None:
    with trio.move_on_after(_TAKEN_WITHIN):
        while any(order.stands for order in orders):  # noqa: ASYNC110  # files that other processes remove
            await trio.sleep(_LOOKING)
    if sum(order.withdraw() for order in orders):
        raise Trouble(f"{path} was not started often enough within {_TAKEN_WITHIN:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverStarts(Fault):
    """A guest, a copy of a model that is brought in and taken away, can't start any more.

    One of its two workers is killed, and none can load the model any
    more. So its budget of restarts is used up, and it would be tried again after 15 to 30 s: that is longer
    than a fault may last.
    """

    guest: str

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Bring in the guest, then kill; `heal` waits for the rest.

        Raises NoTarget if the guest is there already, and Trouble.
        """
        shelf, serving = await welcome(stage, self.guest)
        try:
            hit = target.choice(serving)
            order = stage.control.hold(self.guest, "init_fail")
            t = now()
            os.kill(hit.pid, signal.SIGKILL)
        except BaseException:
            shelf.remove()
            raise
        return Injection(
            t=t,
            models=(self.guest,),
            detail=f"{hit.path} (pid {hit.pid}) is killed and can't be started again",
            pid=hit.pid,
            expects=[
                exit_of(hit, "signal_9"),
                LogExpected(
                    event=Event.RESTARTS_EXHAUSTED.value,
                    keys={"actor": hit.path, "context": "half_open"},
                    within=_WORN_OUT_WITHIN,
                ),
                LogExpected(
                    event=Event.MODEL_DEGRADED.value, keys={"model": self.guest}, within=_WORN_OUT_WITHIN
                ),
            ],
            undo=partial(self._send_off, stage, shelf, hit, order),
        )

    async def _send_off(self, stage: Stage, shelf: Shelf, hit: Instance, order: Order) -> None:
        try:
            await _worn_out(stage, hit)
            end = await stage.send(self.guest)
            if not isinstance(end, Ok):
                raise Trouble(
                    f"the other instance of '{self.guest}' should have answered, and there was {end}"
                )
        finally:
            order.withdraw()
            await send_off(stage, shelf)
        await until_gone(stage, self.guest)


async def _worn_out(stage: Stage, hit: Instance) -> None:
    def state(tree: Node | None) -> str:
        return str(node_at(tree, hit.path).get("state", "")) if tree else ""

    await until(
        stage.server.tree,
        lambda tree: state(tree) == "exhausted",
        lambda tree: f"{hit.path} is {state(tree)} after {PATIENCE:g} s in which it could not start",
    )


FAULTS: Sequence[Fault] = (
    FailsToStart(
        name="initialisation_fails_twice",
        expected="The instance is started again after each failure, the later the oftener it failed, and the other instance answers"
        " meanwhile; clients hear no more than of a worker's death.",
        models=PYTHON,
        times=2,
    ),
    NeverStarts(
        name="initialisation_fails_for_ever",
        expected="After five failures the instance is given up for a while and the model is degraded, with both in the log; its other"
        " instance answers on.",
        guest="echo-doomed",
        weight=0.5,
    ),
)
