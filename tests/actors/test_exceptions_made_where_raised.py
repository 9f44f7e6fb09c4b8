"""No exception is kept in a module, a class or a default, because each raise adds to its traceback.

A traceback holds the frames that it went through, with the message and the connection in them, for as long as
the exception lives.
"""

import ast
import builtins
from pathlib import Path

import pytest

from tests.support.garbage import without_collector

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "actors", "protocols")
DEFERRED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def name_of(node):
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
    return ""


def exception_names(trees):
    """The builtin exceptions, and all classes that are derived from one, by name."""
    known = {name for name, value in vars(builtins).items() if is_exception(value)}
    classes = [node for tree in trees for node in run_once(tree) if isinstance(node, ast.ClassDef)]
    before = 0
    while len(known) > before:
        before = len(known)
        known |= {each.name for each in classes if any(name_of(base) in known for base in each.bases)}
    return known


def is_exception(value):
    return isinstance(value, type) and issubclass(value, BaseException)


def run_once(node):
    """Yield the nodes that are evaluated when the module is imported, and never again."""
    left = [node]
    while left:
        node = left.pop()
        if isinstance(node, DEFERRED):
            left += [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
        else:
            yield node
            left += ast.iter_child_nodes(node)


def kept(tree, exceptions):
    """The exceptions that a module makes when it is imported, by line. Others' are known by their names."""
    return [
        (node.lineno, ast.unparse(node))
        for node in run_once(tree)
        if isinstance(node, ast.Call)
        and (name_of(node.func) in exceptions or name_of(node.func).endswith(("Error", "Exception")))
    ]


def test_no_module_keeps_an_exception():
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    with without_collector():
        trees = {file: ast.parse(file.read_text()) for file in files}
    exceptions = exception_names(trees.values())
    assert {"TritiumError", "InvalidArgument", "ConnectionViolation"} <= exceptions
    found = {str(file.relative_to(ROOT)): kept(tree, exceptions) for file, tree in trees.items()}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "TOO_MANY: Final = ValueError('more than one')",
        "TEXTS = {1: NotThere('x')}",
        "class A:\n    gone = KeyError('gone')",
        "def f(why=GRPCError(1)): raise why",
        "class A:\n    def f(self, *, why=OSError()): raise why",
    ],
)
def test_an_exception_that_is_kept_is_found(source):
    assert kept(ast.parse(source), {*exception_names([]), "NotThere"})


@pytest.mark.parametrize(
    "source",
    ["def f(): raise ValueError('x')", "make = lambda: ValueError('x')", "KNOWN = (ValueError, OSError)"],
)
def test_one_that_is_made_when_it_is_raised_is_not(source):
    assert not kept(ast.parse(source), exception_names([]))
