"""Why and when a worker ends: its owner's verdict, and how its process really ended."""

from __future__ import annotations

import signal
from functools import partial
from typing import Final

import trio

from actors.seams import faults
from actors.seams.threads import in_thread
from actors.serving.instances.batches import InFlight
from actors.serving.instances.launching import Launched
from actors.serving.instances.worker import LiveWorker
from actors.serving.policy.confinement import judge, next_look
from actors.serving.policy.retries import (
    DeathReason,
    Hang,
    NotStarted,
    Oom,
    ProtocolError,
    Signal,
)
from actors.values.confinement import Confinement

# Time for a worker that closed its socket to exit. Clients wait meanwhile.
EOF_TO_EXIT_SECONDS: Final = 0.05
STOP_SECONDS: Final = 5.0  # from STOP to SIGTERM: time for `finalize`
TERMINATE_SECONDS: Final = 2.0  # from SIGTERM to SIGKILL


class WorkerWatch:
    """Watches one worker from its launch to its exit, and ends it where it has to be ended."""

    def __init__(self, launched: Launched) -> None:
        self.exited = trio.Event()
        self.reason: DeathReason | None = None  # how the process ended
        self.verdict: DeathReason | None = None  # why its owner killed it, if it did
        self.culprit: InFlight | None = None  # the batch that has been executing for too long
        self._launched = launched
        self._hung_up = False  # killed because it stayed alive without its connection

    @property
    def cause(self) -> DeathReason:
        """Why it ended."""
        return self.verdict or self.reason or ProtocolError("ended")

    def condemn(self, verdict: DeathReason) -> None:
        """Kill it. The first verdict counts."""
        self.verdict = self.verdict or verdict
        self._launched.kill()

    async def for_exit(self, life: trio.CancelScope) -> None:
        """Cancel `life` when the process has exited."""
        if faults.points is not None:
            faults.points.passing("instance.exit")
        self.reason = await self._launched.wait()
        # On a busy machine the worker may have been about to exit, and have ended by that. Then our signal
        # came too late.
        if self._hung_up and (self._launched.abandoned or self.reason == Signal(signal.SIGKILL)):
            self.verdict = self.verdict or ProtocolError("closed its connection and stayed alive")
        self.exited.set()
        life.cancel()

    async def for_hang(self, worker: LiveWorker, limit: float) -> None:
        """Kill the worker when a batch has been executing for longer than the limit."""
        while True:
            now = trio.current_time()
            self.culprit = worker.overdue(now - limit)
            if self.culprit is not None:
                self.condemn(Hang(limit, suspended=self._launched.suspended))
                return
            await trio.sleep_until(min(worker.oldest_began_at(), now) + limit)

    async def for_return(self, joined: trio.Event, limit: float) -> None:
        """Kill a worker that takes longer to come back than a load may.

        The caller that asked for a version's first load ends that load.
        """
        with trio.move_on_after(limit):
            await joined.wait()
        if not joined.is_set():
            self.condemn(NotStarted(f"not ready within {limit:g} s (tritium.load_timeout)"))

    async def for_usage(self, limits: Confinement) -> None:
        """Kill the worker when it takes more memory, or starts more processes, than its model may."""
        launched = self._launched
        while True:
            usage = launched.glance()
            if usage is None:
                usage = await in_thread(launched.usage)
            excess = judge(usage, limits)
            if isinstance(excess, Oom) and usage.processes > 1:
                usage = await in_thread(partial(launched.usage, exact=True))
                excess = judge(usage, limits)
            if excess is not None:
                self.condemn(excess)
                return
            await trio.sleep(next_look(usage, limits))

    async def after_hang_up(self) -> None:
        """It has closed its end of the connection: kill it, unless it exits now."""
        with trio.move_on_after(EOF_TO_EXIT_SECONDS):
            await self.exited.wait()
        if not self._launched.exited:
            self._hung_up = not self._launched.dying
            self._launched.kill()

    async def exit_in_time(self) -> None:
        """It was asked to stop: give it time to exit."""
        with trio.move_on_after(STOP_SECONDS):
            await self.exited.wait()

    async def exit_or_kill(self) -> None:
        """It was asked to stop: kill it, unless it exits in time."""
        await self.exit_in_time()
        self._launched.kill()

    async def terminate(self) -> None:
        """End it, by SIGTERM and then by SIGKILL, while `for_exit` waits for its exit."""
        self._launched.terminate()
        with trio.move_on_after(TERMINATE_SECONDS):
            await self.exited.wait()
        self._launched.kill()

    async def reap(self) -> None:
        """Return when it has exited. End it, where nothing waits for its exit any more."""
        if not self.exited.is_set():
            self._launched.terminate()
            with trio.move_on_after(0 if self.verdict else TERMINATE_SECONDS):
                self.reason = await self._launched.wait()
                self.exited.set()
        if not self.exited.is_set():
            self._launched.kill()
            self.reason = await self._launched.wait()
