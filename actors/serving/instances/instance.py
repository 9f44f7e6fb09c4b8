"""The instance actor: owns one worker, from launch to burial.

The actor launches the worker, has it load and warm up the model, and joins the model's instances. Then it
handles the worker's messages until the worker dies or the server wants it to stop. It reports a death by
raising `WorkerDied`, after every request that the worker held has been settled. Starting again is the
supervisor's business.
"""

from __future__ import annotations

import os

import trio

from actors.serving.asks import Asks
from actors.serving.instances.comeback import Comeback, LoadTurns
from actors.serving.instances.launching import Launched, Launcher, prefetches
from actors.serving.instances.life import WorkerLife
from actors.serving.instances.post import Post
from actors.serving.model import ModelState
from actors.serving.policy.retries import DeathReason, NotStarted
from actors.serving.standing import InstanceState
from actors.supervision.context import ChildContext
from actors.values.errors import ErrorCode
from actors.values.events import Log


class WorkerDied(Exception):
    """A worker ended without being asked to. `reason` is one of `actors.serving.policy.retries`."""

    def __init__(self, instance: str, reason: DeathReason) -> None:
        super().__init__(f"the worker of instance '{instance}' died of {reason}")
        self.reason = reason


async def run(
    ctx: ChildContext,
    state: ModelState,
    instance: InstanceState,
    *,
    launcher: Launcher,
    log: Log,
    asks: Asks | None = None,
    comeback: Comeback | None = None,
    turns: LoadTurns | None = None,
) -> None:
    """Live one life of an instance.

    Raises WorkerDied, unless asked to stop. Without `asks`, its model can't ask for anything.

    With a `comeback` and with `turns`, the instance waits for its turn in each.
    """
    actor = InstanceActor(
        ctx, state, instance, launcher=launcher, log=log, asks=asks, comeback=comeback, turns=turns
    )
    try:
        await actor.run()
    finally:
        actor.let_others_start()
        state.dispatcher.reclaim(instance)


class InstanceActor:
    """Starts one worker for one instance, and reports its death; see the module."""

    def __init__(
        self,
        ctx: ChildContext,
        state: ModelState,
        instance: InstanceState,
        *,
        launcher: Launcher,
        log: Log,
        asks: Asks | None = None,
        comeback: Comeback | None = None,
        turns: LoadTurns | None = None,
    ) -> None:
        self._ctx = ctx
        self._post = Post(ctx, state, instance, log)
        self._asks = asks
        self._comeback = comeback or Comeback()
        self._turns = turns or LoadTurns(0)
        self._state = state
        self._instance = instance
        self._launcher = launcher

    async def run(self) -> None:
        """Launch, load, warm up, serve, bury."""
        spec = self._instance.spec
        self._ctx.publish(
            kind=spec.kind, lanes=spec.lanes, gpu=spec.device_id if spec.kind == "GPU" else None
        )
        self._post.enter("starting")
        # This actor runs; the model's readiness is told by the model's state.
        self._ctx.started()
        await self._comeback.wait_turn(self._instance, self._ctx.stopping)
        await self._turns.take(self._instance, self._ctx.stopping)
        if self._ctx.stopping.is_set():
            return
        reason = await self._live()
        self.let_others_start()
        if self._instance.settled.is_set() and not self._instance.started_once:
            self._ctx.publish(phase="failed to load")
            # It is given up; the catalog decides whether to try again.
            await self._ctx.stopping.wait()
        if not self._ctx.stopping.is_set():
            raise WorkerDied(self._post.name, reason)

    def let_others_start(self) -> None:
        """Let the instances start that wait for this one."""
        self._comeback.over(self._instance)
        self._turns.over(self._instance)

    async def _live(self) -> DeathReason:
        """Live one life of a worker; return why it ended."""
        try:
            launched = await self._launcher.launch(self._state.spec, self._instance.spec)
        except OSError as error:
            return self._never_lived(f"no worker could be started: {error}")
        limiter = self._state.dispatcher.limiter
        # A batch that waits for a resource must not wait in the worker, which executes every batch that it
        # holds.
        limited = limiter is not None and limiter.limits(self._instance)
        prefetch = prefetches(self._state.spec) and not limited
        try:
            life = WorkerLife(self._post, launched, prefetch=prefetch, on_joined=self.let_others_start)
        except OSError as error:
            await _discard(launched)
            return self._never_lived(f"no memory or descriptor for a worker: {error}")
        await life.run(self._launcher, asks=self._asks, turns=self._turns)
        return life.watch.cause

    def _never_lived(self, why: str) -> DeathReason:
        reason = NotStarted(why)
        self._instance.last_reason = str(reason)
        if self._instance.exhausted:
            self._state.instance_exhausted(self._instance)
        self._state.standing.load_failed(f"{ErrorCode.INTERNAL.rendered}: {why}", self._instance)
        return reason


async def _discard(launched: Launched) -> None:
    """End a worker that was started for nothing."""
    launched.kill()
    launched.socket.close()
    if launched.output is not None:
        os.close(launched.output)
    with trio.CancelScope(shield=True):
        await launched.wait()
