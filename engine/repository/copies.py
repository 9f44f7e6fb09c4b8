"""Directories that were made for a model, such as a download: they live as long as a version of it may read them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from actors.fault_points import fault_point
from actors.supervision.context import ChildContext


class Janitor:
    """The actor that removes what nobody uses any more, off the loop."""

    def __init__(self) -> None:
        self._jobs, self._due = trio.open_memory_channel[Callable[[], None]](10_000)

    def remove_later(self, job: Callable[[], None]) -> None:
        """Have `job`, which may take its time, run on a thread."""
        self._jobs.send_nowait(job)

    async def run(self, ctx: ChildContext) -> None:
        """Remove one after the other; what a crash leaves behind is in a temporary directory or in a bounded cache."""
        ctx.started()
        async for job in self._due:
            await self._remove(job)

    @fault_point("janitor.remove")
    async def _remove(self, job: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(job)

    def finish(self) -> None:
        """The server is ending: remove what is left, here and now."""
        while True:
            try:
                job = self._due.receive_nowait()
            except trio.WouldBlock:
                return
            job()


class Copy:
    """One such directory. Implements `actors.found.LocalCopy`; made with one user, on the loop's thread."""

    def __init__(self, remove: Callable[[], None], janitor: Janitor) -> None:
        self._remove = remove
        self._janitor = janitor
        self._users = 1

    def hold(self) -> None:
        """One more user."""
        self._users += 1

    def let_go(self) -> None:
        """One user less."""
        self._users -= 1
        if self._users == 0:
            self._janitor.remove_later(self._remove)
