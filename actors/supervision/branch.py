"""One run of a supervisor: its table, and the decisions of `restart` carried out in a nursery.

Theory of operation. Each child is a task in a nursery (see `lives`). When one ends and another life is due,
`Died` is posted. One task, the loop in `run`, reads that mail and decides. A restart that has to wait is a
timer in `_jobs` that posts `TryAgain`; a restart that fails is another `Died`. So nothing between two
restarts ever holds the loop, and a request to stop, which cancels `_working`, gets through at once.

In one_for_one the loop begins a restart and does not wait for it: a sibling that takes a minute to load must
not delay another's restart. The group strategies restart in order, each child ready before the next. Children
come and go only in one_for_one, so no other task changes a group.

Cancellation from outside is not a request: it sweeps the whole branch at once, in no order, and restarts
nothing.
"""

import math
from dataclasses import dataclass
from typing import assert_never

import trio

from actors.seams import faults
from actors.supervision.child import Child, Life, Purpose
from actors.supervision.context import ChildContext
from actors.supervision.errors import IntensityExceeded, NotRunning, StartError
from actors.supervision.events import Context
from actors.supervision.lifecycle import Step
from actors.supervision.lives import Lives
from actors.supervision.reports import Reports
from actors.supervision.restart import (
    Death,
    ExitReason,
    GiveUp,
    RestartAfter,
    RestartWindow,
    RetryHalfOpen,
    affected,
    judge,
)
from actors.supervision.spec import ChildSpec, Flags, Restart, Strategy
from actors.supervision.table import Table


@dataclass(frozen=True, slots=True)
class Died:
    """Mail: a life is over, and the restart type asks for another. Valid while `life` is the row's `due`."""

    child: Child
    life: Life
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Mail: the wait before a restart is over. Valid while `timer` is the row's `due`."""

    child: Child
    timer: trio.CancelScope


