"""Work on threads, in a way that a simulation can do without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Threads(Protocol):
    """Does what `trio.to_thread.run_sync` does."""

    async def run_sync(
        self,
        function: Callable[..., T],
        *args: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Return what `function` returns, or raise what it raises."""


_of_run: trio.lowlevel.RunVar[Threads | None] = trio.lowlevel.RunVar("threads", None)


def give(threads: Threads | None) -> None:
    """Have all work of this run of trio be done by `threads`; by trio's own threads if it is None."""
    _of_run.set(threads)


async def in_thread(
    function: Callable[..., T],
    *args: object,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Do as `trio.to_thread.run_sync`, on the threads that this run was given."""
    threads = _of_run.get()
    if threads is None:
        return await trio.to_thread.run_sync(
            function, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter
        )
    return await threads.run_sync(function, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
