"""`tritium tree`: the live supervision tree of a running server.

The server answers `GET /v2/tritium/tree` with the root's node, as `actors.supervision.tree.Snapshot.as_dict`
makes it. Its clock's readings mean nothing here, so `since` is shown only if the root also says what time it
is `now` on that clock.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.cli.client import (
    Client,
    ServerUnavailable,
    add_form_options,
    add_server_options,
    client_for,
    show,
    watch,
)
from engine.cli.folding import FOLDED, SHORT, fold, folded_away, size
from engine.observability.text import duration, printable
from engine.settings.forms import size_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.segment import Segment
    from rich.text import Text
    from rich.tree import Tree

_PATH: Final = "/v2/tritium/tree"
_STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "backing_off": "bold yellow",
    "exhausted": "bold red",
    "stopped": "dim",
}

_LISTED: Final = 8
_BYTES: Final = frozenset({"budget", "resident", "bytes"})
"""What a node tells in bytes."""

Node = Mapping[str, Any]


def tree(argv: Sequence[str]) -> int:
    """Fetch and show the tree; return the process's exit status."""
    options = tree_parser().parse_args(argv)
    try:
        client = client_for(options, os.environ)
        if options.watch is not None:
            return watch(lambda: fetch(client), options.watch, drawn=Fitted, plain=plain)
        document = fetch(client)
    except ServerUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    show(document, options, drawn=drawn, plain=plain)
    return 0


def tree_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium tree",
        description="Show the live supervision tree of a running server: who is up, since when, how often it was"
        " restarted, and why it last ended.",
        epilog="example: tritium tree --url http://127.0.0.1:8000 --watch",
        allow_abbrev=False,
    )
    add_server_options(parser)
    add_form_options(parser)
    return parser


def fetch(client: Client) -> Node:
    """Return the server's tree document. Raises ServerUnavailable."""
    document = client.ask(_PATH, api="statistics", wanted="a tree")
    if not isinstance(document, dict) or not isinstance(document.get("children"), list):
        raise ServerUnavailable(f"the server at {client.base} did not answer with a tree")
    return document


# -- rendering


def facts(node: Node, now: float | None) -> Iterator[tuple[str, str]]:
    """Yield (kind, words) of what is worth saying about one node, in the order it is said."""
    yield "state", str(node.get("state", "?")).replace("_", " ")
    if now is not None and isinstance(node.get("since"), int | float):
        yield "since", f"for {duration(now - node['since'])}"
    if node.get("restarts"):
        yield "restarts", f"{node['restarts']} restart{'s' if node['restarts'] != 1 else ''}"
    for key, value in (node.get("info") or {}).items():
        words = size_text(value) if key in _BYTES and isinstance(value, int) else _words_of(value)
        yield "info", f"{printable(str(key))}={printable(words)}"
    if node.get(FOLDED):
        yield "folded", f"+{node[FOLDED]} running"
    if node.get("last_exit"):
        yield "reason", f"last ended: {printable(str(node['last_exit']))}"


def _words_of(value: object) -> str:
    """Return what a node tells of itself as words: of a list of things, such as regions, the first few."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return str(value)
    shown = [
        " ".join(f"{key} {size_text(each) if key in _BYTES else each}" for key, each in item.items())
        for item in value[:_LISTED]
    ]
    more = [f"{len(value) - _LISTED} more"] if len(value) > _LISTED else []
    return f"[{'; '.join(shown + more)}]"


def _now(document: Node) -> float | None:
    now = document.get("now")
    return now if isinstance(now, int | float) else None


def plain(document: Node) -> str:
    """Return the tree as text without colours, one line a node."""
    now = _now(document)
    lines: list[str] = []

    def add(node: Node, lead: str, below: str) -> None:
        said = ", ".join(words for _, words in facts(node, now))
        lines.append(f"{lead}{printable(str(node.get('name', '?')))}  {said}\n")
        children = node.get("children", [])
        for index, child in enumerate(children):
            last = index == len(children) - 1
            add(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    add(document, "", "")
    return "".join(lines)


def drawn(document: Node) -> Tree:
    """Return the tree for a terminal."""
    from rich.tree import Tree

    now = _now(document)

    def branch(node: Node, parent: Tree | None) -> Tree:
        label = _label(node, now)
        here = Tree(label, guide_style="dim") if parent is None else parent.add(label)
        for child in node.get("children", []):
            branch(child, here)
        return here

    return branch(document, None)


class Fitted:
    """The tree for a terminal, whole if there is room for it, else folded until it fits.

    It is redrawn at the terminal's size.
    """

    def __init__(self, document: Node) -> None:
        self._document = document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        height = options.height or console.height
        options = options.update(height=None)

        def lines(document: Node) -> list[list[Segment]]:
            return console.render_lines(drawn(document), options, pad=False)

        def fits(document: Node) -> bool:
            return size(document) < height and len(lines(document)) < height  # a line is left for the note

        if size(self._document) <= height and len(lines(self._document)) <= height:
            yield drawn(self._document)
            return
        document = fold(self._document, fits)
        shown = lines(document)
        note = _note(folded_away(document), max(0, len(shown) - height + 1))
        for line in shown[: height - 1]:
            yield from line
            yield Segment.line()
        yield note


def _note(folded: int, cut: int) -> Text:
    from rich.text import Text

    words = [f"{folded} healthy parts are folded"] if folded else []
    if cut:
        words.append(f"{cut} lines do not fit")
    return Text(
        f"{', '.join(words)}; all of it: tritium tree | less", style="dim", no_wrap=True, overflow="ellipsis"
    )


def _label(node: Node, now: float | None) -> Text:
    from rich.text import Text

    style = _STYLES.get(str(node.get("state")), "")
    label = Text.assemble(("● ", style), (printable(str(node.get("name", "?"))), "bold"))
    styles = {"state": style, "restarts": "yellow", "reason": "red", "folded": "green"}
    for kind, words in facts(node, now):
        label.append("  " + words, style=styles.get(kind, "dim"))
    if node.get(SHORT):
        label.no_wrap, label.overflow = True, "ellipsis"
    return label
