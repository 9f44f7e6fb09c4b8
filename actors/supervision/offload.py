"""Blocking work done on threads for callers that can't wait; each is called back on the loop, exactly once.

An `Offload` outlives the actor that runs it. If the actor dies, every waiting caller is called back with an
error. Until the actor runs again, no work is taken on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import trio

from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext

Result = TypeVar("Result")
Done = Callable[["Result | None", "Exception | None"], None]
"""Called with a result, or with None and why there is none."""


class NotDone(Exception):
    """The work took longer than was allowed, or the actor that ran it died."""


class Offload:
    """Runs work on as many threads at once as `limiter` has tokens.

    At most `jobs`, with `nbytes` of inputs, are taken on; more are refused. A thread that hangs keeps its
    place until it ends, but its caller waits no longer than the time that was allowed for the work.

    Unless it `abandons` threads, work that a thread has begun is waited for, and its caller is told once that
    has ended. So the caller may then give back what the thread reads or writes. Such work must not hang.
    """

    def __init__(
        self, *, limiter: trio.CapacityLimiter, jobs: int, nbytes: int, abandons: bool = True
    ) -> None:
        self._abandons = abandons
        self._limiter = limiter
        self._most_jobs = jobs
        self._most_bytes = nbytes
        self._jobs = 0
        self._nbytes = 0
        self._nursery: trio.Nursery | None = None

    def submit(
        self, work: Callable[[], Result], done: Done[Result], *, nbytes: int = 0, within: float = math.inf
    ) -> bool:
        """Do `work` within `within` seconds, and call `done` on the loop.

        Returns False, and never calls `done`, if the work can't be taken on.

        An exception of `work` goes to `done`; an exception that `done` raises ends the actor.
        """
        if self._nursery is None or self._jobs >= self._most_jobs:
            return False
        if self._jobs and self._nbytes + nbytes > self._most_bytes:
            return False
        self._jobs += 1
        self._nbytes += nbytes
        self._nursery.start_soon(self._do, work, done, nbytes, trio.current_time() + within)
        return True

    async def _do(self, work: Callable[[], Result], done: Done[Result], nbytes: int, due: float) -> None:
        result: Result | None = None
        error: Exception | None = NotDone("it took too long, or was interrupted")
        try:
            with trio.move_on_at(due):
                result = await in_thread(work, limiter=self._limiter, abandon_on_cancel=self._abandons)
                error = None
        except Exception as failure:  # noqa: BLE001  # its owner is called back with it
            error = failure
        finally:
            self._jobs -= 1
            self._nbytes -= nbytes
            done(result, error)

    async def run(self, ctx: ChildContext) -> None:
        """Take work on until cancelled: the actor's start function."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                ctx.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
