"""A supervisor's table of children, in start order, and the questions it answers."""

from collections.abc import Iterator, KeysView

from actors.supervision.child import Child
from actors.supervision.errors import AlreadyPresent, AlreadyStarted, NotFound, Restarting, Running
from actors.supervision.lifecycle import ALIVE, AWAITING
from actors.supervision.registry import Registry
from actors.supervision.spec import ChildSpec, Kind
from actors.supervision.tree import ChildInfo, Counts, Snapshot


class Table:
    """Rows by name. `prefix` turns a name into a tree path."""

    __slots__ = ("_prefix", "_registry", "_rows")

    def __init__(self, prefix: str, registry: Registry) -> None:
        self._prefix = prefix
        self._registry = registry
        self._rows: dict[str, Child] = {}

    def __getitem__(self, name: str) -> Child:
        return self._rows[name]

    def __contains__(self, child: Child) -> bool:
        return self._rows.get(child.spec.name) is child

    def __iter__(self) -> Iterator[Child]:
        return iter(self._rows.values())

    def __reversed__(self) -> Iterator[Child]:
        return reversed(self._rows.values())

    @property
    def names(self) -> KeysView[str]:
        """All names, in start order."""
        return self._rows.keys()

    def add(self, spec: ChildSpec, *, dynamic: bool) -> Child:
        """A new row, at the end."""
        child = self._rows[spec.name] = Child(spec, path=self._prefix + spec.name, dynamic=dynamic)
        return child

    def remove(self, child: Child) -> None:
        """Forget a row and its registered name."""
        self._rows.pop(child.spec.name, None)
        # Row and life refer to each other; connections should not wait for the garbage collector.
        child.life = None
        if child.ref is not None:
            self._registry.forget(child.ref)

    def find(self, name: str) -> Child:
        """The row. Raises NotFound."""
        try:
            return self._rows[name]
        except KeyError:
            raise NotFound(
                self._prefix + name, "is not here; which_children() lists those that are"
            ) from None

    def find_down(self, name: str) -> Child:
        """The row of a child that is down and stays so. Raises NotFound, Running or Restarting."""
        child = self.find(name)
        if child.state in ALIVE:
            raise Running(child.path, f"is {child.state.value}; terminate_child it first")
        if child.state in AWAITING:
            raise Restarting(child.path, "is about to be restarted; terminate_child stops that")
        return child

    def check_free(self, name: str) -> None:
        """Raise AlreadyStarted or AlreadyPresent if the name is taken."""
        found = self._rows.get(name)
        if found is None:
            return
        if found.state in ALIVE:
            raise AlreadyStarted(
                found.path, f"is {found.state.value}; choose another name or terminate_child it"
            )
        raise AlreadyPresent(
            found.path, f"is known and {found.state.value}; restart_child or delete_child it"
        )

    def which_children(self) -> tuple[ChildInfo, ...]:
        """All rows, in start order."""
        return tuple(child.describe() for child in self)

    def count_children(self) -> Counts:
        """How many rows there are of which sort."""
        supervisors = sum(child.spec.kind is Kind.SUPERVISOR for child in self)
        return Counts(
            specs=len(self._rows),
            active=sum(child.state in ALIVE for child in self),
            supervisors=supervisors,
            workers=len(self._rows) - supervisors,
        )

    def snapshots(self) -> tuple[Snapshot, ...]:
        """The tree below, in start order."""
        return tuple(child.snapshot() for child in self)
