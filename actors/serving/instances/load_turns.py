"""How many workers start at once while others serve.

A worker that starts wants a core for a tenth of a second or more, and so do others that load at the same
time. On few cores they would take the processor time that serving workers need. So half the cores are left to
the serving workers: if more instances than that load for the first time, they start one after the other. A
load that takes long, such as that of a model that comes over a network, does not hold up the others. Restarts
do not wait, and neither does any load while the server starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from actors.serving.standing import InstanceState
from actors.supervision.context import Stopping

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
