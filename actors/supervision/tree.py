"""The tree as a value: what a console, a health check or a test looks at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.supervision.lifecycle import ChildState
from actors.supervision.restart import ExitReason
from actors.supervision.spec import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One node of the tree at one moment, and the nodes below it in start order.

    `since` is when the present state began (`trio.current_time()`), `restarts` how often the supervisor has
    restarted this child, `last_exit` why it last ended (None: it never has), and `info` what the child
    published.
    """

    name: str
    path: str
    kind: Kind
    state: ChildState
    since: float
    restarts: int = 0
    last_exit: ExitReason | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    children: tuple["Snapshot", ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dicts and lists of strings and numbers; `info` is passed through as published."""
        return {
            "name": self.name,
            "path": self.path,
            "kind": self.kind.value,
            "state": self.state.value,
            "since": self.since,
            "restarts": self.restarts,
            "last_exit": None if self.last_exit is None else str(self.last_exit),
            "info": dict(self.info),
            "children": [child.as_dict() for child in self.children],
        }

    def walk(self) -> Iterator["Snapshot"]:
        """This node and all below it, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, path: str) -> "Snapshot":
        """The node at this absolute path. Raises KeyError, naming the paths there are, if there is none."""
        for node in self.walk():
            if node.path == path:
                return node
        raise KeyError(f"no node at {path!r}; there are {', '.join(repr(n.path) for n in self.walk())}")
