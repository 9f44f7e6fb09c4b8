"""Replaces worn-out workers of a model version, one at a time: an actor beside the version's instances.

`actors.serving.policy.recycling` decides; the code that can start and stop instances replaces. Requests are not
affected by this actor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from actors.seams import faults
from actors.serving.instances.worker import LiveWorker
from actors.serving.model import ModelState
from actors.serving.policy.recycling import Rest, Wear, ceiling_reached, next_look
from actors.serving.standing import InstanceState, Status
from actors.supervision.context import ChildContext
from actors.values.errors import TritiumError
from actors.values.events import Event, Log
from actors.values.specs import Recycle

Measure = Callable[[int], Awaitable[int]]
"""Returns the bytes of memory of a process and all processes that it started; 0 if it has gone."""


class Instances(Protocol):
    """Starts and ends instances of versions; `engine.server.instance_changes` does."""

    async def replace(self, state: ModelState, each: InstanceState) -> InstanceState:
        """Start an instance like this one; once that serves, give this one no more batches.

        Returns the new one.

        Raises TritiumError if the new one can't load the model. Then everything is as before, and so it is if
        the caller is cancelled.
        """

    async def retire(self, state: ModelState, each: InstanceState) -> None:
        """Wait until a replaced instance has answered all its requests, then end it."""


class Recycler:
    """Looks at the workers of one version, for as long as it serves."""

    def __init__(
        self, state: ModelState, ceilings: Recycle, *, instances: Instances, measure: Measure, log: Log
    ) -> None:
        self._state = state
        self._ceilings = ceilings
        self._instances = instances
        self._measure = measure
        self._log = log
        self._rest = Rest()
        # A replaced instance still to be ended, if need be in the actor's next life.
        self._replaced: InstanceState | None = None

    async def run(self, ctx: ChildContext) -> None:
        """Replace workers that reach a ceiling, until cancelled."""
        ctx.started()
        while True:
            await self._retire()
            now = trio.current_time()
            ages = [now - worker.serving_since for worker, _ in self._serving()]
            await trio.sleep_until(max(now + next_look(ages, self._ceilings), self._rest.until))
            await self._look()

    async def _look(self) -> None:
        """Replace the oldest worker that has reached a ceiling."""
        if faults.points is not None:
            faults.points.passing("recycler.look")
        if self._state.status is not Status.READY:
            return
        for worker, each in sorted(self._serving(), key=lambda pair: pair[0].serving_since):
            ceiling = ceiling_reached(await self._wear(worker, each), self._ceilings)
            if ceiling and each.worker is worker and each in self._state.rotation and not each.hunting:
                await self._recycle(worker, each, ceiling)
                return

    def _serving(self) -> list[tuple[LiveWorker, InstanceState]]:
        return [(each.worker, each) for each in self._state.rotation if each.worker is not None]

    async def _wear(self, worker: LiveWorker, each: InstanceState) -> Wear:
        memory = 0
        if self._ceilings.memory and each.pid is not None:
            memory = await self._measure(each.pid)
        age = trio.current_time() - worker.serving_since
        return Wear(memory=memory, requests=worker.given, seconds=age)

    async def _recycle(self, worker: LiveWorker, each: InstanceState, ceiling: str) -> None:
        spec, began, pid = self._state.spec, trio.current_time(), each.pid
        keys: dict[str, Any] = {
            "model": spec.name,
            "version": spec.version,
            "instance": each.spec.name,
            "pid": pid,
            "ceiling": ceiling,
        }
        worker.farewell = "recycled"
        try:
            fresh = await self._instances.replace(self._state, each)
        except TritiumError as error:
            worker.farewell = "stopped"
            self._rest.failed(trio.current_time())
            self._log(Event.WORKER_RECYCLED, level="warning", **keys, error=error.message)
            return
        self._rest.replaced(began, trio.current_time())
        self._state.statistics.recycled[ceiling] += 1
        self._replaced = each
        self._log(Event.WORKER_RECYCLED, **keys, replacement=fresh.pid, seconds=trio.current_time() - began)

    async def _retire(self) -> None:
        """End the replaced instance, so that there is never more than one worker too many."""
        if self._replaced is not None:
            await self._instances.retire(self._state, self._replaced)
            self._replaced = None
