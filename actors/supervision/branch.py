"""One run of a supervisor: its table, and the decisions of `restart` carried out in a nursery.

Theory of operation. Each child is a task in `_nursery`, wrapped so that it cannot raise. When one ends,
`_exited` runs in that task, without a checkpoint: it moves the row, tells the Ref and the observer, and,
if another life is due, posts `Died`. One task, the loop in `run`, reads that mail and decides. A restart
that has to wait is a timer in `_jobs` that posts `TryAgain`; a restart that fails is another `Died`. So
nothing between two restarts ever holds the loop, and a request to stop, which cancels `_working`, gets
through at once.

In one_for_one the loop begins a restart and does not wait for it: a sibling that takes a minute to load must
not delay another's restart. The group strategies restart in order, each child ready before the next, and
`_turn` keeps one group operation or dynamic operation at a time, as OTP's supervisor process does by being
one process.

Cancellation from outside is not a request: it sweeps the whole branch at once, in no order, and restarts
nothing.
"""

import math
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, assert_never

import trio

from actors.seams import faults
from actors.supervision.child import Child, Life, Purpose
from actors.supervision.context import ChildContext
from actors.supervision.errors import (
    ExitShutdown,
    IntensityExceeded,
    NotFound,
    NotRunning,
    StartError,
)
from actors.supervision.events import Context
from actors.supervision.inbox import Ref
from actors.supervision.lifecycle import ALIVE, AWAITING, ChildState, Step
from actors.supervision.reports import Reports
from actors.supervision.restart import (
    Death,
    ExitReason,
    GiveUp,
    Killed,
    RestartAfter,
    RestartWindow,
    RetryHalfOpen,
    StartFailed,
    affected,
    judge,
    shuts_down,
    wants_restart,
)
from actors.supervision.spec import ChildSpec, Flags, Restart, Strategy, check_significant
from actors.supervision.table import Table


@dataclass(frozen=True, slots=True)
class Started:
    """A child that is ready: its address, and the value it passed to `started()`."""

    ref: Ref[Any]
    value: object


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
    # Only what a terminated child left waiting.
    left_over: bool = False


