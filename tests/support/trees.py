"""For tests of trees: children that crash or end on demand, an observer that remembers, a view of the tree.

a, b = Puppet("a"), Puppet("b")
async with serving(Supervisor([a.spec(), b.spec()])) as tree:
    a.crash()
    await settled()
    tree.check({"a": "running", "b": "running"})
    assert a.lives == 2
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import trio
import trio.testing

from actors.supervision.context import ChildContext
from actors.supervision.errors import SupervisionError
from actors.supervision.events import SupervisionEvent
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.supervision.tree import Snapshot


class Cue(Exception):
    """What a puppet crashes with."""


class Puppet:
    """A child that crashes, ends or dawdles on cue, and writes its life into a journal.

    `start_delay` seconds pass before it is ready, and the next `fail_starts` starts fail. Asked to stop, it
    takes `stop_delay` seconds; None means that it does not listen, and is cancelled. `journal` gets "start
    a", "ready a" and "end a"; share one among puppets to see their order.
    """

    def __init__(
        self,
        name: str,
        *,
        journal: list[str] | None = None,
        start_delay: float = 0.0,
        fail_starts: int = 0,
        stop_delay: float | None = None,
    ) -> None:
        self.name = name
        self.journal: list[str] = [] if journal is None else journal
        self.start_delay = start_delay
        self.fail_starts = fail_starts
        self.stop_delay = stop_delay
        self.lives = 0  # starts, failed ones included
        self.started_at: list[float] = []
        self.ctx: Any = None  # of the present life
        self._cue = trio.Event()
        self._error: Exception | None = None

    def spec(self, **options: Any) -> ChildSpec:
        """The puppet as a child; `options` are those of `ChildSpec`."""
        return ChildSpec(self.name, self.run, **options)

    def crash(self, error: Exception | None = None) -> None:
        """End the present life with `error`, or with a `Cue`."""
        self._error = error or Cue(f"{self.name} crashes on cue")
        self._cue.set()

    def finish(self) -> None:
        """End the present life normally."""
        self._cue.set()

    async def run(self, ctx: ChildContext) -> None:
        """One life: the start function."""
        self.lives += 1
        self.ctx = ctx
        self.started_at.append(trio.current_time())
        self._cue, self._error = trio.Event(), None
        self.journal.append(f"start {self.name}")
        try:
            await self._live(ctx)
        finally:
            self.journal.append(f"end {self.name}")

    async def _live(self, ctx: ChildContext) -> None:
        await trio.sleep(self.start_delay)
        if self.fail_starts > 0:
            self.fail_starts -= 1
            raise Cue(f"{self.name} fails to start on cue")
        self.journal.append(f"ready {self.name}")
        ctx.started(self)
        if self.stop_delay is not None:
            ctx.stopping.then(self._cue.set)
        await self._cue.wait()
        if self._error is not None:
            raise self._error
        if self.stop_delay is not None and ctx.asked:
            await trio.sleep(self.stop_delay)


class Serving:
    """A tree under test: its root, and every event so far."""

    def __init__(self, root: Supervisor) -> None:
        self.root = root
        self.events: list[SupervisionEvent] = []
        self._ended: trio.Event | None = None  # made when a test expects the end
        self._error: SupervisionError | None = None

    async def gave_up(self) -> SupervisionError:
        """Wait until the root gives up, and return what `serve` raised; unexpected, it fails the test."""
        self._ended = trio.Event()
        await self._ended.wait()
        assert self._error is not None, "the root ended without giving up"
        return self._error

    async def serve(self, *, seed: int, task_status: "trio.TaskStatus[Supervisor]") -> None:
        """Serve the root. For `serving`."""
        try:
            await self.root.serve(observer=self.events.append, random=Random(seed), task_status=task_status)
        except SupervisionError as error:
            if self._ended is None:
                raise
            self._error = error
        if self._ended is not None:
            self._ended.set()

    def names(self, path: str | None = None) -> list[str]:
        """The names of the events so far, or of those about the child at `path`."""
        return [event.name for event in self.events if path is None or event.path == path]

    def about(self, kind: type[SupervisionEvent]) -> list[Any]:
        """The events of one class so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def check(self, expected: Mapping[str, str]) -> None:
        """Assert the state of every node below the root, by path."""
        found = states(self.root.tree())
        assert found == dict(expected), f"the tree is {found}"


def states(snapshot: Snapshot) -> dict[str, str]:
    """The state of every node below this one, by path."""
    return {node.path: node.state.value for node in snapshot.walk() if node is not snapshot}


async def settled(act: Callable[..., object] | None = None, *arguments: object) -> None:
    """Act, if told how, and let everything run until nothing can go on without the clock."""
    if act is not None:
        act(*arguments)
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def serving(root: Supervisor, *, seed: int = 0) -> AsyncIterator[Serving]:
    """Serve `root` inside the block and stop it at its end.

    What `serve` raises comes out of the block in an ExceptionGroup, unless the test awaits `gave_up`.
    """
    served = Serving(root)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(served.serve, seed=seed))
        yield served
        if root.is_running:
            root.stop()
