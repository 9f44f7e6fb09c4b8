"""The lanes of models: the operations that wait for each, and the actor that carries them out.

A lane is made when its model is first heard of, and ended when the model has left.

Operations come through a bounded channel, which the lane keeps, so it outlives the actor. A caller that asks
for something waits for a place in it, and for the outcome. The catalog and other lanes, which tell of a
change, never wait: so no circle of lanes can come to a standstill. An operation is in the table `_waiting`
before it is sent. One that an order to unload has replaced leaves the table, and the actor passes over it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Final

import trio

from actors.catalog.deployment import INTENSITY, Deployment
from actors.catalog.loading import Surroundings
from actors.catalog.operations import Gone, Operation, Recompose, Unload
from actors.seams import faults
from actors.seams.bell import Bell
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, OnExhausted
from actors.supervision.supervisor import Supervisor
from actors.values.errors import Internal, TritiumError
from actors.values.specs import ModelKey

PLACES: Final = 64
"""Operations that wait in a lane before a caller has to wait for a place."""


class ModelLane:
    """The operations that wait for one model, and the actor that carries them out."""

    def __init__(
        self,
        key: ModelKey,
        around: Surroundings,
        name: str,
        *,
        on_over: Callable[[], object],
        on_changed: Callable[[ModelKey], object],
    ) -> None:
        """`on_over` is called when the lane is no longer needed, see `over`.

        `on_changed` is called when other versions serve.
        """
        self.deployment = Deployment(
            key, around, on_retired=self._tell_if_over, on_changed=lambda: on_changed(key)
        )
        self.name = name  # in the supervision tree
        self._on_over = on_over
        self.standing = False  # its actor was started
        channel: tuple[trio.MemorySendChannel[Operation], trio.MemoryReceiveChannel[Operation]]
        channel = trio.open_memory_channel(PLACES)
        self._send, self._receive = channel
        # Sent or about to be, and not begun, in their order.
        self._waiting: dict[Operation, None] = {}
        # The operation that the last life of the actor left off, and that this life begins with.
        self._unfinished: Operation | None = None
        self._recheck = False  # a `Recompose` found no place
        self._gone: Gone | None = None  # found no place: the next operation
        self._current: Operation | None = None
        self._began = 0.0  # when the current operation began
        self._scope: trio.CancelScope | None = None

    # -- for others ------------------------------------------------------------------------------------------

    async def ask(self, operation: Operation) -> None:
        """Send an operation and wait for its outcome. Raises what it failed with."""
        await self.send(operation)
        await operation.outcome()

    async def send(self, operation: Operation) -> None:
        """Send an operation; waits for a place."""
        self._enter(operation)
        try:
            await self._send.send(operation)
        except trio.Cancelled:
            if operation in self._waiting:
                del self._waiting[operation]
                # Another change of a part may have been left to this operation.
                self._recheck = self._recheck or isinstance(operation, Recompose)
                self._tell_if_over()
            raise

    def tell(self, operation: Operation) -> bool:
        """Send an operation that no caller waits for. Never waits; False where there is no place.

        An operation that a waiting one makes needless is dropped. That the model has left is never lost.
        """
        for waiting in self._waiting:
            if waiting.covers(operation):
                return True
        self._enter(operation)
        try:
            self._send.send_nowait(operation)
        except trio.WouldBlock:
            if isinstance(operation, Gone):
                # The actor has still to take what fills the channel, and finds this then.
                self._gone = operation
                return True
            del self._waiting[operation]
            return False
        return True

    def recheck(self) -> None:
        """A model that the ensemble is composed of has changed. Never waits, and is never lost."""
        self._recheck = not self.tell(Recompose())

    def _enter(self, operation: Operation) -> None:
        if isinstance(operation, Unload | Gone):
            self._supersede()
        self._waiting[operation] = None

    def _supersede(self) -> None:
        """An order to unload takes the place of the operations that give way to it: end those."""
        for operation in [each for each in self._waiting if each.gives_way]:
            del self._waiting[operation]
            operation.give_way(self.deployment)
        if self._current is not None and self._current.gives_way and self._scope is not None:
            self._current.give_way(self.deployment)
            self._scope.cancel()

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

    def spec(self) -> ChildSpec:
        """Return the actor as a child: it is restarted for ever, without effect on its siblings."""
        return ChildSpec(self.name, self.run, intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    # -- the actor -------------------------------------------------------------------------------------------

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
            if not self._waiting and not self._recheck:
                ctx.publish(busy_with=None, phase=None, attempt=None)
                self._tell_if_over()
            self._current = await self._next()
            self._began = trio.current_time()
            ctx.publish(busy_with=type(self._current).__name__.lower())
            try:
                await self._carry_out(self._current)
            finally:  # also if it was cancelled, or crashed
                self._leave_off(self._current)
                self._current = self._scope = self.deployment.progress = None

    async def _next(self) -> Operation:
        """Take the next operation that still waits."""
        operation, self._unfinished = self._unfinished, None
        while operation is None or operation not in self._waiting:
            if self._gone is not None:
                operation, self._gone = self._gone, None
                continue
            if self._recheck:
                self.recheck()
            operation = await self._receive.receive()
        del self._waiting[operation]
        return operation

    def _leave_off(self, operation: Operation) -> None:
        """This life ends during an operation, or has done it."""
        if operation.done.is_set():
            return
        operation.lives -= 1
        if operation.lives:
            self._unfinished = operation
            self._waiting = {operation: None, **self._waiting}
        else:
            name = self.deployment.key.name
            operation.finish(Internal(f"what was asked of model '{name}' came to no end"))

    def _tell_if_over(self) -> None:
        if self.over:
            self._on_over()

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


class Lanes:
    """Every lane, and its actor below `supervisor`. Passive around `keep`, a task of the catalog."""

    def __init__(self, around: Surroundings, supervisor: Supervisor) -> None:
        self._around = around
        self._supervisor = supervisor
        self._lanes: dict[ModelKey, ModelLane] = {}
        self._news = Bell()  # a lane is to be started, or is over

    def __len__(self) -> int:
        return len(self._lanes)

    def find(self, key: ModelKey) -> ModelLane | None:
        """Return the lane of a model that was heard of."""
        return self._lanes.get(key)

    def all(self) -> Mapping[ModelKey, ModelLane]:
        """Return every lane that there is now."""
        return dict(self._lanes)

    def named(self, name: str) -> list[ModelKey]:
        """Return the models of this name, in any namespace."""
        return [key for key in self._lanes if key.name == name]

    def ensembles_of(self, name: str) -> list[ModelKey]:
        """Return the models that are composed of the model called `name`, or would be."""
        return [key for key, lane in self._lanes.items() if name in lane.deployment.parts]

    def of(self, key: ModelKey) -> ModelLane:
        """Return the lane of a model; it may be new."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = ModelLane(
                key,
                self._around,
                self._free_name(key.name),
                on_over=self._news.ring,
                on_changed=self._recheck,
            )
            self._news.ring()
        return lane

    def _free_name(self, name: str) -> str:
        taken = {lane.name for lane in self._lanes.values()}
        candidates = itertools.chain((name,), (f"{name}@{number}" for number in itertools.count(2)))
        return next(each for each in candidates if each not in taken)

    def _recheck(self, key: ModelKey) -> None:
        """Other versions of a model serve than before: have its ensembles check themselves again."""
        for ensemble in self.ensembles_of(key.name):
            self._lanes[ensemble].recheck()

    async def keep(self) -> None:
        """Start the actors of new lanes, and end those of lanes that are over, for ever."""
        if faults.points is not None:
            faults.points.passing("catalog.lanes")
        present = set(self._supervisor.which_children())
        for lane in self._lanes.values():
            lane.standing = lane.name in present
        while True:
            heard = self._news.rings
            for key, lane in list(self._lanes.items()):
                with trio.CancelScope(shield=True):  # takes no time, and must not be interrupted
                    if lane.over:
                        del self._lanes[key]  # a later operation on the model gets a new lane
                        if lane.standing:
                            await self._supervisor.terminate_child(lane.name)
                    elif not lane.standing:
                        lane.standing = True
                        await self._supervisor.start_child(lane.spec())
            await self._news.wait(heard)

    def progress(self, key: ModelKey) -> Mapping[str, object] | None:
        """Return a model's operation under way: its phase, since how many seconds, at which attempt."""
        lane = self._lanes.get(key)
        busy = None if lane is None else lane.deployment.progress
        if busy is None:
            return None
        phase = busy.phase
        details: dict[str, object] = {}
        if phase == "loading":
            loading = [
                state
                for state in self._around.roster.background(key)
                if not state.standing.load_finished.is_set()
            ]
            if loading:
                standing = loading[-1].executing.standing
                phase = standing.phase
                details = {"phase_seconds": round(trio.current_time() - standing.phase_since, 3)}
        seconds = round(trio.current_time() - busy.since, 3)
        return {"phase": phase, "seconds": seconds, "attempt": busy.attempt, **details, **busy.details}
