"""A supervisor's table of children, in start order, and the questions it answers."""

from collections.abc import Iterator, KeysView

from actors.supervision.child import Child
from actors.supervision.errors import AlreadyStarted, NoSuchChild
from actors.supervision.spec import ChildSpec
from actors.supervision.tree import Snapshot


class Table:
    """Rows by name. `prefix` turns a name into a tree path."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._rows: dict[str, Child] = {}

    def __getitem__(self, name: str) -> Child:
        return self._rows[name]

    def __iter__(self) -> Iterator[Child]:
        return iter(self._rows.values())

    def __reversed__(self) -> Iterator[Child]:
        return reversed(self._rows.values())

    @property
    def names(self) -> KeysView[str]:
        """All names, in start order."""
        return self._rows.keys()

    def add(self, spec: ChildSpec, *, dynamic: bool) -> Child:
        """Add a row at the end. Raises AlreadyStarted if the name is taken."""
        found = self._rows.get(spec.name)
        if found is not None:
            raise AlreadyStarted(
                f"child {found.path!r} is {found.state.value}; choose another name or terminate_child it"
            )
        child = self._rows[spec.name] = Child(spec, path=self._prefix + spec.name, dynamic=dynamic)
        return child

    def remove(self, child: Child) -> None:
        """Forget a row."""
        if self._rows.get(child.spec.name) is child:
            del self._rows[child.spec.name]
        # Row and life refer to each other; connections should not wait for the garbage collector.
        child.life = None

    def find(self, name: str) -> Child:
        """The row. Raises NoSuchChild."""
        try:
            return self._rows[name]
        except KeyError:
            raise NoSuchChild(
                f"child {self._prefix + name!r} is not here; which_children() lists those that are"
            ) from None

    def snapshots(self) -> tuple[Snapshot, ...]:
        """The tree below, in start order."""
        return tuple(child.snapshot() for child in self)
