"""The scheduler actor of a sequence model: it carries out what `actors.sequences.policy.sequences` decides.

Sequences, slots and timers are in the model's state, so that a restarted actor finds them. As with other
models, a request that is alone in the model is dispatched by its caller. A doorbell wakes the actor for all
other work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NoReturn

import trio

from actors.seams import faults
from actors.seams.alarm import NEAR, Alarm
from actors.seams.bell import Bell
from actors.sequences.policy.records import SlotGroup
from actors.sequences.policy.sequences import Sequences
from actors.serving.instances.worker import LiveWorker
from actors.serving.model import ModelState
from actors.serving.policy.batching import Dispatch, Wait
from actors.serving.policy.holding import HoldBack
from actors.serving.standing import InstanceState
from actors.serving.turns import TurnTaker
from actors.supervision.context import ChildContext
from actors.values.events import Event, Log


async def run(ctx: ChildContext, state: ModelState, *, log: Log, hold: HoldBack | None = None) -> None:
    """Schedule until asked to stop.

    The queue drains before that, because instances stop after the scheduler.
    """
    alarm = Alarm(state.doorbell.ring)
    clock = Clock(state.doorbell.ring, alarm)
    try:
        sequencer = Sequencer(state, clock, log, hold)
        ctx.started()
        ctx.publish(scheduler="sequencebatching")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            nursery.start_soon(clock.run)
            state.dispatcher.wants = sequencer.wants
            state.doorbell.take_turn = sequencer.turn_at_once
            await _take_turns(sequencer, state)
    finally:
        state.doorbell.take_turn = None
        for instance in state.instances:
            if state.dispatcher.limiter is not None:
                state.dispatcher.limiter.withdraw(instance)
        alarm.close()


async def _take_turns(sequencer: Sequencer, state: ModelState) -> NoReturn:
    while True:
        sequencer.turn(trio.current_time())
        await state.doorbell.wait()


class Clock:
    """Rings at the earliest time it was asked for.

    There is one sleeper for all turns, since there is always a sequence that may be idle.
    """

    def __init__(self, ring: Callable[[], object], alarm: Alarm) -> None:
        self._ring = ring
        self._alarm = alarm
        self._due = math.inf
        self._sooner = Bell()

    def at_latest(self, due: float, now: float) -> None:
        """Ring at `due` or earlier."""
        if due >= self._due:
            return
        self._due = due
        if due - now < NEAR:
            self._alarm.set(due - now)  # and trio's clock rings as well, later
        self._sooner.ring()

    async def run(self) -> NoReturn:
        """Ring, again and again."""
        heard = 0
        while True:
            with trio.move_on_at(self._due):
                heard = await self._sooner.wait(heard)
            if trio.current_time() >= self._due:
                self._due = math.inf
                self._ring()


class Sequencer(TurnTaker):
    """One turn at a time: end what is due, then dispatch to each group of slots with a batch ready."""

    def __init__(self, state: ModelState, clock: Clock, log: Log, hold: HoldBack | None = None) -> None:
        """`hold` says whether the first batch may begin. Raises TypeError for a model without sequences."""
        if not isinstance(state.sequences, Sequences):
            raise TypeError(f"model '{state.spec.name}' has no sequences")
        super().__init__(state)
        self._sequences = state.sequences
        self._batches = state.sequences.batches
        self._clock = clock
        self._log = log
        self._hold = HoldBack() if hold is None else hold
        self._restarted = self._sequences.roll.restarted

    def turn(self, now: float) -> float:
        """See `TurnTaker.turn`. Its clock rings when there is more to do."""
        if faults.points is not None:
            faults.points.passing("sequencer.turn")
        self.answer_door()
        state = self.state
        wake_at = self.end_overdue(state.queue, now)
        if wake_at <= now:
            return -math.inf
        for instance in state.rotation if self._hold.open or self._opens() else ():
            worker = instance.worker
            if worker is not None:
                wake_at = min(wake_at, self._serve(instance, worker, now))
        if wake_at < math.inf:
            self._clock.at_latest(wake_at, now)
        if self._sequences.roll.restarted != self._restarted:
            self._warn()
        return math.inf

    def _opens(self) -> bool:
        tickets = self._sequences.tickets
        if self._hold.opens(tickets.waiting(seated=True), tickets.waiting(seated=False)):
            return True
        return any(request.synthetic for request in islice(tickets, 1))  # a load waits for its probe

    def _serve(self, instance: InstanceState, worker: LiveWorker, now: float) -> float:
        """Give an instance the batches that are ready for it; return when to look again."""
        wake_at, limiter = math.inf, self.state.dispatcher.limiter
        held_up = False
        for group in self._permitted(self._sequences.slots.groups(instance.key), worker):
            decision = self._batches.decide(group, now)
            if isinstance(decision, Wait):
                wake_at = min(wake_at, decision.until)
                continue
            if not worker.has_room:
                continue
            if limiter is not None and not limiter.ask(instance):
                held_up = True
                break
            batch = self._batches.form(group, decision)
            if (
                self.state.dispatcher.dispatch(instance, batch.requests, alone=batch.alone)
                and limiter is not None
            ):
                limiter.began(instance)
        if limiter is not None and not held_up:
            limiter.withdraw(instance)
        return wake_at

    def _permitted(self, groups: Sequence[SlotGroup], worker: LiveWorker) -> Sequence[SlotGroup]:
        """Return the groups that may run now.

        A group whose next request is a suspect runs only when no other lane of its worker does.
        """
        if len(groups) < 2:
            return groups
        if any(batch.alone for batch in worker.outstanding.values()):
            return ()
        suspects = [group for group in groups if self._batches.suspects(group)]
        if not suspects:
            return groups
        return suspects[:1] if worker.idle else ()

    def wants(self, instance: InstanceState) -> bool:
        """Whether an instance has a batch that it could begin."""
        now = trio.current_time()
        groups = self._sequences.slots.groups(instance.key)
        return any(isinstance(self._batches.decide(group, now), Dispatch) for group in groups)

    def _warn(self) -> None:
        """Log sequences that were begun anew before they had ended: at most once a turn."""
        self._log(
            Event.SEQUENCE_STARTED,
            level="warning",
            model=self.state.spec.name,
            version=self.state.spec.version,
            correlation_id=self._sequences.roll.last_restarted,
            restarts=self._sequences.roll.restarted - self._restarted,
            reason="START on a sequence that has not ended: what is queued of it still runs, then its state"
            " is reset",
        )
        self._restarted = self._sequences.roll.restarted
