"""The supervisor: OTP's `supervisor`, on a trio nursery.

A supervisor starts its children left to right, each one ready before the next. It restarts them according to
their restart types, its strategy and its intensity, and stops them right to left, each within its shutdown
budget. It does no work of its own. `restart` decides, `branch` carries out, and this module is the handle for
other code.

    async def clock(ctx: ChildContext) -> None:
        ctx.started()
        while True:
            await trio.sleep(1)
            ctx.progressed()

    connections = Supervisor()
    children = [ChildSpec("clock", clock), connections.spec("connections")]
    root = Supervisor(children, strategy=Strategy.REST_FOR_ONE)
    async with trio.open_nursery() as nursery:
        await nursery.start(root.serve)
        connections.start_child_nowait(ChildSpec("1", serve_one, restart=Restart.TEMPORARY))
        ...
        root.stop()

If `clock` raises, it is back at once. The connections restart with it, because it
stands before them in a rest_for_one tree. If `clock` raises a fourth time within five seconds, the root stops
the remaining children, in order, and `serve` raises IntensityExceeded.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import trio

from actors.supervision.branch import Branch
from actors.supervision.child import Child, Life, Purpose
from actors.supervision.context import ChildContext, Tree
from actors.supervision.errors import NotRunning, StartError
from actors.supervision.events import Observer
from actors.supervision.lifecycle import ChildState, Step
from actors.supervision.restart import Stopped
from actors.supervision.spec import (
    DEFAULT_BACKOFF,
    DEFAULT_INTENSITY,
    Backoff,
    ChildSpec,
    Flags,
    Intensity,
    Kind,
    Strategy,
    check_children,
)
from actors.supervision.tree import Snapshot


class Supervisor:
    """Starts, stops and restarts children; hang it under another with `spec`, or make it a root with `serve`.

    The object is a handle and may be kept: it runs again when its own supervisor restarts it. It then has
    the children given here and not those added later, as in OTP. Children come and go only in
    one_for_one. If `children` is a function, it is called at each start, like OTP's `init`. So a function
    that keeps track of the children that came and went can bring all of them back. Such children count as
    added later: they are stopped together, and a child that does not start is tried again, within its
    budget, while the others run. All operations raise NotRunning while the supervisor is down. Raises
    ValueError for children that cannot stand together.
    """

    def __init__(
        self,
        children: Iterable[ChildSpec] | Callable[[], Iterable[ChildSpec]] = (),
        *,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: Intensity = DEFAULT_INTENSITY,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self._ask = children if callable(children) else None
        self._specs = () if callable(children) else tuple(children)
        check_children(self._specs)
        if self._ask is not None and strategy is not Strategy.ONE_FOR_ONE:
            raise ValueError(f"children that a function names come and go; they can't be {strategy.value}")
        self._flags = Flags(strategy=strategy, intensity=intensity, backoff=backoff)
        self._ctx: ChildContext | None = None
        self._branch: Branch | None = None
        self._root: tuple[Child, Life] | None = None

    # Running.

    def spec(self, name: str, **options: Any) -> ChildSpec:
        """The child spec that puts this supervisor under another; `options` are those of `ChildSpec`."""
        return ChildSpec(name, self.run, **{"kind": Kind.SUPERVISOR, **options})

    async def run(self, ctx: ChildContext) -> None:
        """Run as the child that `ctx` belongs to, ready when all initial children are.

        It may also be the last line of a start function that makes what its children share. Raises
        IntensityExceeded when it gives up, StartError if an initial child does not start. Each is for the
        parent supervisor, and by then the children are down.
        """
        if self._branch is not None:
            raise RuntimeError(
                f"supervisor {ctx.path!r} runs already; one Supervisor object is one place in the tree"
            )
        specs = self._specs if self._ask is None else tuple(self._ask())
        check_children(specs)
        self._ctx, self._branch = ctx, Branch(self._flags, ctx)
        try:
            await self._branch.run(specs, dynamic=self._ask is not None)
        finally:
            self._ctx = self._branch = None

    async def serve(
        self,
        *,
        name: str = "root",
        observer: Observer | None = None,
        random: Random | None = None,
        task_status: "trio.TaskStatus[Supervisor]" = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run as the root of a tree, until `stop` or giving up.

        `name` stands for the root in reports and snapshots; its path is empty. `observer` gets every event of
        the tree, and `random` draws every jitter. Raises IntensityExceeded and StartError as `run` does. It
        also raises StartError if it is stopped before it is ready.
        """
        tree = Tree(observer=observer, random=random or Random())
        row = Child(ChildSpec(name, self.run, kind=Kind.SUPERVISOR), path="", dynamic=False)

        def on_ready(child: Child, life: Life) -> None:
            if child.state is ChildState.STARTING:
                child.step(Step.READY)
            task_status.started(self)

        row.life = life = Life(row, tree=tree, purpose=Purpose.INITIAL, on_ready=on_ready)
        row.step(Step.BEGIN)
        self._root = row, life
        try:
            await self.run(life)
        finally:
            self._root = None
        if life.ready_at is None:
            raise StartError(name, Stopped())

    def stop(self) -> None:
        """Ask the supervisor to stop its children, right to left, and then to end. Returns at once.

        It is meant for a root. Under another supervisor this is a normal exit, after which a permanent child
        is restarted: there, ask the parent to `terminate_child`.
        """
        branch = self._running()
        if self._root is not None:
            row, life = self._root
            if not life.asked:
                row.step(Step.STOP)
                life.asked = True
        branch.close()

    # Children that come and go. Raises ValueError where the strategy is not one_for_one.

    async def start_child(self, spec: ChildSpec) -> None:
        """Add a child at the end, start it, and return when it is ready.

        Raises AlreadyStarted if the name is taken. Raises StartError if the child does not start, and forgets
        it. If the caller is cancelled, the unfinished child is cancelled with it. A child that has ended for
        good is forgotten.
        """
        await self._running().start_child(spec)

    def start_child_nowait(self, spec: ChildSpec) -> None:
        """Add a child that counts as ready from the start: the cheap way, for connections.

        It is temporary or transient. Either is forgotten once it has ended for good. A transient child that
        is restarted says itself when it is ready. Raises AlreadyStarted, or ValueError for a child that is
        permanent.
        """
        self._running().start_child_nowait(spec)

    async def terminate_child(self, name: str) -> None:
        """Stop a child within its budget, or its pending restart, and forget it. Raises NoSuchChild."""
        await self._running().terminate_child(name)

    def kill(self, path: str) -> None:
        """Cancel the child at this absolute path, at any depth below this supervisor.

        This is `exit(Pid, kill)`, an abnormal exit: the child's restart type applies. Does nothing to a child
        that is down. Raises NoSuchChild, and NotRunning if a supervisor on the way is stopping.
        """
        self._running().kill(path)

    # Looking.

    @property
    def is_running(self) -> bool:
        """Whether the supervisor is up, or on its way up or down."""
        return self._branch is not None

    def which_children(self) -> tuple[str, ...]:
        """The names of the children in start order."""
        return tuple(self._running().table.names)

    def tree(self) -> Snapshot:
        """This supervisor and everything below it, as a value."""
        self._running()
        assert self._ctx is not None
        return self._ctx.snapshot()

    def _running(self) -> Branch:
        if self._branch is None:
            raise NotRunning(
                "the supervisor is not running; start it with `serve`, or under another by `spec`"
            )
        return self._branch
