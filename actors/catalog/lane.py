"""The lane of a model: the operations that wait for it, and the actor that carries them out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from actors.catalog.deployment import Deployment
from actors.catalog.loading import Surroundings
from actors.catalog.operations import Gone, LookAt, Operation, Unload
from actors.seams import faults
from actors.seams.bell import Bell
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.values.errors import Internal, TritiumError
from actors.values.specs import ModelKey

INTENSITY: Final = Intensity(5, 60.0)


class Lane:
    """The operations that wait for one model, and the actor that carries them out."""

    def __init__(
        self,
        key: ModelKey,
        around: Surroundings,
        name: str,
        *,
        on_over: Callable[[], object],
        on_changed: Callable[[ModelKey], object] = lambda _: None,
    ) -> None:
        """`on_over` is called when the lane is no longer needed, see `over`.

        `on_changed` is called when other versions serve.
        """
        self.deployment = Deployment(
            key, around, on_retired=self._look_up, on_changed=lambda: on_changed(key)
        )
        self.name = name  # in the supervision tree
        self._on_over = on_over
        self.standing = False  # its actor was started
        self._waiting: deque[Operation] = deque()
        self._current: Operation | None = None
        self._began = 0.0  # when the current operation began
        self._scope: trio.CancelScope | None = None
        self._arrived = Bell()

    def add(self, operation: Operation) -> None:
        """Put an operation behind the others. Never waits."""
        if isinstance(operation, Unload | Gone):
            self._supersede()
        if isinstance(operation, LookAt):
            for waiting in self._waiting:
                if isinstance(waiting, LookAt):  # it will see what this one would
                    waiting.changed |= operation.changed
                    operation.finish()
                    return
        self._waiting.append(operation)
        self._arrived.ring()

    @property
    def has_work(self) -> bool:
        """Whether an operation is under way or waits."""
        return self._current is not None or bool(self._waiting)

    @property
    def loading_since(self) -> float | None:
        """Since when the model is being loaded.

        Infinite if it waits to be loaded, None if it is not to be.
        """
        current = self._current
        if current is not None and (current.loads or self.deployment.progress is not None):
            return self._began
        return math.inf if any(operation.loads for operation in self._waiting) else None

    @property
    def over(self) -> bool:
        """Whether its model has left, and no operation is left for it."""
        return self.deployment.at_rest and not self.has_work

    def _look_up(self) -> None:
        self._arrived.ring()

    def _supersede(self) -> None:
        """An order to unload takes the place of the operations that give way to it: end those."""
        for operation in [each for each in self._waiting if each.gives_way]:
            self._waiting.remove(operation)
            operation.give_way(self.deployment)
        if self._current is not None and self._current.gives_way and self._scope is not None:
            self._current.give_way(self.deployment)
            self._scope.cancel()

    def spec(self) -> ChildSpec:
        """Return the actor as a child: it is restarted for ever, without effect on its siblings."""
        return ChildSpec(self.name, self.run, intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    async def run(self, ctx: ChildContext) -> None:
        """Carry out one operation after the other.

        An unfinished one is answered, or is the first of the next life; see `Operation.lives`.
        """
        ctx.started()
        self.deployment.tell = ctx.publish
        if self.deployment.key.namespace:
            ctx.publish(namespace=self.deployment.key.namespace)
        ctx.publish(reload_failed=self.deployment.setback or None)
        while True:
            while self._waiting:
                self._current, self._began = self._waiting.popleft(), trio.current_time()
                ctx.publish(busy_with=type(self._current).__name__.lower())
                try:
                    await self._carry_out(self._current)
                finally:  # also if it was cancelled, or crashed
                    self._leave_off(self._current)
                    self._current = self._scope = self.deployment.progress = None
            ctx.publish(busy_with=None, phase=None, attempt=None)
            if self.over:
                self._on_over()
            await self._arrived.next_ring()

    def _leave_off(self, operation: Operation) -> None:
        """This life ends during an operation, or has done it."""
        if operation.done.is_set():
            return
        operation.lives -= 1
        if operation.lives:
            self._waiting.appendleft(operation)
        else:
            name = self.deployment.key.name
            operation.finish(Internal(f"what was asked of model '{name}' came to no end"))

    async def _carry_out(self, operation: Operation) -> None:
        if faults.points is not None:
            faults.points.passing("lane.operation")
        with trio.CancelScope() as self._scope:
            try:
                await operation.carry_out(self.deployment)
            except TritiumError as error:
                operation.finish(error)
            else:
                operation.finish()
