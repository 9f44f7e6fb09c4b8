"""What a supervisor gives to a child, and all that the child ever sees of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from actors.seams.bell import Bell
from actors.supervision.events import Observer
from actors.supervision.tree import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What all supervisors of one tree share: its observer and its source of randomness."""

    observer: Observer | None = None
    random: Random = field(default_factory=Random)


class Stopping:
    """The request to stop, as the child sees it.

    A child can wait for it, look at it, or have it call a plain function. `then` calls at once if the child
    was asked already.
    """

    def __init__(self, *, asked: bool = False) -> None:
        self._asked = Bell()
        self._callbacks: list[Callable[[], object]] = []
        if asked:
            self._asked.ring()

    def is_set(self) -> bool:
        """Whether the child has been asked to stop."""
        return self._asked.rings > 0

    async def wait(self) -> None:
        """Return once the child is asked to stop."""
        await self._asked.wait()

    def then(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the child is asked to stop. It must neither block nor raise."""
        if self.is_set():
            callback()
        else:
            self._callbacks.append(callback)

    def set(self) -> None:
        """Ask, once. For supervisors."""
        self._asked.ring()
        for callback in self._callbacks:
            callback()


class ChildContext(ABC):
    """One life of one child: its names, and what it may tell its supervisor.

    It serves as the `task_status` of the child as well: hand `ctx` to anything that calls
    `task_status.started()`.
    """

    def __init__(self, *, name: str, path: str, tree: Tree) -> None:
        self.name = name
        self.path = path
        self.tree = tree
        self.asked = False
        self.progress = False  # read by the supervisor when this life ends
        self.info: Mapping[str, object] = {}
        # Both are set by a child that is a supervisor.
        self.children: Callable[[], tuple[Snapshot, ...]] | None = None
        self.kill_below: Callable[[str], None] | None = None
        self._stopping: Stopping | None = None  # made when the child first looks

    @abstractmethod
    def started(self, value: object = None) -> None:
        """The child is ready, and its supervisor goes on to the next sibling. Only the first time counts.

        `value` is there for code that takes a `task_status`; it has no effect.
        """

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """This child, and the tree below it, as its supervisor sees it."""

    @property
    def stopping(self) -> Stopping:
        """Set when the supervisor asks the child to stop.

        A child that has looked here stops in its own way within its shutdown budget. A child that never
        looked cannot be asked, and is cancelled at once, as OTP does with a process that does not trap exits.
        """
        if self._stopping is None:
            self._stopping = Stopping(asked=self.asked)
        return self._stopping

    def progressed(self) -> None:
        """The child has done something useful: its earlier deaths are forgotten (`restart.judge`). Cheap."""
        self.progress = True

    def publish(self, **info: object) -> None:
        """Show these keys in the tree's snapshots, beside those published before.

        A key that is None is no longer shown.
        """
        self.info = {key: value for key, value in {**self.info, **info}.items() if value is not None}