class Branch:
    """A supervisor's children during one of its runs."""

    def __init__(self, flags: Flags, ctx: ChildContext) -> None:
        self._flags = flags
        self._ctx = ctx
        self._tree = ctx.tree
        self._name = ctx.path or ctx.name  # in reports; only the root has no path
        self._reports = Reports(self._name, ctx.tree.observer)
        self.table = Table(f"{ctx.path}/" if ctx.path else "", ctx.tree.registry)
        self._window = RestartWindow(flags.intensity)
        self._one_for_one = flags.strategy is Strategy.ONE_FOR_ONE
        self._turn: AbstractAsyncContextManager[object] = nullcontext() if self._one_for_one else trio.Lock()
        # Bounded not by a number but by the table: a row has at most one life or timer that can post.
        mail: tuple[trio.MemorySendChannel[Died | TryAgain], trio.MemoryReceiveChannel[Died | TryAgain]]
        mail = trio.open_memory_channel(math.inf)
        self._post, self._mail = mail
        self._working = trio.CancelScope()
        self._closing = False
        self._verdict: Exception | None = None
        self._nursery: trio.Nursery
        self._jobs: trio.Nursery

    # A run, from the first child's start to the last one's end.

    async def run(self, specs: tuple[ChildSpec, ...], value: object, *, dynamic: bool = False) -> None:
        """Start `specs` in order, tell the parent (`value`), keep the children alive, stop them in reverse.

        If `dynamic`, they are stopped like children that `start_child` has added. If one of them then does
        not start, the others go on, and it is tried again as after a crash.

        Returns after a request to stop. Raises StartError if another initial child does not start,
        IntensityExceeded when a budget is used up, ExitShutdown after an automatic shutdown. In each case the
        children are down.
        """
        self._ctx.children = self.table.snapshots
        self._ctx.kill_below = self.kill_at
        self._ctx.stopping.then(self.close)
        try:
            async with trio.open_nursery() as self._nursery:
                with self._working:
                    async with trio.open_nursery() as self._jobs:
                        if await self._start_all(specs, dynamic=dynamic):
                            self._ctx.started(value)
                        async for mail in self._mail:
                            await self._read(mail)
                await self._stop_all()
        finally:
            self._closing = True
            self._clear()
        if self._verdict is not None:
            raise self._verdict

    def close(self, verdict: Exception | None = None) -> None:
        """Stop everything, then end the run with `verdict`. The first call counts."""
        if not self._closing:
            self._closing = True
            self._verdict = verdict
            self._working.cancel()

    async def _start_all(self, specs: tuple[ChildSpec, ...], *, dynamic: bool) -> bool:
        purpose = Purpose.RESTART if dynamic else Purpose.INITIAL
        for spec in specs:
            try:
                await self._launch(self.table.add(spec, dynamic=dynamic), purpose)
            except StartError as error:
                if dynamic:
                    continue  # its Died is in the mail
                self.close(error)
                return False
        return True

    async def _stop_all(self) -> None:
        """Stop right to left; the dynamic children of one_for_one first and together.

        Dynamic children do not depend on one another, and there may be thousands; `DynamicSupervisor` does
        the same. All are asked first. Waiting in order of their kill time then gives each its own budget
        without a task of its own.
        """
        if self._one_for_one:
            together = [child for child in reversed(self.table) if child.dynamic]
            for child in together:
                self._ask(child)
            for child in sorted(together, key=lambda child: child.spec.grace):
                await self._stop(child)
        for child in list(reversed(self.table)):
            await self._stop(child)

    def _clear(self) -> None:
        for child in list(self.table):
            self.table.remove(child)
        self._post.close()
        self._mail.close()

    # Mail: deaths and restarts.

    async def _read(self, mail: Died | TryAgain) -> None:
        async with self._turn:
            match mail:
                case Died(child=child, life=life, reason=reason):
                    if child.due is life:
                        child.due = None
                        await self._decide(child, life, reason)
                case TryAgain(child=child, timer=timer, left_over=left_over):
                    if child.due is timer:
                        child.due = None
                        await self._restart(child, left_over=left_over)
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
            sample=self._tree.random.random(),
        )
        spec = child.spec
        backoff = spec.backoff or self._flags.backoff
        verdict = judge(child.health, self._window, death, on_exhausted=spec.on_exhausted, backoff=backoff)
        child.health, self._window = verdict.health, verdict.shared
        match verdict.action:
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
                assert_never(verdict.action)

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

    async def _restart(self, child: Child, *, left_over: bool = False) -> None:
        if faults.points is not None:
            faults.points.passing("supervisor.restart")
        if self._one_for_one:
            self._begin(child, Purpose.RESTART)
            return
        await self._stop_group(child)
        for row in self._group(child):
            if row not in self.table:
                # It was down before, and was deleted while its elder siblings were starting.
                continue
            if left_over and row.state not in AWAITING:
                continue
            life = self._begin(row, Purpose.RESTART)
            await life.wait_settled()
            if life.failure is not None:
                return  # its Died is in the mail, and restarts the rest of the group from there

    async def _stop_group(self, child: Child) -> None:
        for row in reversed(self._group(child)):
            if row is not child:
                # Temporary children leave the table with that.
                await self._stop(row, for_restart=True)

    def _group(self, child: Child) -> list[Child]:
        names = affected(self._flags.strategy, self.table.names, child.spec.name)
        return [self.table[name] for name in names]

    # One life.

    def _begin(self, child: Child, purpose: Purpose) -> Life:
        life = self._new_life(child, purpose)
        child.step(Step.BEGIN)
        self._nursery.start_soon(self._live, child, life, name=child.path)
        return life

    def _new_life(self, child: Child, purpose: Purpose) -> Life:
        inbox = child.inbox_for_next_life()
        child.life = life = Life(
            child, tree=self._tree, inbox=inbox, purpose=purpose, on_ready=self._on_ready
        )
        child.ref = self._tree.registry.register(child.path, inbox)
        return life

    async def _launch(self, child: Child, purpose: Purpose) -> Life:
        """Start a child and wait until it is ready. Raises StartError if it ends before that."""
        life = self._begin(child, purpose)
        try:
            await life.wait_settled()
        except trio.Cancelled:
            # The caller went away, and the child it asked for goes with it.
            if purpose is not Purpose.INITIAL:
                self._ask(child)
                life.scope.deadline = life.kill_at
            raise
        if life.failure is not None:
            cause = life.failure.exception if isinstance(life.failure, StartFailed) else None
            raise StartError(child.path, life.failure) from cause
        return life

    async def _live(self, child: Child, life: Life) -> None:
        reason: ExitReason = Killed()
        swept = True  # by a cancellation from outside, unless the wrapper returns
        try:
            reason = await life.live()
            swept = False
        finally:
            self._exited(child, life, reason, swept=swept)

    def _on_ready(self, child: Child, life: Life) -> None:
        if child.state is not ChildState.STARTING:
            # It was asked to stop while it was starting.
            return
        child.step(Step.READY)
        if life.purpose is Purpose.RESTART:
            child.restarts += 1
        self._reports.ready(child, life)

    def _exited(self, child: Child, life: Life, reason: ExitReason, *, swept: bool) -> None:
        was = child.state
        if life.ready_at is None and not life.ignored:
            life.failure = reason = life.start_failure(reason) if was is ChildState.STARTING else reason
        going_on = not (swept or self._closing)
        by_itself = going_on and was is not ChildState.STOPPING
        again = by_itself and self._wants_another_life(child, life, reason)
        with_group = going_on and life.for_restart and child.spec.restart is not Restart.TEMPORARY
        child.step(Step.DIE if again or with_group else Step.END)
        child.last_exit = reason
        if child.ref is not None:
            child.ref.died(reason, keep=child.spec.keep_inbox and (again or with_group))
        life.end()
        self._reports.exited(child, life, reason, asked=was is ChildState.STOPPING, swept=swept)
        if again:
            child.due = life
            self._post.send_nowait(Died(child, life, reason))
            return
        forgotten = life.purpose is Purpose.DYNAMIC and life.failure is not None
        if forgotten or not (child.kept or with_group):
            self.table.remove(child)
        if by_itself and life.ready_at is not None and child.spec.significant:
            self._consider_shutdown(child)

    def _wants_another_life(self, child: Child, life: Life, reason: ExitReason) -> bool:
        if life.ready_at is None:
            return life.purpose is Purpose.RESTART and not life.ignored
        return wants_restart(child.spec.restart, reason)

    def _consider_shutdown(self, ended: Child) -> None:
        others = any(
            child.spec.significant and child.state is not ChildState.STOPPED
            for child in self.table
            if child is not ended
        )
        if shuts_down(self._flags.auto_shutdown, significant=True, others_active=others):
            self.close(ExitShutdown(f"significant child {ended.path!r} ended"))

    def _ask(self, child: Child, *, for_restart: bool = False) -> None:
        if child.state in AWAITING:
            child.withdraw()
            if for_restart:
                # It is down, and now depends on the restart of its group.
                return
            child.step(Step.STOP)
            if child.ref is not None:
                child.ref.bury()
            if not child.kept:
                self.table.remove(child)
        elif child.state in ALIVE and child.state is not ChildState.STOPPING:
            assert child.life is not None
            child.step(Step.STOP)
            child.life.for_restart = for_restart
            child.life.ask()

    async def _stop(self, child: Child, *, for_restart: bool = False) -> None:
        """Ask the child to stop, wait for as long as its spec allows, then cancel it and wait.

        With `for_restart` it is left awaiting the restart of its group, its inbox kept if its spec says so.
        """
        self._ask(child, for_restart=for_restart)
        life = child.life
        if life is None or child.state is not ChildState.STOPPING:
            return
        try:
            with trio.move_on_at(life.kill_at):
                await life.wait_ended()
            if life.ended_at is None and not life.killed:
                self._reports.kill_forced(child)
                life.kill()
            await life.wait_ended()
        except trio.Cancelled:
            # No task watches any more, but the budget stands.
            life.scope.deadline = life.kill_at
            raise

    # Dynamic children. OTP's error values are exceptions here; `Supervisor` documents them.

    async def start_child(self, spec: ChildSpec) -> Started:
        """Add a child and start it."""
        check_significant(spec, self._flags.auto_shutdown)
        async with self._turn:
            self._check_open()
            self.table.check_free(spec.name)
            return await self._started(self.table.add(spec, dynamic=True), Purpose.DYNAMIC)

    def start_child_nowait(self, spec: ChildSpec) -> None:
        """Add a temporary or transient child that is ready as it is."""
        if spec.restart is Restart.PERMANENT:
            raise ValueError(
                f"child {spec.name!r} is permanent; start_child_nowait is for temporary and transient children, "
                "permanent ones go through start_child"
            )
        if spec.significant:
            check_significant(spec, self._flags.auto_shutdown)
        self._check_open()
        self.table.check_free(spec.name)
        child = self.table.add(spec, dynamic=True)
        child.kept = False
        if spec.inbox:
            life = self._new_life(child, Purpose.DYNAMIC)
        else:  # there is nothing to call, so no name to register
            child.life = life = Life(
                child, tree=self._tree, inbox=None, purpose=Purpose.DYNAMIC, on_ready=None
            )
        life.ready_at = child.since
        # The one short cut past the table: begin and ready in one.
        child.state = ChildState.RUNNING
        self._reports.ready(child, life)
        self._nursery.start_soon(self._live, child, life, name=child.path)

    async def terminate_child(self, name: str) -> None:
        """Stop a child and keep it down; a temporary one is forgotten."""
        async with self._turn:
            self._check_open()
            child = self.table.find(name)
            was_due = child.due is not None
            await self._stop(child)
            if was_due and not self._one_for_one:
                self._hand_over()

    def _hand_over(self) -> None:
        """Let the next child in order restart a group, after the child that was to restart it was terminated.

        OTP leaves such a group down for good. Nothing is to be done if another restart is due that will reach
        all children that wait: any restart in one_for_all, that of the first in order in rest_for_one.
        """
        waiting = [child for child in self.table if child.state in AWAITING]
        reaching = waiting if self._flags.strategy is Strategy.ONE_FOR_ALL else waiting[:1]
        if waiting and all(child.due is None for child in reaching):
            waiting[0].due = timer = trio.CancelScope()
            self._post.send_nowait(TryAgain(waiting[0], timer, left_over=True))

    async def restart_child(self, name: str) -> Started:
        """Start a child that is down."""
        async with self._turn:
            self._check_open()
            return await self._started(self.table.find_down(name), Purpose.MANUAL)

    def delete_child(self, name: str) -> None:
        """Forget a child that is down."""
        self._check_open()
        self.table.remove(self.table.find_down(name))

    def kill_child(self, name: str) -> None:
        """Cancel a child hard, and let its restart type decide what follows."""
        self._check_open()
        self._kill(self.table.find(name))

    def kill_at(self, path: str) -> None:
        """Do the same to the child at this path, however far below."""
        self._check_open()
        for child in self.table:
            if path == child.path:
                self._kill(child)
                return
            below = child.life.kill_below if child.life is not None and child.state in ALIVE else None
            if below is not None and path.startswith(f"{child.path}/"):
                below(path)
                return
        raise NotFound(path, f"is not below {self._name!r}; tree() shows what is")

    def _kill(self, child: Child) -> None:
        if child.state in ALIVE:
            assert child.life is not None
            child.life.kill()

    async def _started(self, child: Child, purpose: Purpose) -> Started:
        life = await self._launch(child, purpose)
        assert child.ref is not None
        return Started(child.ref, life.value)

    def _check_open(self) -> None:
        if self._closing:
            raise NotRunning(
                f"supervisor {self._name!r} is stopping and takes no more operations on children"
            )