class Branch:
    """A supervisor's children during one of its runs."""

    def __init__(self, flags: Flags, ctx: ChildContext) -> None:
        self._flags = flags
        self._ctx = ctx
        self._name = ctx.path or ctx.name  # in reports; only the root has no path
        self._reports = Reports(self._name, ctx.tree.observer)
        self.table = Table(f"{ctx.path}/" if ctx.path else "")
        self._lives = Lives(self.table, ctx.tree, self._reports, self._on_death)
        self._window = RestartWindow(flags.intensity)
        self._one_for_one = flags.strategy is Strategy.ONE_FOR_ONE
        # Bounded not by a number but by the table: a row has at most one life or timer that can post.
        mail: tuple[trio.MemorySendChannel[Died | TryAgain], trio.MemoryReceiveChannel[Died | TryAgain]]
        mail = trio.open_memory_channel(math.inf)
        self._post, self._mail = mail
        self._working = trio.CancelScope()
        self._verdict: Exception | None = None
        self._jobs: trio.Nursery

    # A run, from the first child's start to the last one's end.

    async def run(self, specs: tuple[ChildSpec, ...], *, dynamic: bool = False) -> None:
        """Start `specs` in order, tell the parent, keep the children alive, stop them in reverse.

        If `dynamic`, they are stopped like children that `start_child` has added. If one of them then does
        not start, the others go on, and it is tried again as after a crash.

        Returns after a request to stop. Raises StartError if another initial child does not start,
        IntensityExceeded when a budget is used up. In each case the children are down.
        """
        self._ctx.children = self.table.snapshots
        self._ctx.kill_below = self.kill
        self._ctx.stopping.then(self.close)
        try:
            async with trio.open_nursery() as self._lives.nursery:
                with self._working:
                    async with trio.open_nursery() as self._jobs:
                        if await self._start_all(specs, dynamic=dynamic):
                            self._ctx.started()
                        async for mail in self._mail:
                            await self._read(mail)
                await self._stop_all()
        finally:
            self._lives.closing = True
            for child in list(self.table):
                self.table.remove(child)
            self._post.close()
            self._mail.close()
        if self._verdict is not None:
            raise self._verdict

    def close(self, verdict: Exception | None = None) -> None:
        """Stop everything, then end the run with `verdict`. The first call counts."""
        if not self._lives.closing:
            self._lives.closing = True
            self._verdict = verdict
            self._working.cancel()

    async def _start_all(self, specs: tuple[ChildSpec, ...], *, dynamic: bool) -> bool:
        purpose = Purpose.RESTART if dynamic else Purpose.INITIAL
        for spec in specs:
            try:
                await self._lives.launch(self.table.add(spec, dynamic=dynamic), purpose)
            except StartError as error:
                if dynamic:
                    continue  # its Died is in the mail
                self.close(error)
                return False
        return True

    async def _stop_all(self) -> None:
        """Stop right to left; the dynamic children first and together.

        Dynamic children do not depend on one another, and there may be thousands; `DynamicSupervisor` does
        the same. All are asked first. Waiting in order of their kill time then gives each its own budget
        without a task of its own.
        """
        together = [child for child in reversed(self.table) if child.dynamic]
        for child in together:
            self._lives.ask(child)
        for child in sorted(together, key=lambda child: child.spec.grace):
            await self._lives.stop(child)
        for child in list(reversed(self.table)):
            await self._lives.stop(child)

    # Mail: deaths and restarts.

    def _on_death(self, child: Child, life: Life, reason: ExitReason) -> None:
        self._post.send_nowait(Died(child, life, reason))

    async def _read(self, mail: Died | TryAgain) -> None:
        match mail:
            case Died(child=child, life=life, reason=reason):
                if child.due is life:
                    child.due = None
                    await self._decide(child, life, reason)
            case TryAgain(child=child, timer=timer):
                if child.due is timer:
                    child.due = None
                    await self._restart(child)
            case _:
                assert_never(mail)

    async def _decide(self, child: Child, life: Life, reason: ExitReason) -> None:
        if faults.points is not None:
            faults.points.passing("supervisor.decide")
        assert life.ended_at is not None
        death = Death(
            now=life.ended_at,
            uptime=life.uptime,
            progressed=life.progress,
            sample=self._ctx.tree.random.random(),
        )
        spec = child.spec
        backoff = spec.backoff or self._flags.backoff
        judged = judge(child.record, self._window, death, on_exhausted=spec.on_exhausted, backoff=backoff)
        child.record, self._window = judged.record, judged.shared
        match judged.action:
            case GiveUp():
                self._reports.exhausted(child, reason, Context.SHUTDOWN)
                self.close(IntensityExceeded(self._name, child.path, reason))
            case RetryHalfOpen(delay=delay, again=again):
                child.step(Step.EXHAUST)
                if not again:
                    self._reports.exhausted(child, reason, None)
                await self._restart_after(child, delay)
            case RestartAfter(delay=delay):
                await self._restart_after(child, delay)
            case _:
                assert_never(judged.action)

    async def _restart_after(self, child: Child, delay: float) -> None:
        if delay == 0:
            await self._restart(child)
            return
        # At once, because the children that depend on it must not run without it.
        await self._stop_group(child)
        child.due = timer = trio.CancelScope()
        self._jobs.start_soon(self._wait, child, timer, delay)

    async def _wait(self, child: Child, timer: trio.CancelScope, delay: float) -> None:
        with timer:
            await trio.sleep(delay)
            self._post.send_nowait(TryAgain(child, timer))

    async def _restart(self, child: Child) -> None:
        if faults.points is not None:
            faults.points.passing("supervisor.restart")
        if self._one_for_one:
            self._lives.begin(child, Purpose.RESTART)
            return
        await self._stop_group(child)
        for row in self._group(child):
            life = self._lives.begin(row, Purpose.RESTART)
            await life.wait_settled()
            if life.failure is not None:
                return  # its Died is in the mail, and restarts the rest of the group from there

    async def _stop_group(self, child: Child) -> None:
        for row in reversed(self._group(child)):
            if row is not child:
                # Temporary children leave the table with that.
                await self._lives.stop(row, for_restart=True)

    def _group(self, child: Child) -> list[Child]:
        names = affected(self._flags.strategy, self.table.names, child.spec.name)
        return [self.table[name] for name in names]

    # Children that come and go; `Supervisor` documents the errors.

    async def start_child(self, spec: ChildSpec) -> None:
        """Add a child and start it."""
        await self._lives.launch(self._add(spec), Purpose.ADDED)

    def start_child_nowait(self, spec: ChildSpec) -> None:
        """Add a temporary or transient child that is ready as it is."""
        if spec.restart is Restart.PERMANENT:
            raise ValueError(
                f"child {spec.name!r} is permanent; start_child_nowait is for temporary and transient "
                "children, permanent ones go through start_child"
            )
        self._lives.begin_ready(self._add(spec))

    def _add(self, spec: ChildSpec) -> Child:
        self._check_open()
        return self.table.add(spec, dynamic=True)

    async def terminate_child(self, name: str) -> None:
        """Stop a child and forget it."""
        self._check_open()
        child = self.table.find(name)
        child.kept = False
        await self._lives.stop(child)
        self.table.remove(child)  # in case it had ended before

    def kill(self, path: str) -> None:
        """Cancel the child at this path, however far below, and let its restart type decide what follows."""
        if self._lives.closing:
            raise NotRunning(f"supervisor {self._name!r} is stopping")
        self._lives.kill(path)

    def _check_open(self) -> None:
        if self._lives.closing:
            raise NotRunning(
                f"supervisor {self._name!r} is stopping and takes no more operations on children"
            )
        if not self._one_for_one:
            raise ValueError(
                f"supervisor {self._name!r} is {self._flags.strategy.value}: its children come and go "
                "together; put those that come and go alone under a one_for_one supervisor"
            )
