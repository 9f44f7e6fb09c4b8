"""The supervision tree of a server that runs, as it tells of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.pictures import ink
from benchmarks.pictures.served import written
from benchmarks.subjects import CHECKOUT, server, tree

_PLAIN: Final = """\
max_batch_size: 8
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 2 } ]
"""
_SEQUENCES: Final = """\
max_batch_size: 4
sequence_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_COLUMNS: Final = (("telemetry", "services", "repository"), ("models", "frontends"))
_ROW, _TALL, _INDENT = 27.0, 22.0, 20.0
_TOP: Final = 138.0
_ROOT: Final = _TOP - 36
_MIDDLE: Final = 322.0
_TOLD: Final = (
    "A supervisor starts its children again when they fail. In the repository, a version and a frontend, what"
    " comes after a failed child starts again with it (rest_for_one);"
    " elsewhere the child alone (one_for_one). Children start downwards, and stop upwards."
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the tree: a node, how deep it is, and the row of its parent."""

    name: str
    depth: int
    parent: int
    supervisor: bool
    process: bool


def recorded(scratch: Path) -> Mapping[str, Any]:
    """Serve two models, and return the snapshot of the tree."""
    for name, configuration in (("resnet", _PLAIN), ("dialog", _SEQUENCES)):
        written(scratch / "models", name, scratch / "log", body="", configuration=configuration)
    with server("tritium", CHECKOUT, scratch / "models", scratch) as subject:
        return tree(subject)


def drawn(root: Mapping[str, Any]) -> str:
    """Return the picture as SVG."""
    parts = [*_legend(), *_root()]
    children = {each["name"]: each for each in root["children"]}
    longest = 0
    for column, names in enumerate(_COLUMNS):
        rows = [row for name in names if name in children for row in [*_rows(children[name], 0, -1), None]]
        longest = max(longest, len(rows) - 1)
        parts += _column(rows, ink.MARGIN + 14 + column * (_MIDDLE - ink.MARGIN))
    bottom = _TOP + _ROW * longest + 24
    height = bottom + ink.LEADING * (len(ink.broken(_TOLD)) - 1) + 16
    parts.append(ink.paragraph(ink.MARGIN, bottom, _TOLD))
    title = "The supervision tree of a server with two models"
    return ink.picture(height, title, _described(root), "python -m benchmarks.pictures tree", parts)


def _described(root: Mapping[str, Any]) -> str:
    kinds = [
        f"{each['name']} ({', '.join(below['name'] for below in each['children'])})"
        for each in root["children"]
    ]
    return f"Below root there are {'; '.join(kinds)}. {_TOLD}"


def _rows(node: Mapping[str, Any], depth: int, parent: int) -> list[Row]:
    """Return a node and all below it, with parents as places in this list."""
    name = node["name"]
    if name.startswith("connection-"):
        name = "a connection"
    has_process = "pid" in (node.get("info") or {})
    if has_process:
        name = f"instance {name}"
    found = [Row(name, depth, parent, node["kind"] == "supervisor", has_process)]
    for child in node["children"]:
        start = len(found)
        below = _rows(child, depth + 1, 0)
        found += [
            Row(each.name, each.depth, start + each.parent if place else 0, each.supervisor, each.process)
            for place, each in enumerate(below)
        ]
    return found


def _legend() -> Iterator[str]:
    y = 50.0
    yield from _node(ink.MARGIN, y, "supervisor", supervisor=True)
    yield from _node(ink.MARGIN + 122, y, "actor", supervisor=False)
    yield from _process(ink.MARGIN + 204, y, "process of a worker")


def _root() -> Iterator[str]:
    y = _ROOT
    yield from _node(ink.MARGIN, y, "root", supervisor=True)
    right = ink.MARGIN + 6 + _MIDDLE - ink.MARGIN
    yield ink.line(f"M{ink.MARGIN + _wide('root'):.1f} {y + _TALL / 2:g}H{right:g}V{_ROOT + _TALL:g}")


def _column(rows: Sequence[Row | None], left: float) -> Iterator[str]:
    """Draw subtrees below each other. None is a gap between two."""
    trunk = left - 8
    start, last = 0, _ROOT + _TALL
    for place, row in enumerate(rows):
        y = _TOP + _ROW * place
        if row is None:
            start = place + 1
            continue
        x = left + _INDENT * row.depth
        if row.depth:
            above = _TOP + _ROW * (start + row.parent) + _TALL
            yield ink.line(f"M{x - 10:.1f} {above:.1f}V{y + _TALL / 2:.1f}h10", stroke=ink.GREY)
        else:
            yield ink.line(f"M{trunk:.1f} {last:.1f}V{y + _TALL / 2:.1f}h8", stroke=ink.GREY)
            last = y + _TALL / 2
        yield from _node(x, y, row.name, supervisor=row.supervisor)
        if row.process:
            end = x + _wide(row.name)
            yield ink.line(f"M{end:.1f} {y + _TALL / 2:.1f}h12", stroke=ink.ORANGE, dashes="3 3")
            yield from _process(end + 12, y, "process")


def _wide(name: str) -> float:
    return ink.measure(name, ink.SMALL) + 14


def _node(x: float, y: float, name: str, *, supervisor: bool) -> Iterator[str]:
    colour = ink.BLUE if supervisor else ink.GREEN
    yield ink.box(x, y, _wide(name), _TALL, fill=ink.PAPER, radius=5)
    yield ink.box(
        x, y, _wide(name), _TALL, fill=colour, opacity=0.14 if supervisor else 0.03, stroke=colour, radius=5
    )
    yield ink.text(x + _wide(name) / 2, y + 16, name, anchor="middle")


def _process(x: float, y: float, name: str) -> Iterator[str]:
    wide = _wide(name)
    yield ink.box(
        x, y, wide, _TALL, fill=ink.ORANGE, opacity=0.16, stroke=ink.ORANGE, radius=11, dashes="4 3"
    )
    yield ink.text(x + wide / 2, y + 16, name, anchor="middle")
