"""`tritium tree`: the live supervision tree of a running server.

The server answers `GET /v2/tritium/tree` with the root's node, as `actors.supervision.tree.Snapshot.as_dict` makes it. Its
clock's readings mean nothing here, so that `since` is shown where the root says too what time it is `now` on that clock.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.cli.text import duration, printable

if TYPE_CHECKING:
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
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110's token
_MOST_BYTES: Final = 64 * 1024 * 1024

Node = Mapping[str, Any]


class TreeUnavailable(Exception):
    """The tree could not be fetched, with a message for the operator."""


def tree(argv: Sequence[str]) -> int:
    """Fetch and show the tree; return the process's exit status."""
    options = _parser().parse_args(argv)
    # An operator's own server needs no proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.addheaders += options.header
    try:
        if options.watch is not None:
            return _watch(opener, options.url, options.watch)
        document = fetch(opener, options.url)
    except TreeUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(drawn(document))
    else:
        sys.stdout.write(plain(document))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tritium tree",
        description="Show the live supervision tree of a running server: who is up, since when, how often it was"
        " restarted, why it last ended, and how many messages wait for it.",
        epilog="example: tritium tree --url http://127.0.0.1:8000 --watch",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="the server's HTTP address [%(default)s]"
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        type=_header,
        metavar="'NAME: VALUE'",
        help="send this header too, such as the one that --http-restricted-api asks for; repeatable",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    shown.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="redraw every second, or every SECONDS",
    )
    return parser


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
        raise argparse.ArgumentTypeError(f"expected 'NAME: VALUE', got {text!r}")
    return name, value.strip()


def fetch(opener: urllib.request.OpenerDirector, url: str) -> Node:
    """Return the tree document of the server at `url`. Raises TreeUnavailable."""
    base = url if "://" in url else f"http://{url}"
    if not base.startswith(("http://", "https://")):
        raise TreeUnavailable(f"--url takes an http:// address. Got {url}")
    try:
        with opener.open(base.rstrip("/") + _PATH, timeout=10) as response:
            document = json.loads(response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise TreeUnavailable(
                f"the server at {base} answered {error.code} to {_PATH}: is it Tritium, and if its API 'statistics' is"
                " restricted, did it get the --header?"
            ) from error
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = getattr(error, "reason", error)
        raise TreeUnavailable(f"no server answers at {base}: {reason}") from error
    except ValueError as error:
        raise TreeUnavailable(f"the server at {base} did not answer with a tree: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("children"), list):
        raise TreeUnavailable(f"the server at {base} did not answer with a tree")
    return document


def _watch(opener: urllib.request.OpenerDirector, url: str, interval: float) -> int:
    """Redraw until interrupted. A server that goes away and comes back is part of what is watched."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                try:
                    live.update(drawn(fetch(opener, url)), refresh=True)
                except TreeUnavailable as error:
                    live.update(Text(str(error), style="red"), refresh=True)
                time.sleep(max(0.1, interval))
    return 0


# -- rendering


def facts(node: Node, now: float | None) -> Iterator[tuple[str, str]]:
    """Yield (kind, words) of what is worth saying about one node, in the order it is said."""
    yield "state", str(node.get("state", "?")).replace("_", " ")
    if now is not None and isinstance(node.get("since"), int | float):
        yield "since", f"for {duration(now - node['since'])}"
    if node.get("restarts"):
        yield "restarts", f"{node['restarts']} restart{'s' if node['restarts'] != 1 else ''}"
    if node.get("inbox_depth"):
        yield "inbox", f"{node['inbox_depth']} in the inbox"
    for key, value in (node.get("info") or {}).items():
        yield "info", f"{printable(str(key))}={printable(str(value))}"
    if node.get("last_exit"):
        yield "reason", f"last ended: {printable(str(node['last_exit']))}"


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


def _label(node: Node, now: float | None) -> Text:
    from rich.text import Text

    style = _STYLES.get(str(node.get("state")), "")
    label = Text.assemble(("● ", style), (printable(str(node.get("name", "?"))), "bold"))
    styles = {"state": style, "restarts": "yellow", "inbox": "cyan", "reason": "red"}
    for kind, words in facts(node, now):
        label.append("  " + words, style=styles.get(kind, "dim"))
    return label
