"""Names in the tree: a path such as `models/resnet/3/instances/0` leads to a `Ref`.

One registry belongs to one tree; there is no global one. A path has at most one `Ref` at a time, for as long
as an actor lives there or a holder keeps the Ref. So a Ref may be taken before its actor first starts, and
stays right when an ancestor restarts and the whole branch is built anew.
"""

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

from actors.supervision.inbox import Inbox, Ref


class Registry:
    """Which path leads to which actor."""

    __slots__ = ("_known", "_registered")

    def __init__(self) -> None:
        self._registered: dict[str, Ref[Any]] = {}  # one for each row of a supervisor's table
        self._known: WeakValueDictionary[str, Ref[Any]] = WeakValueDictionary()

    def ref(self, path: str) -> Ref[Any]:
        """The address of `path`, whether or not an actor lives there yet."""
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = Ref(path)
        return found

    def __getitem__(self, path: str) -> Ref[Any]:
        """The address of a registered child. Raises KeyError for a path that no supervisor knows."""
        return self._registered[path]

    def __contains__(self, path: str) -> bool:
        return path in self._registered

    def __iter__(self) -> Iterator[str]:
        return iter(self._registered)

    def __len__(self) -> int:
        return len(self._registered)

    def under(self, path: str) -> tuple[str, ...]:
        """The registered paths below `path`, in the order in which they were registered."""
        prefix = f"{path}/" if path else ""
        return tuple(name for name in self._registered if name.startswith(prefix))

    # The supervisor's side.

    def register(self, path: str, inbox: Inbox[Any] | None) -> Ref[Any]:
        """A life begins at `path`."""
        ref = self._registered[path] = self.ref(path)
        ref.born(inbox)
        return ref

    def forget(self, ref: Ref[Any]) -> None:
        """The row is gone from its supervisor's table."""
        ref.bury()
        if self._registered.get(ref.path) is ref:
            del self._registered[ref.path]
