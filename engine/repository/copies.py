"""Directories that were made for a model, such as a download.

Each lives as long as a version of the model may read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from actors.seams import faults
from actors.seams.bell import Bell
from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.values.events import Event, Log

TRIES: Final = 3  # of one removal: the first crash may have been chance
LAST_THREADS: Final = 32  # that remove at the end of the server
INTENSITY: Final = Intensity(5, 60.0)


@dataclass(frozen=True, slots=True)
class Removal:
    """How a directory, `path`, is removed. `run` may take its time, and is called again after it raised."""

    path: Path
    run: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Job:
    removal: Removal
    tries: int = 0


class Janitor:
    """The actor that removes what is no longer used, off the loop. What waits outlives its crash."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._jobs: deque[_Job] = deque()
        self._in_use: set[Copy] = set()
        self._arrived = Bell()

    def took_up(self, copy: Copy) -> None:
        """A copy has its first user."""
        self._in_use.add(copy)

    def lay_down(self, copy: Copy) -> None:
        """A copy has no user any more: have it removed."""
        self._in_use.discard(copy)
        self.remove_later(copy.removal)

    def remove_later(self, removal: Removal) -> None:
        """Have something removed, on a thread. Never waits, never raises."""
        self._jobs.append(_Job(removal))
        self._arrived.ring()

    def spec(self, name: str = "janitor") -> ChildSpec:
        """Return the actor as a child: tried again for as long as it takes, without its siblings noticing."""
        return ChildSpec(name, self.run, intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    async def run(self, ctx: ChildContext) -> None:
        """Remove one after the other.

        A removal that crashes the actor comes after the others, `TRIES` times in all, and is then left.
        """
        ctx.started()
        while True:
            while self._jobs:
                job = self._jobs[0]
                if job.tries == TRIES:
                    self._leave(job)
                    continue
                job.tries += 1
                # Move it to the end until it is done: after a crash, the next run begins with the others.
                self._jobs.rotate(-1)
                await self._remove(job.removal)
                self._jobs.remove(job)
            await self._arrived.next_ring()

    async def _remove(self, removal: Removal) -> None:
        if faults.points is not None:
            faults.points.passing("janitor.remove")
        await in_thread(removal.run)

    def _leave(self, job: _Job) -> None:
        self._jobs.remove(job)
        self._log(
            Event.COPY_ABANDONED,
            level="error",
            path=str(job.removal.path),
            tries=job.tries,
            reason="each attempt to remove it came to no end; nobody uses it, so remove it yourself",
        )

    def finish(self) -> None:
        """Remove what is left, now, and what was in use to the end.

        The server has ended, and its workers with it. Removals do not wait for each other: one may wait for a
        repository agent that hangs.
        """
        left = [*(job.removal for job in self._jobs), *(copy.removal for copy in self._in_use)]
        self._jobs.clear()
        self._in_use.clear()
        with ThreadPoolExecutor(LAST_THREADS, "tritium-janitor") as threads:
            for removal, ended in [(each, threads.submit(each.run)) for each in left]:
                try:
                    ended.result()
                except Exception as error:  # noqa: BLE001
                    # No supervisor is left, and the other directories must still be removed.
                    self._log(Event.COPY_ABANDONED, level="error", path=str(removal.path), reason=repr(error))


class Copy:
    """One such directory, with one user at first. On the loop's thread only (`actors.catalog.found.LocalCopy`).

    `told` is called off the loop, like a removal, when it is known whether the model was loaded from it.
    """

    def __init__(
        self, removal: Removal, janitor: Janitor, told: Callable[[bool], None] | None = None
    ) -> None:
        self.removal = removal
        self._told = told
        self._janitor = janitor
        self._users = 1
        janitor.took_up(self)

    def hold(self) -> None:
        """One more user."""
        self._users += 1

    def settled(self, *, applied: bool) -> None:
        """It is known whether the model was loaded."""
        if self._told is not None:
            self._janitor.remove_later(Removal(self.removal.path, partial(self._told, applied)))

    def let_go(self) -> None:
        """One user less."""
        self._users -= 1
        if self._users == 0:
            self._janitor.lay_down(self)
