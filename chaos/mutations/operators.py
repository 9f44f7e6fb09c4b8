"""Small bugs, made from the code as it is: each operator changes one place of one function.

A function is named as it is in its module, such as `RequestQueue.take`; the module is looked for. Where several
modules have such a function, the name of the module stands ahead of it: `restart:judge`. So the list of functions
depends neither on the text of the code nor on the folder in which it stands.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOMS: Final = ("actors", "protocols", "engine")
"""Where functions are looked for."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Change = Callable[[ast.AST], ast.AST | None]
"""Returns what stands in the place of a node, None where the operator has nothing to change."""

_SWAPPED_NAMES: Final = {"min": "max", "max": "min"}
_SWAPPED_METHODS: Final = {"popleft": "pop", "append": "appendleft"}
_SWAPPED: Final[Mapping[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class NoSuchFunction(Exception):
    """A function is not there, or its name is that of several."""


def _negate(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.If | ast.While | ast.IfExp):
        return None
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node


def _drop(node: ast.AST) -> ast.AST | None:
    told = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom)
    changes = isinstance(node, ast.AugAssign | ast.Delete)
    kept = isinstance(node, ast.Assign) and all(not isinstance(each, ast.Name) for each in node.targets)
    return ast.Pass() if told or changes or kept else None


def _swap(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Name) and node.id in _SWAPPED_NAMES:
        node.id = _SWAPPED_NAMES[node.id]
        return node
    if isinstance(node, ast.Attribute) and node.attr in _SWAPPED_METHODS:
        node.attr = _SWAPPED_METHODS[node.attr]
        return node
    other = _SWAPPED.get(type(node))
    return None if other is None else other()


def _off_by_one(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    return None


OPERATORS: Final[Mapping[str, Change]] = {
    "negate": _negate,
    "drop": _drop,
    "swap": _swap,
    "off by one": _off_by_one,
}
"""Negate a condition; drop a statement; swap min and max, < and <=, + and -, and and or; count one too many."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """The `place`th place of a function that an operator can change; `file` is relative to the root."""

    function: str
    operator: str
    place: int
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function}: {self.operator} {self.place}"

    def applied(self, text: str) -> str:
        """Return the text of the file with the bug in it."""
        module = ast.parse(text)
        name = self.function.rpartition(":")[2]
        function = next(each for found, each in _functions(module) if found == name)
        _Visitor(OPERATORS[self.operator], self.place).visit(function)
        return ast.unparse(ast.fix_missing_locations(module))


def mutants_of(root: Path, function: str) -> list[Mutant]:
    """Return all mutants of a function below `root`. Raises NoSuchFunction."""
    file, found = _find(root, function)
    mutants = []
    for operator, change in OPERATORS.items():
        visitor = _Visitor(change, None)
        visitor.visit(copy.deepcopy(found))
        mutants += [Mutant(function, operator, place, file, line) for place, line in enumerate(visitor.lines)]
    return mutants


class _Visitor(ast.NodeTransformer):
    """Changes one place of a function, or only counts the places. Annotations and defaults stay."""

    def __init__(self, change: Change, place: int | None) -> None:
        self._change = change
        self._place = place
        self._line = 0
        self.lines: list[int] = []  # of the places, one after the other

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.arguments | ast.AnnAssign) or _is_docstring(node):
            return node
        self._line = getattr(node, "lineno", self._line)
        before = node if self._place is not None else copy.deepcopy(node)
        node = self.generic_visit(node)
        if self._place is not None and self._place < len(self.lines):
            return node  # changed already
        line = getattr(before, "lineno", self._line)
        changed = self._change(copy.deepcopy(node))
        if changed is None:
            return node
        self.lines.append(line)
        return changed if self._place == len(self.lines) - 1 else node


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _find(root: Path, function: str) -> tuple[str, Function]:
    module, _, name = function.rpartition(":")
    head = f"def {name.rpartition('.')[2]}("
    found = []
    for room in ROOMS:
        for path in sorted((root / room).rglob(f"{module or '*'}.py")):
            if head in (text := path.read_text()):
                alike = (each for each_name, each in _functions(ast.parse(text)) if each_name == name)
                found += [(str(path.relative_to(root)), each) for each in alike]
    if len(found) != 1:
        where = ", ".join(file for file, _ in found) or "no module"
        raise NoSuchFunction(
            f"'{function}' is in {where}; name one that is in a single module, or `module:function`"
        )
    return found[0]


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{prefix}{each.name}.")
        elif isinstance(each, Function):
            yield f"{prefix}{each.name}", each
