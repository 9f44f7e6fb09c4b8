"""What a supervisor gives to a child, and all that the child ever sees of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from actors.supervision.events import Observer
from actors.supervision.inbox import Inbox, Monitor, Ref
from actors.supervision.registry import Registry
from actors.supervision.tree import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What all supervisors of one tree share: its names, its observer and its source of randomness."""

    registry: Registry = field(default_factory=Registry)
    observer: Observer | None = None
    random: Random = field(default_factory=Random)


class Stopping:
    """The request to stop, as the child sees it.

    A child can wait for it, look at it, or have it call a plain function. `then` calls at once if the child
    was asked already.
    """

    __slots__ = ("_asked", "_callbacks", "_event")

    def __init__(self, *, asked: bool = False) -> None:
        self._asked = asked
        self._callbacks: list[Callable[[], object]] = []
        self._event: trio.Event | None = None

    def is_set(self) -> bool:
        """Whether the child has been asked to stop."""
        return self._asked

    async def wait(self) -> None:
        """Return once the child is asked to stop."""
        if self._event is None:
            self._event = trio.Event()
            if self._asked:
                self._event.set()
        await self._event.wait()

    def then(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the child is asked to stop. It must neither block nor raise."""
        if self._asked:
            callback()
        else:
            self._callbacks.append(callback)

    def set(self) -> None:
        """Ask, once. For supervisors."""
        self._asked = True
        if self._event is not None:
            self._event.set()
        for callback in self._callbacks:
            callback()


class ChildContext(ABC):
    """One life of one child: its names, its inbox, and what it may tell its supervisor.

    It serves as the `task_status` of the child as well: hand `ctx` to anything that calls
    `task_status.started()`.
    """

    __slots__ = (
        "_inbox",
        "_stopping",
        "asked",
        "children",
        "info",
        "kill_below",
        "name",
        "path",
        "progress",
        "tree",
    )

    def __init__(self, *, name: str, path: str, tree: Tree, inbox: Inbox[Any] | None) -> None:
        self.name = name
        self.path = path
        self.tree = tree
        self.asked = False
        self.progress = False  # read by the supervisor when this life ends
        self.info: Mapping[str, object] = {}
        # Both are set by a child that is a supervisor.
        self.children: Callable[[], tuple[Snapshot, ...]] | None = None
        self.kill_below: Callable[[str], None] | None = None
        self._inbox = inbox
        self._stopping: Stopping | None = None  # made when the child first looks

    @abstractmethod
    def started(self, value: object = None) -> None:
        """The child is ready, and its supervisor goes on to the next sibling. The starter gets `value`.

        Only the first time counts.
        """

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """This child, and the tree below it, as its supervisor sees it."""

    @property
    def task_status(self) -> "trio.TaskStatus[Any]":
        """The trio form of `started`, for functions that take a `task_status`."""
        return self

    @property
    def registry(self) -> Registry:
        """The tree's names."""
        return self.tree.registry

    @property
    def ref(self) -> Ref[Any]:
        """The child's own address."""
        return self.tree.registry.ref(self.path)

    @property
    def inbox(self) -> Inbox[Any]:
        """The child's inbox; `receive` raises EndOfChannel when the child is asked to stop.

        Raises TypeError for a child whose spec gives it none.
        """
        if self._inbox is None:
            raise TypeError(f"child {self.path!r} has no inbox; give its spec a capacity, such as inbox=64")
        self._listen()
        return self._inbox

    @property
    def stopping(self) -> Stopping:
        """Set when the supervisor asks the child to stop.

        A child that has looked here, or at its inbox, stops in its own way within its shutdown budget. A
        child that never looked cannot be asked, and is cancelled at once, as OTP does with a process that
        does not trap exits.
        """
        return self._listen()

    def progressed(self) -> None:
        """The child has done something useful: its earlier deaths are forgotten (`restart.judge`). Cheap."""
        self.progress = True

    def publish(self, **info: object) -> None:
        """Show these keys in the tree's snapshots, beside those published before.

        A key that is None is no longer shown.
        """
        self.info = {key: value for key, value in {**self.info, **info}.items() if value is not None}

    def lookup(self, path: str) -> Ref[Any]:
        """The address of an absolute tree path, whether or not anything lives there yet."""
        return self.tree.registry.ref(path)

    def sibling(self, name: str) -> Ref[Any]:
        """The address of another child of the same supervisor."""
        return self.lookup(self.path[: len(self.path) - len(self.name)] + name)

    def monitor(self, ref: Ref[Any]) -> Monitor:
        """Have a `Down` delivered to this child's inbox when the actor at `ref` dies."""
        return ref.monitor(self.inbox)

    def _listen(self) -> Stopping:
        if self._stopping is None:
            self._stopping = Stopping(asked=self.asked)
            if self._inbox is not None:
                self._stopping.then(self._inbox.interrupt)
        return self._stopping
