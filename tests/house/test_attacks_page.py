"""The page about attacks names tests that there are, and some for each attack."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "attacks.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROW = re.compile(r"\| (?!attack \|)[^-].*\|")


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def rows() -> list[str]:
    """Return the rows of the tables of attacks."""
    attacks, _, _ = PAGE.read_text(encoding="utf-8").partition("## Random inputs")
    return [line for line in attacks.splitlines() if ROW.fullmatch(line)]


def test_each_attack_is_tried_by_a_test():
    assert len(rows()) > 50
    assert [row for row in rows() if not NAMED.search(row)] == []


def test_each_test_that_is_named_is_there():
    named = {(path, name) for row in rows() for path, name in NAMED.findall(row)}
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (TESTS / path).exists() or name not in functions(TESTS / path)
    ]
    assert missing == []
