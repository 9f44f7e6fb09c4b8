"""How many workers start at once while others serve.

A worker that starts wants a core for a tenth of a second or more, and so do those that are loaded with it: on
few cores, they would take from those that serve what these need. So half the cores are left to them:
instances that load for the first time start one after the other where there are more of them than that.
Nobody waits for one that takes long, such as a model that comes over a network. Restarts wait for nobody, nor
does anybody while the server starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from actors.model import InstanceState
from actors.supervision.context import Stopping

TURN: Final = 0.25
"""Seconds after which the next may start, though this one is still loading."""


class LoadTurns:
    """Turns of instances. Whoever has taken one gives it back by `over`, or has it expire."""

    def __init__(self, cores: int, *, needed: Callable[[], bool] = lambda: True) -> None:
        """Half of `cores` start at once, where it is `needed`; without any, nobody has to wait."""
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
        """Let the next begin after a while."""
        if instance in self._holders:
            await trio.sleep(TURN)
            self.over(instance)

    def over(self, instance: InstanceState) -> None:
        """`instance` serves, or has died: the next may start."""
        if self._limiter is not None and instance in self._holders:
            self._holders.discard(instance)
            self._limiter.release_on_behalf_of(instance)
