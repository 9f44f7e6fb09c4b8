"""The scheduler actor of a model: it forms a batch when an instance has room, and ends waits on time.

`direct` and `dynamic` scheduling differ only in their policy. The actor holds no request: a restarted one
finds the queue, the suspects and the instances in the model's state.
"""

from __future__ import annotations

import math
from typing import NoReturn, TypeAlias

import trio

from actors.seams import faults
from actors.seams.alarm import NEAR, Alarm
from actors.serving.instances.batches import InFlight
from actors.serving.instances.worker import LiveWorker
from actors.serving.model import ModelState
from actors.serving.policy import ahead
from actors.serving.policy.batching import (
    BatchPolicy,
    Dispatch,
    Grouping,
    Wait,
    affordable,
    grouping_for,
    policy_for,
)
from actors.serving.policy.holding import HoldBack
from actors.serving.policy.queueing import RequestQueue
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.policy.slo import TunedPolicy
from actors.serving.standing import InstanceState
from actors.serving.turns import TurnTaker
from actors.supervision.context import ChildContext
from actors.values.requests import InferRequest
from actors.values.specs import DynamicBatching

_Choice: TypeAlias = tuple[InstanceState, LiveWorker]  # an instance and its worker, which has room


async def run(ctx: ChildContext, state: ModelState, *, hold: HoldBack | None = None) -> None:
    """Schedule until asked to stop.

    The queue drains before that, because instances stop after the scheduler.
    """
    scheduler = Scheduler(state, hold)
    ctx.started()
    ctx.publish(scheduler=type(state.spec.scheduling).__name__.lower())
    alarm = Alarm(state.doorbell.ring)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            state.doorbell.take_turn = scheduler.turn_at_once
            await _take_turns(scheduler, state, alarm)
    finally:
        state.doorbell.take_turn = None
        scheduler.withdraw()
        alarm.close()


async def _take_turns(scheduler: Scheduler, state: ModelState, alarm: Alarm) -> NoReturn:
    while True:
        now = trio.current_time()
        wake_at = scheduler.turn(now)
        if wake_at == math.inf:
            await state.doorbell.wait()
            continue
        if 0 < wake_at - now < NEAR:
            alarm.set(wake_at - now)
        with trio.move_on_at(wake_at):
            await state.doorbell.wait()


