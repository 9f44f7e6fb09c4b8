"""The tasks of a supervisor's children: how a life begins, is asked to stop, and ends.

Each life is a task, wrapped so that it cannot raise. When one ends, `_exited` runs in that task, without a
checkpoint: it moves the child's row and tells the observer, and if another life is due, it tells the branch.
What follows is the branch's to decide.
"""

from collections.abc import Callable

import trio

from actors.supervision.child import Child, Life, Purpose
from actors.supervision.context import Tree
from actors.supervision.errors import NoSuchChild, StartError
from actors.supervision.lifecycle import ALIVE, AWAITING, ChildState, Step
from actors.supervision.reports import Reports
from actors.supervision.restart import ExitReason, FailedToStart, Killed, wants_restart
from actors.supervision.spec import Restart
from actors.supervision.table import Table

OnDeath = Callable[[Child, Life, ExitReason], None]
"""Told that a life is over and that the restart type asks for another. Must neither block nor raise."""


class Lives:
    """The lives of the children in one supervisor's table, during one of its runs."""

    nursery: trio.Nursery  # set by the branch when its run begins

    def __init__(self, table: Table, tree: Tree, reports: Reports, on_death: OnDeath) -> None:
        self._table = table
        self._tree = tree
        self._reports = reports
        self._on_death = on_death
        self.closing = False  # no child gets another life

    # Beginning.

    def begin(self, child: Child, purpose: Purpose) -> Life:
        """Begin a life of a child that is down. It says itself when it is ready."""
        child.life = life = Life(child, tree=self._tree, purpose=purpose, on_ready=self._on_ready)
        child.step(Step.BEGIN)
        self.nursery.start_soon(self._live, child, life, name=child.path)
        return life

    def begin_ready(self, child: Child) -> None:
        """Begin the first life of a child that is ready as it is."""
        child.life = life = Life(child, tree=self._tree, purpose=Purpose.ADDED, on_ready=None)
        life.ready_at = child.since
        # The one short cut past the table: begin and ready in one.
        child.state = ChildState.RUNNING
        self._reports.ready(child, life)
        self.nursery.start_soon(self._live, child, life, name=child.path)

    async def launch(self, child: Child, purpose: Purpose) -> None:
        """Begin a life and wait until the child is ready. Raises StartError if it ends before that."""
        life = self.begin(child, purpose)
        try:
            await life.wait_settled()
        except trio.Cancelled:
            # The caller went away, and the child it asked for goes with it.
            if purpose is not Purpose.INITIAL:
                self.ask(child)
                life.scope.deadline = life.kill_at
            raise
        if life.failure is not None:
            cause = life.failure.exception if isinstance(life.failure, FailedToStart) else None
            raise StartError(child.path, life.failure) from cause

    def _on_ready(self, child: Child, life: Life) -> None:
        if child.state is not ChildState.STARTING:
            # It was asked to stop while it was starting.
            return
        child.step(Step.READY)
        if life.purpose is Purpose.RESTART:
            child.restarts += 1
        self._reports.ready(child, life)

    # Stopping.

    def ask(self, child: Child, *, for_restart: bool = False) -> None:
        """Ask a child to stop, or have one that waits for its restart stay down."""
        if child.state in AWAITING:
            child.withdraw()
            if for_restart:
                # It is down, and now depends on the restart of its group.
                return
            child.step(Step.STOP)
            if not child.kept:
                self._table.remove(child)
        elif child.state in ALIVE and child.state is not ChildState.STOPPING:
            assert child.life is not None
            child.step(Step.STOP)
            child.life.for_restart = for_restart
            child.life.ask()

    async def stop(self, child: Child, *, for_restart: bool = False) -> None:
        """Ask the child to stop, wait for as long as its spec allows, then cancel it and wait.

        With `for_restart` it is left awaiting the restart of its group.
        """
        self.ask(child, for_restart=for_restart)
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

    def kill(self, path: str) -> None:
        """Cancel the child at this path, however far below, and let its restart type decide what follows.

        Raises NoSuchChild; does nothing to a child that is down.
        """
        for child in self._table:
            life = child.life if child.state in ALIVE else None
            if path == child.path:
                if life is not None:
                    life.kill()
                return
            if life is not None and life.kill_below is not None and path.startswith(f"{child.path}/"):
                life.kill_below(path)
                return
        raise NoSuchChild(f"no child is at {path!r}; tree() shows those that are there")

    # The task of one life.

    async def _live(self, child: Child, life: Life) -> None:
        reason: ExitReason = Killed()
        swept = True  # by a cancellation from outside, unless the wrapper returns
        try:
            reason = await life.live()
            swept = False
        finally:
            self._exited(child, life, reason, swept=swept)

    def _exited(self, child: Child, life: Life, reason: ExitReason, *, swept: bool) -> None:
        was = child.state
        if life.ready_at is None:
            life.failure = reason = life.start_failure(reason) if was is ChildState.STARTING else reason
        going_on = not (swept or self.closing)
        by_itself = going_on and was is not ChildState.STOPPING
        again = by_itself and _wants_another_life(child, life, reason)
        with_group = going_on and life.for_restart and child.spec.restart is not Restart.TEMPORARY
        child.step(Step.DIE if again or with_group else Step.END)
        child.last_exit = reason
        life.end()
        self._reports.exited(child, life, reason, asked=was is ChildState.STOPPING, swept=swept)
        if again:
            child.due = life
            self._on_death(child, life, reason)
        elif not (child.kept or with_group):
            self._table.remove(child)


def _wants_another_life(child: Child, life: Life, reason: ExitReason) -> bool:
    if life.ready_at is None:
        return life.purpose is Purpose.RESTART
    return wants_restart(child.spec.restart, reason)
