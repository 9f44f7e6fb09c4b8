"""Directories that were made for a model, such as a download.

Each lives as long as a version of the model may read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from actors.seams import faults
from actors.seams.bell import Bell
from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.values.events import Event, Log

TRIES: Final = 3  # of one removal: the first crash may have been chance
AT_ONCE: Final = 8
"""Removals that run beside each other: one may wait 10 s for a repository agent that hangs."""

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
    running: bool = False


class Janitor:
    """The actor that removes what is no longer used, off the loop. What waits outlives its crash.

    What is to be done with one directory is done in order.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._jobs: deque[_Job] = deque()
        self._in_use: set[Copy] = set()
        self._arrived = Bell()  # also rings where a removal has ended
        self._threads = trio.CapacityLimiter(AT_ONCE)

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

    @property
    def left(self) -> int:
        """How many things are still to be done."""
        return len(self._jobs)

    def spec(self, name: str = "janitor") -> ChildSpec:
        """Return the actor as a child: tried again for as long as it takes, without its siblings noticing."""
        return ChildSpec(name, self.run, intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    async def run(self, ctx: ChildContext) -> None:
        """Remove what comes, `AT_ONCE` at a time.

        A removal that crashes the actor comes after the others, `TRIES` times in all, and is then left. The
        threads of the others end first.
        """
        ctx.started()
        async with trio.open_nursery() as nursery:
            while True:
                for job in self._next():
                    job.running = True
                    nursery.start_soon(self._remove, job)
                await self._arrived.next_ring()

    def _next(self) -> Sequence[_Job]:
        """Return the removals that may begin now. Those that can't be done are left."""
        for job in [each for each in self._jobs if each.tries == TRIES]:
            self._leave(job)
        busy = {job.removal.path for job in self._jobs if job.running}
        places = AT_ONCE - len(busy)
        found: list[_Job] = []
        for job in self._jobs:
            if len(found) < places and job.removal.path not in busy:
                busy.add(job.removal.path)
                found.append(job)
        return found

    async def _remove(self, job: _Job) -> None:
        try:
            if faults.points is not None:
                faults.points.passing("janitor.remove")
            await in_thread(job.removal.run, limiter=self._threads)
        except Exception:
            job.tries += 1
            self._jobs.remove(job)
            self._jobs.append(job)
            raise
        else:
            self._jobs.remove(job)
        finally:
            job.running = False
            self._arrived.ring()

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
        left: dict[Path, list[Removal]] = {}
        for each in [*(job.removal for job in self._jobs), *(copy.removal for copy in self._in_use)]:
            left.setdefault(each.path, []).append(each)
        self._jobs.clear()
        self._in_use.clear()
        with ThreadPoolExecutor(LAST_THREADS, "tritium-janitor") as threads:
            list(threads.map(self._finish, left.values()))

    def _finish(self, removals: Sequence[Removal]) -> None:
        """Do in order what is left for one directory. On a thread."""
        for removal in removals:
            try:
                removal.run()
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