class Scheduler(TurnTaker):
    """One turn at a time: expire due requests, then dispatch while an instance has room for a ready batch."""

    def __init__(self, state: ModelState, hold: HoldBack | None = None) -> None:
        """`hold`, which dynamic batching heeds, says whether the first batch may begin."""
        super().__init__(state)
        if not isinstance(state.queue, RequestQueue):
            raise TypeError(f"the requests of model '{state.spec.name}' follow each other")
        self._queue = state.queue
        heeded = isinstance(state.spec.scheduling, DynamicBatching)
        self._hold = hold if hold is not None and heeded else HoldBack()
        self._policy = policy_for(state.spec) if state.slo is None else state.slo.policy
        self._grouping = grouping_for(state.spec)

    def turn(self, now: float) -> float:  # noqa: C901  a turn in the order of its steps
        """See `TurnTaker.turn`."""
        if faults.points is not None:
            faults.points.passing("batcher.turn")
        self.answer_door()
        state, queue = self.state, self._queue
        if self.end_overdue(queue, now) <= now:
            return -math.inf
        expiry = math.inf
        hunts = False
        for instance in state.instances:
            suspects = instance.suspects
            if suspects.groups:
                expiry = min(expiry, self.end_overdue(suspects, now))
            if suspects.groups or suspects.running:
                hunts = True
        if hunts:
            self._hunt()
        wake_at = self._relieve(now) if len(state.rotation) > 1 else math.inf
        held_up = False
        held_back = not self._hold.open and not self._hold.opens(len(queue))
        policy, grouping = self._policy, self._grouping
        if state.easing.eased:
            set_now = policy.present if isinstance(policy, TunedPolicy) else policy
            policy = state.easing.policy(set_now, now)
            if grouping is not None and isinstance(policy, BatchPolicy):
                grouping = Grouping(policy)
        while len(queue):
            chosen = self._next_instance(now)
            if chosen is None:
                break
            candidates = queue.head(policy.max_rows if grouping is None else grouping.max_rows)
            if held_back and not candidates[0].synthetic:  # a probe passes, since a load waits for it
                break
            alike: list[InferRequest] = []
            count = 0
            if grouping is not None:
                choice = grouping.choose(candidates, oldest=queue.oldest_enqueued, now=now)
                if isinstance(choice, Wait):
                    wake_at = min(wake_at, choice.until)
                    break
                alike = choice
            else:
                decision = policy.decide(candidates, oldest=queue.oldest_enqueued, now=now)
                if not isinstance(decision, Dispatch):
                    wake_at = min(wake_at, decision.until)
                    break
                count = decision.requests
            if state.dispatcher.limiter is not None:
                chosen = self._permitted(state.dispatcher.limiter, now)
                if chosen is None:
                    held_up = True
                    break
            instance = chosen[0]
            if count > 1:
                count = affordable([each.nbytes for each in candidates[:count]])
            requests = queue.pick(alike) if alike else queue.take(count)
            if requests:
                if state.dispatcher.dispatch(instance, requests) and state.dispatcher.limiter is not None:
                    state.dispatcher.limiter.began(instance)
                if len(state.rotation) > 1:
                    self._served(instance)
        if state.dispatcher.limiter is not None:
            self.withdraw(held_up=held_up)
        return min(wake_at, expiry, queue.next_expiry())

    def _hunt(self) -> None:
        """Give instances with suspects the next group, alone, with nothing prefetched behind it."""
        limiter = self.state.dispatcher.limiter
        for instance in self.state.instances:
            worker = instance.worker
            while instance.hunting and worker is not None and worker.idle and worker.has_room:
                instance.suspects.outcome_ok()  # of a group that could not even be handed over
                if limiter is not None and len(instance.suspects) and not limiter.ask(instance):
                    break
                suspects = instance.suspects.next()
                if (
                    suspects
                    and self.state.dispatcher.dispatch(instance, suspects, alone=True)
                    and limiter is not None
                ):
                    limiter.began(instance)

    def _relieve(self, now: float) -> float:
        """Take back batches that wait behind a long execution, if another instance would begin them sooner.

        Return when to look again, if nothing rings before.
        """
        idle = late = False
        look_at = math.inf
        for instance in self.state.rotation:
            worker = instance.worker
            if worker is None:
                continue
            since = worker.busy_since
            if since == math.inf:
                idle = idle or (worker.has_room and not instance.hunting)
            elif ahead.outlasts(since, now):
                late = True
            elif worker.free_lanes < 0:
                look_at = min(look_at, since + ahead.PATIENCE + NEAR)
        if late:
            self._take_back_overdue(now)
        return look_at if idle else math.inf

    def _take_back_overdue(self, now: float) -> None:
        serving = [(each, each.worker) for each in self.state.rotation if each.worker is not None]
        workloads = [
            ahead.Workload(worker.busy_since, worker.has_room and not each.hunting, worker.took)
            for each, worker in serving
        ]
        room = sum(
            max(1, worker.free_lanes)
            for (_, worker), each in zip(serving, workloads, strict=True)
            if each.room
        )
        taken: list[tuple[InstanceState, InFlight]] = []
        for at in ahead.overdue(workloads, now):
            instance, worker = serving[at]
            taken += ((instance, batch) for batch in worker.not_begun() if not batch.alone)
        for instance, batch in reversed(taken[:room]):  # each goes to the head of the queue
            self.state.dispatcher.take_back(instance, batch)

    def _next_instance(self, now: float) -> _Choice | None:
        """Return an instance with room for fresh requests: an idle one, else that with the most free lanes.

        An instance without a free lane would only hold the batch ready, so it comes last. If its execution
        lasts and there are other instances, it is not chosen at all (`actors.serving.policy.ahead`). Among
        equals, the least recently served one is next.
        """
        fallback: _Choice | None = None
        most = 0
        several = len(self.state.rotation) > 1
        for instance in self.state.rotation:
            worker = instance.worker
            if worker is None or not worker.has_room or instance.hunting:
                continue
            if worker.idle:
                return instance, worker
            if (fallback is None or worker.free_lanes > most) and not (
                several and ahead.lasts(worker.busy_since, worker.took, now)
            ):
                fallback, most = (instance, worker), worker.free_lanes
        return fallback

    def _permitted(self, limiter: RateLimiter[InstanceState], now: float) -> _Choice | None:
        """Return an instance with room that may execute now.

        If none may, each has joined the limiter's line, and the limiter rings the scheduler.
        """
        several = len(self.state.rotation) > 1
        having_room = [
            (each, each.worker)
            for each in self.state.rotation
            if each.worker is not None
            and each.worker.has_room
            and not each.hunting
            and not (several and ahead.lasts(each.worker.busy_since, each.worker.took, now))
        ]
        having_room.sort(key=lambda choice: (not choice[1].idle, -choice[1].free_lanes))
        return next((choice for choice in having_room if limiter.ask(choice[0])), None)

    def withdraw(self, *, held_up: bool = False) -> None:
        """Leave the rate limiter's line, where other instances would wait for this model's in vain.

        While batches are `held_up`, instances with room stay in line. An instance that hunts stays in line as
        long as it hunts.
        """
        limiter = self.state.dispatcher.limiter
        if limiter is None:
            return
        for each in self.state.rotation:
            has_room = each.worker is not None and each.worker.has_room
            if not (has_room and (held_up or len(each.suspects))):
                limiter.withdraw(each)

    def _served(self, instance: InstanceState) -> None:
        """Let the other instances have their turns before this one."""
        rotation = self.state.rotation
        rotation.remove(instance)
        rotation.append(instance)
