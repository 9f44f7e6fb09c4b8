"""The rules of the house that `import-linter` does not know, and the exceptions from them.

`python -m tests.house.rules` prints what breaks them; a test does the same. `exceptions.csv` lists what may
break a rule, and why. That list may only grow shorter.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.house.graph import House, Module, cycles, read

EXCEPTIONS: Final = Path(__file__).with_name("exceptions.csv")
METHODS: Final = 25
"""What a class may have, without properties and special methods."""
CLASS_LINES: Final = 500
MODULES: Final = 20
"""What a folder may hold at one level, without `__init__.py`."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that `what` breaks."""

    rule: str
    what: str  # the name under which `exceptions.csv` may list it
    told: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.told}"


def exceptions() -> frozenset[tuple[str, str]]:
    """Read what may break a rule: the rule, and what breaks it."""
    with EXCEPTIONS.open(newline="") as file:
        return frozenset((row["rule"], row["what"]) for row in csv.DictReader(file))


def broken(house: House) -> list[Broken]:
    """Return what breaks a rule, without the exceptions."""
    allowed = exceptions()
    return [each for each in _broken(house) if (each.rule, each.what) not in allowed]


def needless(house: House) -> list[str]:
    """Return the exceptions that nothing needs any more."""
    needed = {(each.rule, each.what) for each in _broken(house)}
    return [f"{rule}: {what}" for rule, what in sorted(exceptions() - needed)]


def _broken(house: House) -> Iterator[Broken]:
    for cycle in cycles(house.imports):
        yield from (Broken("cycle of modules", name, " <-> ".join(cycle)) for name in cycle)
    for cycle in cycles(house.arrows):
        told = "\n    ".join(each for a in cycle for b in cycle if a != b for each in house.between(a, b))
        yield from (Broken("cycle of rooms", name, f"{' <-> '.join(cycle)}\n    {told}") for name in cycle)
    for module in house.modules.values():
        yield from _big_classes(module)
    folders = Counter(module.folder for module in house.modules.values() if module.lines)
    for folder, count in folders.items():
        if count > MODULES:
            yield Broken("modules in a folder", folder, f"{folder} has {count}, more than {MODULES}")
    yield from _names_again(house)


def _big_classes(module: Module) -> Iterator[Broken]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            methods, lines = sum(map(_is_method, node.body)), (node.end_lineno or 0) - node.lineno + 1
            if methods > METHODS or lines > CLASS_LINES:
                name = f"{module.name}.{node.name}"
                yield Broken("size of a class", node.name, f"{name} has {methods} methods, {lines} lines")


def _is_method(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    if node.name.startswith("__") and node.name.endswith("__"):
        return False
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return not any(
        each in {"property", "cached_property"} or each.endswith((".setter", ".deleter"))
        for each in decorators
    )


def _names_again(house: House) -> Iterator[Broken]:
    """A public class of `values` or `serving` has its name alone in `actors` and `protocols`."""
    defined: dict[str, list[str]] = defaultdict(list)
    for module in house.modules.values():
        if module.name.startswith(("actors.", "protocols.")):
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(module.name)
    for name, modules in sorted(defined.items()):
        ours = any(each.startswith(("actors.values.", "actors.serving.")) for each in modules)
        if ours and len(modules) > 1:
            yield Broken("name used again", name, f"{name} in {', '.join(sorted(modules))}")


def main() -> int:
    """Print what breaks a rule, and the exceptions that nothing needs."""
    house = read()
    lines = [str(each) for each in broken(house)] + [
        f"needless exception: {each}" for each in needless(house)
    ]
    sys.stdout.write("".join(f"{line}\n" for line in dict.fromkeys(lines)))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
