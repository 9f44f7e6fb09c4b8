"""The scheduler of the engines of a language model: it gives each run to the instance that was chosen for it.

What was chosen is in the run's seat (`actors.generation.engine_line`). Where that instance has died, or was
taken out of service, before it began with the run, another one is chosen. The actor holds no request: a
restarted one finds all in the version's queue.
"""

from __future__ import annotations

import math
from typing import Final, NoReturn

import trio

from actors.generation.engine_line import EngineLine
from actors.generation.generation import EngineRun
from actors.generation.slumber import SleepOrder
from actors.seams import faults
from actors.serving.model import ModelState
from actors.serving.policy.queueing import RequestQueue
from actors.serving.standing import InstanceState
from actors.serving.turns import TurnTaker
from actors.supervision.context import ChildContext
from actors.values.errors import WorkerLost
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferRequest

LOOKED_AT: Final = 256
"""Requests of the queue that are looked at in one turn. There are few, as a rule: others wait in line."""


class Assigner(TurnTaker):
    """One turn at a time: end what is overdue, then hand each run to its instance, if that has room."""

    def __init__(self, state: ModelState, line: EngineLine) -> None:
        """`line` is that of the language model's version."""
        super().__init__(state)
        if not isinstance(state.queue, RequestQueue):
            raise TypeError(f"the requests of model '{state.spec.name}' follow each other")
        self._queue = state.queue
        self._line = line

    def turn(self, now: float) -> float:
        """See `TurnTaker.turn`."""
        if faults.points is not None:
            faults.points.passing("assigner.turn")
        self.answer_door()
        self._line.look()
        queue, limiter = self._queue, self.state.dispatcher.limiter
        if self.end_overdue(queue, now) <= now:
            return -math.inf
        waiting: set[InstanceState] = set()  # for an execution that the rate limiter holds up
        for request in queue.head(LOOKED_AT) if len(queue) else ():
            if isinstance(request.reply, SleepOrder):
                self._end(request, request.reply)
                continue
            instance = self._instance_of(request)
            if instance is None or instance.worker is None or not instance.worker.has_room:
                continue
            if limiter is not None and not limiter.ask(instance):
                waiting.add(instance)
                continue
            if self.state.dispatcher.dispatch(instance, queue.pick([request])) and limiter is not None:
                limiter.began(instance)
        if limiter is not None:
            for each in self.state.rotation:
                if each not in waiting:
                    limiter.withdraw(each)
        return queue.next_expiry()

    def _end(self, request: InferRequest, order: SleepOrder) -> None:
        """An order is for one worker only, which has gone, or leaves, without having begun with it."""
        self._queue.pick([request])
        request.answered = True
        order.put(WorkerLost("the engine has gone", how="it has gone", blamed=False), final=True)

    def _instance_of(self, request: InferRequest) -> InstanceState | None:
        """Return the instance that a request is for; None if none lives."""
        run = request.reply
        if not isinstance(run, EngineRun) or run.seat is None:
            return next((each for each in self.state.rotation if _is_awake(each)), None)
        chosen = self._chosen(run)
        if chosen is None:
            self._line.place_anew(run)
            chosen = self._chosen(run)
        return chosen

    def _chosen(self, run: EngineRun) -> InstanceState | None:
        account = None if run.seat is None else run.seat.account
        if account is None:
            return None
        return next((each for each in self.state.rotation if each.worker is account.key), None)

    def withdraw(self) -> None:
        """Leave the rate limiter's line, where other instances would wait for this model's in vain."""
        if self.state.dispatcher.limiter is not None:
            for each in self.state.rotation:
                self.state.dispatcher.limiter.withdraw(each)


def _is_awake(instance: InstanceState) -> bool:
    return instance.worker is not None and instance.worker.sleep_state is SleepState.AWAKE


async def run(ctx: ChildContext, state: ModelState, line: EngineLine) -> None:
    """Schedule until asked to stop.

    The queue drains before that, because instances stop after the scheduler.
    """
    assigner = Assigner(state, line)
    ctx.started()
    ctx.publish(scheduler="engines")
    state.doorbell.take_turn = assigner.turn_at_once
    try:
        await _take_turns(assigner, state)
    finally:
        state.doorbell.take_turn = None
        assigner.withdraw()


async def _take_turns(assigner: Assigner, state: ModelState) -> NoReturn:
    while True:
        wake_at = assigner.turn(trio.current_time())
        with trio.move_on_at(wake_at):
            await state.doorbell.wait()
