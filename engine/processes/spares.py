"""Spare workers: started processes with their slow imports done, which wait for a model to load.

`SparePlan` decides which environments have one; the actor here starts them, watches them and ends them. A
worker taken from the spares is from then on like any other. It has loaded nothing and limited nothing,
because both begin with LOAD.

No spare outlives its use. The actor ends all of them when it ends itself, by a stop or by a crash. A server
that is killed takes them along as it does its workers (`engine.worker.process`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

import trio

from actors.seams import faults
from actors.seams.bell import Bell
from actors.serving.instances.launching import Launched
from actors.supervision.context import ChildContext
from actors.values.events import Event, Log
from actors.values.families import Families, Family, SplitFamily, by
from engine.processes.group_plan import GroupLimits
from engine.processes.spare_plan import End, SparePlan, Start, Wait

# From SIGTERM to SIGKILL. A spare runs no model's code.
END_SECONDS: Final = 2.0
_LAST_WORDS: Final = 4096  # bytes of what a spare has printed that are logged when it dies


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a worker process is started with: two that are equal can stand in for each other.

    Thread counts are among the variables because numpy's BLAS makes its threads when it is imported. The
    cores are bound beforehand because a thread's memory comes from the NUMA node where it first runs.
    """

    interpreter: str  # path of the Python
    variables: tuple[tuple[str, str], ...]  # the process's environment, by name
    cores: tuple[int, ...] = ()  # empty: any
    backend: str = ""  # `module:Class`, imported in a spare before it has a model
    digest: str = ""  # of what the interpreter's environment was made from
    own_user: bool = False  # it is started with a user id that no other process has
    group: GroupLimits | None = None  # it is in a control group of its own
    held: tuple[int, ...] = ()  # descriptors that it inherits: its model's repository, in another container


class Spare(Launched, Protocol):
    """A worker process that waits for its LOAD."""

    @property
    def fit(self) -> bool:
        """Whether it is alive, and not stopped by a signal."""


@dataclass(slots=True)
class _Waiting:
    """A spare; the task that watches it ends it, unless it is taken."""

    worker: Spare
    watch: trio.CancelScope
    taken: bool = False


@dataclass(frozen=True, slots=True)
class SpareCounts:
    """How many spares wait now, and how many workers were started with and without one since the start."""

    waiting: int
    used: int
    fresh: int


FAMILIES: Final[Families[SpareCounts]] = (
    Family(
        "tritium_spare_workers",
        "gauge",
        "Worker processes that wait for a model",
        lambda counts: counts.waiting,
    ),
    SplitFamily(
        "tritium_workers_started_total",
        "counter",
        "Worker processes that were given a model, by whether they had been started beforehand",
        lambda counts: by("spare", [("true", counts.used), ("false", counts.fresh)]),
    ),
)


class Spares:
    """The spare workers of a server.

    `take` and `launched` are for the launcher; `run` is a child of the tree.
    """

    def __init__(
        self, start: Callable[[Environment], Awaitable[Spare]], *, limit: int, log: Log | None = None
    ) -> None:
        """`start` starts a process, or raises OSError; at most `limit` wait at once (0: there are none)."""
        self._start = start
        self._log = log
        self._plan: SparePlan[Environment] = SparePlan(limit)
        self._waiting: dict[Environment, _Waiting] = {}
        self._changed = Bell()
        self._used = self._fresh = 0

    def statistics(self) -> SpareCounts:
        """Return what is the case now."""
        return SpareCounts(len(self._waiting), self._used, self._fresh)

    def take(self, environment: Environment) -> Spare | None:
        """Return a worker that was started with exactly this, if one waits.

        From now on it is the caller's.
        """
        found = self._waiting.get(environment)
        if found is None:
            return None
        if not found.worker.fit:
            # The task that watches it does the rest.
            found.worker.kill()
            return None
        del self._waiting[environment]
        found.taken = True
        found.watch.cancel()
        return found.worker

    def launched(self, environment: Environment, *, spare: bool) -> None:
        """A worker was started with `environment`, from a `spare` or afresh; tell of its end by `ended`."""
        self._used += spare
        self._fresh += not spare
        self._plan.launched(environment, trio.current_time(), spare=spare)
        self._changed.ring()

    def ended(self, environment: Environment) -> None:
        """A worker that `launched` was told of has been reaped."""
        self._plan.ended(environment, trio.current_time())
        self._changed.ring()

    # -- the actor -------------------------------------------------------------------------------------------

    async def run(self, ctx: ChildContext) -> None:
        """Keep spares as the plan has it, until cancelled."""
        ctx.started()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._step(nursery)
        finally:
            self._plan.reset()

    async def _step(self, nursery: trio.Nursery) -> None:
        if faults.points is not None:
            faults.points.passing("spares.step")
        match self._plan.decide(trio.current_time()):
            case Start(key=environment):
                await self._add(environment, nursery)
            case End(key=environment):
                self._waiting.pop(environment).watch.cancel()
            case Wait(until=until):
                with trio.move_on_at(until):
                    await self._changed.next_ring()
            case decision:
                assert_never(decision)

    async def _add(self, environment: Environment, nursery: trio.Nursery) -> None:
        try:
            worker = await self._start(environment)
        except OSError as error:
            self._lost(environment, f"it could not be started: {error}")
            return
        found = self._waiting[environment] = _Waiting(worker, trio.CancelScope())
        nursery.start_soon(self._watch, environment, found)
        if self._log is not None:
            self._log(Event.SPARE_STARTED, level="debug", pid=worker.pid)

    async def _watch(self, environment: Environment, found: _Waiting) -> None:
        """Notice the death of a spare. End it when asked to or when the actor ends, unless it was taken."""
        worker, died_of = found.worker, None
        try:
            with found.watch:
                # The caller that took it may already be waiting for it.
                await trio.lowlevel.checkpoint_if_cancelled()
                died_of = await worker.wait()
        finally:
            if not found.taken:
                if self._waiting.get(environment) is found:
                    del self._waiting[environment]
                if died_of is None:
                    await _end(worker)
        if died_of is not None:
            words = _last_words(worker)
            _close(worker)
            self._lost(environment, f"it died of {died_of}", pid=worker.pid, output=words)

    def _lost(self, environment: Environment, why: str, **keys: object) -> None:
        self._plan.lost(environment, trio.current_time())
        self._changed.ring()
        if self._log is not None:
            self._log(
                Event.SPARE_LOST, level="warning", reason=why, interpreter=environment.interpreter, **keys
            )


async def _end(worker: Spare) -> None:
    """End a process that is no longer used, and reap it, even if the caller is cancelled meanwhile."""
    with trio.CancelScope(shield=True):
        worker.terminate()
        with trio.move_on_after(END_SECONDS) as patience:
            await worker.wait()
        if patience.cancelled_caught:
            worker.kill()
            await worker.wait()
    _close(worker)


def _close(worker: Spare) -> None:
    worker.socket.close()
    if worker.output is not None:
        os.close(worker.output)


def _last_words(worker: Spare) -> str:
    """Return what a dead spare has printed, the end of it."""
    if worker.output is None:
        return ""
    os.set_blocking(worker.output, False)
    with contextlib.suppress(OSError):
        return os.read(worker.output, 65536)[-_LAST_WORDS:].decode(errors="replace")
    return ""
