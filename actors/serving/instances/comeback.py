"""Which instances start first when all versions come back at once, after a crash of the top supervisor.

Workers that start together share the cores, and are all ready late. If there are more workers than cores, one
instance of each version starts first, and the others start when those serve. Until then each model has to
wait only half as long, or less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
