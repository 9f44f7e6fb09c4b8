"""`tritium tree`: the live supervision tree of a running server.

The server answers `GET /v2/tritium/tree` with the root's node. `--watch` on a terminal is a page of its own,
for which the models' statistics and the repository's index are asked as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from engine.cli.client import (
    Client,
    ServerRefused,
    ServerUnavailable,
    add_form_options,
    add_server_options,
    client_for,
    ended_by_signals,
    show,
    watch,
)
from engine.cli.tree.facts import STYLES, Node, facts, now_of
from engine.cli.tree.reading import Reading
from engine.observability.terminals import Ability, ability_of
from engine.observability.text import printable

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_PATH: Final = "/v2/tritium/tree"


def tree(argv: Sequence[str]) -> int:
    """Fetch and show the tree; return the process's exit status."""
    options = tree_parser().parse_args(argv)
    try:
        client = client_for(options, os.environ)
        if options.watch is not None:
            ability = ability_of(sys.stdout, os.environ)
            if ability.draws:
                return _live(client, options.watch, ability)
            return watch(lambda: fetch(client), options.watch, drawn=drawn, plain=plain)
        document = fetch(client)
    except ServerUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    show(document, options, drawn=drawn, plain=plain)
    return 0


def _live(client: Client, interval: float, ability: Ability) -> int:
    from engine.cli.tree.screen import show as show_live

    with ended_by_signals():
        show_live(client.base, lambda: read(client), interval, ability)
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


def read(client: Client) -> Reading:
    """Return the tree, and what else the server tells this client. Raises ServerUnavailable."""
    at = time.monotonic()
    tree = fetch(client)
    statistics: Sequence[Node] = ()
    index: Sequence[Node] = ()
    # A server may keep either for others.
    with suppress(ServerRefused):
        told = client.ask("/v2/models/stats", api="statistics", wanted="statistics")
        statistics = told.get("model_stats", ()) if isinstance(told, dict) else ()
    with suppress(ServerRefused):
        path = "/v2/repository/index"
        told = client.ask(path, api="model-repository", wanted="an index", document={})
        index = told if isinstance(told, list) else ()
    return Reading(tree=tree, at=at, statistics=statistics, index=index)


# -- rendering


def plain(document: Node) -> str:
    """Return the tree as text without colours, one line a node."""
    now = now_of(document)
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

    now = now_of(document)

    def branch(node: Node, parent: Tree | None) -> Tree:
        label = _label(node, now)
        here = Tree(label, guide_style="dim") if parent is None else parent.add(label)
        for child in node.get("children", []):
            branch(child, here)
        return here

    return branch(document, None)


def _label(node: Node, now: float | None) -> Text:
    from rich.text import Text

    style = STYLES.get(str(node.get("state")), "")
    label = Text.assemble(("● ", style), (printable(str(node.get("name", "?"))), "bold"))
    styles = {"state": style, "restarts": "yellow", "reason": "red"}
    for kind, words in facts(node, now):
        label.append("  " + words, style=styles.get(kind, "dim"))
    return label
