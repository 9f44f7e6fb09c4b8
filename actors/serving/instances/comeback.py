"""Which instances start first, and how many at once, as workers that start together share the cores.

If all versions come back at once, after a crash of the top supervisor, and there are more workers than cores,
one instance of each version starts first, and the others start when those serve. Until then each model has to
wait only half as long, or less.

While others serve, a worker that starts would take the processor time that they need, for a tenth of a second
or more. So half the cores are left to the serving workers: if more instances than that load for the first
time, they start one after the other. A load that takes long, such as that of a model that comes over a
network, does not hold up the others. Restarts do not wait, and neither does any load while the server starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import trio

from actors.serving.standing import InstanceState
from actors.supervision.context import Stopping

PATIENCE: Final = 5.0
"""Seconds after which no instance waits any more.

A model that takes long to load must not cost the other models their instances.
"""


class Comeback:
    """One return of `versions`, each given by its instances. Without versions, no instance has to wait."""

    def __init__(self, versions: Iterable[Sequence[InstanceState]] = (), *, cores: int = 0) -> None:
        """`cores` workers may start together without delaying one another."""
        crowd = [instances for instances in versions if instances]
        crowded = sum(map(len, crowd)) > cores
        self._first = {_first(instances) for instances in crowd} if crowded else set()
        self._later = {each for instances in crowd for each in instances} - self._first if crowded else set()
        self._until = trio.current_time() + PATIENCE if crowded else -math.inf
        self._open = trio.Event()

    async def wait_turn(self, instance: InstanceState, stopping: Stopping) -> None:
        """Return when `instance` may start, or is asked to stop.

        An instance that starts again does not wait.
        """
        if instance not in self._later:
            return
        self._later.discard(instance)
        with trio.move_on_at(self._until) as scope:
            stopping.then(scope.cancel)
            await self._open.wait()

    def over(self, instance: InstanceState) -> None:
        """`instance` serves, or has died: no other instance need wait for it."""
        self._first.discard(instance)
        if not self._first:
            self._open.set()


def _first(instances: Sequence[InstanceState]) -> InstanceState:
    """Return an instance that will execute, if there is one."""
    return next((each for each in instances if not each.spec.passive), instances[0])


TURN: Final = 0.25
"""Seconds after which the next instance may start, though this one is still loading."""


class LoadTurns:
    """Turns of instances. An instance that has taken one gives it back by `over`, or has it expire."""

    def __init__(self, cores: int, *, needed: Callable[[], bool] = lambda: True) -> None:
        """Half of `cores` start at once, where it is `needed`; if `cores` is 0, no instance has to wait."""
        self._limiter = trio.CapacityLimiter(max(1, cores // 2)) if cores else None
        self._needed = needed
        self._holders: set[InstanceState] = set()

    async def take(self, instance: InstanceState, stopping: Stopping) -> None:
        """Return when `instance` may start, or is asked to stop."""
        if self._limiter is None or instance.started_once or not self._needed():
            return
        with trio.CancelScope() as scope:
            stopping.then(scope.cancel)
            await self._limiter.acquire_on_behalf_of(instance)
            self._holders.add(instance)

    async def expire(self, instance: InstanceState) -> None:
        """Let the next instance begin after a while."""
        if instance in self._holders:
            await trio.sleep(TURN)
            self.over(instance)

    def over(self, instance: InstanceState) -> None:
        """`instance` serves, or has died: the next one may start."""
        if self._limiter is not None and instance in self._holders:
            self._holders.discard(instance)
            self._limiter.release_on_behalf_of(instance)
