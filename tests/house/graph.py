"""The import graph of the product: its modules, its rooms, and what imports what.

Every `import` counts, wherever it stands: at the top, in a function, under `TYPE_CHECKING`. A module's room
is the folder below `actors`, `engine`, `protocols` or `chaos` in which it lies; `engine.asgi` and
`engine.__main__` are rooms of their own. What authors of models import as `tritium` is a package beside
these four, wherever its files lie.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("chaos", "engine", "protocols", "actors")
"""From the top of the house to its ground; each may import those after it."""

_FACE: Final = "engine/worker/authoring/public"
_GENERATED: Final = ("_pb2.py", "/generated/")
_ROOTS: Final = ("engine.asgi", "engine.__main__")

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """One file. `imports` are the modules of the product that it names."""

    name: str
    path: str  # below the root of the repository
    lines: int
    tree: ast.Module = field(repr=False)
    imports: frozenset[str]

    @property
    def room(self) -> str:
        """The room in which it lies."""
        if self.name in _ROOTS:
            return self.name
        names = self.name.split(".")
        folder = len(names) > 2 or self.path.endswith("/__init__.py")
        return ".".join(names[:2]) if folder else names[0]

    @property
    def folder(self) -> str:
        """The folder in which it lies."""
        return str(Path(self.path).parent)


@dataclass(frozen=True)
class House:
    """All modules, by name."""

    modules: Mapping[str, Module]

    @cached_property
    def imports(self) -> Graph:
        """Which modules each module imports."""
        return {name: module.imports for name, module in self.modules.items()}

    @cached_property
    def rooms(self) -> Mapping[str, Sequence[Module]]:
        """The modules of each room. A package's empty `__init__.py` is none."""
        rooms: dict[str, list[Module]] = {}
        for module in self.modules.values():
            if module.lines:
                rooms.setdefault(module.room, []).append(module)
        return dict(sorted(rooms.items()))

    @cached_property
    def arrows(self) -> Graph:
        """Which rooms each room imports."""
        return {
            room: frozenset(
                self.modules[name].room
                for module in modules
                for name in module.imports
                if self.modules[name].room in self.rooms
            )
            - {room}
            for room, modules in self.rooms.items()
        }

    def between(self, room: str, other: str) -> Iterator[str]:
        """Yield `module -> module` for each import from one room into another."""
        for module in self.rooms[room]:
            for name in sorted(module.imports):
                if self.modules[name].room == other:
                    yield f"{module.name} -> {name}"


def read(root: Path = ROOT) -> House:
    """Read the modules of the product. Generated ones are left out."""
    paths = [
        path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if not any(mark in path.as_posix() for mark in _GENERATED)
    ]
    names = {_name(path.relative_to(root)): path for path in paths}
    modules = {}
    for name, path in names.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        modules[name] = Module(
            name=name,
            path=path.relative_to(root).as_posix(),
            lines=len(text.splitlines()),
            tree=tree,
            imports=frozenset(_imported(tree, names)) - {name},
        )
    return House(modules)


def _name(path: Path) -> str:
    if path.is_relative_to(_FACE):
        path = path.relative_to(_FACE)
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(tree: ast.Module, names: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in names:
                    yield inner
                elif node.module in names:
                    yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan), each sorted."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> Iterator[str]:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                yield other
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for root in sorted(graph):
        # Visits wait on a list of our own: the graph is deeper than Python's stack should be.
        visits = [visit(root)] if root not in order else []
        while visits:
            other = next(visits[-1], None)
            if other is None:
                visits.pop()
            else:
                visits.append(visit(other))
    return sorted(found)
