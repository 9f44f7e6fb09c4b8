"""A supervisor's row for one child, and the wrapper around each of its lives.

The wrapper (`Life.live`) is where the library's one `except Exception` stands: it turns whatever a child
raises into an `ExitReason`, so that no child's exception ever reaches a nursery. Cancellation from outside
passes through.
"""

import math
from collections.abc import Callable
from enum import Enum

import trio

from actors.seams.bell import Bell
from actors.supervision.context import ChildContext, Tree
from actors.supervision.errors import IntensityExceeded
from actors.supervision.lifecycle import ChildState, Step, follow
from actors.supervision.restart import (
    Crashed,
    DeathRecord,
    Escalated,
    ExitReason,
    FailedToStart,
    Killed,
    Normal,
    Stopped,
)
from actors.supervision.spec import ChildSpec, Kind, Restart
from actors.supervision.tree import Snapshot


class Purpose(Enum):
    """Which caller waits for a start, and so hears of its failure."""

    INITIAL = "the supervisor's own start, which fails with it"
    ADDED = "a caller of start_child; the spec is forgotten if it fails"
    RESTART = "none: the failure is a death, and comes back through the supervisor's mail"


class Child:
    """A row of a supervisor's table: what is known of a child across its lives."""

    def __init__(self, spec: ChildSpec, *, path: str, dynamic: bool) -> None:
        self.spec = spec
        self.path = path
        # It was added later, so it has no place in the order of its siblings.
        self.dynamic = dynamic
        # Whether the row stays once the child is down for good, since it returns when its group restarts.
        self.kept = not dynamic and spec.restart is not Restart.TEMPORARY
        self.state = ChildState.STOPPED
        self.since = trio.current_time()
        self.restarts = 0
        self.last_exit: ExitReason | None = None
        self.record = DeathRecord.of(spec)
        self.life: Life | None = None  # the present one, or the last
        # What triggers the next restart: the life whose death is in the supervisor's mail, or the timer whose
        # post will be. None for a child that waits for its group, or for nothing.
        self.due: Life | trio.CancelScope | None = None

    def step(self, step: Step) -> None:
        """Follow the transition table."""
        self.state = follow(self.state, step)
        self.since = trio.current_time()

    def withdraw(self) -> None:
        """Drop the restart that is due: mail about it is out of date from now on."""
        if isinstance(self.due, trio.CancelScope):
            self.due.cancel()
        self.due = None

    def snapshot(self) -> Snapshot:
        """The row, and the tree below it, as a value."""
        life = self.life
        return Snapshot(
            name=self.spec.name,
            path=self.path,
            kind=self.spec.kind,
            state=self.state,
            since=self.since,
            restarts=self.restarts,
            last_exit=self.last_exit,
            info={} if life is None else life.info,
            children=() if life is None or life.children is None else life.children(),
        )


class Life(ChildContext):
    """One life of a child: its context, as the child sees it, and what its supervisor needs to end it."""

    def __init__(
        self,
        child: Child,
        *,
        tree: Tree,
        purpose: Purpose,
        on_ready: "Callable[[Child, Life], None] | None",
    ) -> None:
        super().__init__(name=child.spec.name, path=child.path, tree=tree)
        self._child = child
        self._on_ready = on_ready
        self.purpose = purpose
        self.scope = trio.CancelScope()
        self.ready_at: float | None = None
        self.asked_at = math.inf
        self.ended_at: float | None = None
        self.failure: ExitReason | None = None  # why it never got ready
        self.for_restart = False  # it is being stopped in order to be restarted with its group
        self.killed = False
        # Cancelling it was the request to stop, so it is no kill.
        self._soft = False
        self._error: Exception | None = None  # what the child raised
        # Rings when it is ready and when it has ended; made when a task waits for that.
        self._news: Bell | None = None

    def started(self, value: object = None) -> None:
        """The child is ready."""
        del value
        if self.ready_at is not None:
            return
        self.ready_at = trio.current_time()
        if self._on_ready is not None:
            self._on_ready(self._child, self)
        self._tell_news()

    def snapshot(self) -> Snapshot:
        """The child's row."""
        return self._child.snapshot()

    @property
    def uptime(self) -> float:
        """Seconds from ready to the end; 0 for a life that never got ready or has not ended."""
        return 0.0 if self.ready_at is None or self.ended_at is None else self.ended_at - self.ready_at

    async def live(self) -> ExitReason:
        """Run the child to its end and say why it ended. Raises nothing but cancellation from outside.

        An ExceptionGroup is kept whole. If a group mixes failures with a cancellation, the failures are the
        reason, and the cancellation goes on to the scope it belongs to.
        """
        with self.scope:
            try:
                try:
                    await self._child.spec.start(self)
                except Exception as error:  # noqa: BLE001 (the edge of a supervised child)
                    self._error = error
            except* Exception as group:  # noqa: BLE001 (the same edge)
                self._error = group
        if self._error is not None:
            return _classify(self._error)
        if self.scope.cancelled_caught and not self._soft:
            return Killed()
        return Stopped() if self.asked else Normal()

    def ask(self) -> None:
        """Ask the child to stop, or cancel it if it cannot be asked.

        It cannot be asked if it never looked, or if it is a worker that is not yet ready.

        A supervisor that is starting has children to stop, so it is asked.
        """
        self.asked = True
        self.asked_at = trio.current_time()
        spec = self._child.spec
        if spec.grace == 0:
            self.kill()
        elif self._stopping is None or (self.ready_at is None and spec.kind is Kind.WORKER):
            self._soft = True
            self.scope.cancel()
        else:
            self._stopping.set()

    def kill(self) -> None:
        """Cancel the child hard."""
        self.killed = True
        self.scope.cancel()

    @property
    def kill_at(self) -> float:
        """When the time of a child that was asked to stop is up."""
        return math.inf if self._soft else self.asked_at + self._child.spec.grace

    def end(self) -> None:
        """End the life: wake the tasks that wait for that."""
        self.ended_at = trio.current_time()
        self._tell_news()

    async def wait_settled(self) -> None:
        """Return once the child is ready, or has ended before it was."""
        while self.ready_at is None and self.ended_at is None:
            await self._wait_news()

    async def wait_ended(self) -> None:
        """Return once the life is over."""
        while self.ended_at is None:
            await self._wait_news()

    def _tell_news(self) -> None:
        if self._news is not None:
            self._news.ring()

    async def _wait_news(self) -> None:
        if self._news is None:
            self._news = Bell()
        await self._news.next_ring()

    def start_failure(self, reason: ExitReason) -> FailedToStart:
        """The reason as it stands for a child that ended before it was ready."""
        hasty = f"child {self.path!r} ended ({reason}) before it called started()"
        return FailedToStart(RuntimeError(hasty) if self._error is None else self._error)


def _classify(failure: Exception) -> ExitReason:
    if isinstance(failure, IntensityExceeded):
        return Escalated(supervisor=failure.supervisor, offender=failure.offender, reason=failure.reason)
    return Crashed(failure)
