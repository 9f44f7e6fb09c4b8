"""What a node of the supervision tree tells of itself, in words.

A node is as `actors.supervision.tree.Snapshot.as_dict` makes it. Its clock's readings mean nothing here, so
`since` is told only if the root also says what time it is `now` on that clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.observability.text import duration, printable
from engine.settings.forms import size_text

STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "backing_off": "bold yellow",
    "exhausted": "bold red",
    "stopped": "dim",
}
"""How states look on a terminal, for rich."""

_LISTED: Final = 8
_BYTES: Final = frozenset({"budget", "resident", "bytes"})
"""What a node tells in bytes."""

Node = Mapping[str, Any]


def facts(node: Node, now: float | None) -> Iterator[tuple[str, str]]:
    """Yield (kind, words) of what is worth saying about one node, in the order it is said."""
    yield "state", str(node.get("state", "?")).replace("_", " ")
    if now is not None and isinstance(node.get("since"), int | float):
        yield "since", f"for {duration(now - node['since'])}"
    if node.get("restarts"):
        yield "restarts", restarts(node["restarts"])
    for key, value in (node.get("info") or {}).items():
        yield "info", f"{printable(str(key))}={printable(words_of(value, nbytes=in_bytes(key, value)))}"
    if node.get("last_exit"):
        yield "reason", f"last ended: {printable(str(node['last_exit']))}"


def restarts(count: int) -> str:
    """Return how often something was restarted."""
    return f"{count} restart{'s' if count != 1 else ''}"


def in_bytes(key: str, value: object) -> bool:
    """Whether a node tells bytes below this key. `models` are sizes by name, or a count of models."""
    return key in _BYTES or (key == "models" and isinstance(value, Mapping))


def words_of(value: object, *, nbytes: bool = False) -> str:
    """Return what a node tells of itself as words; of many things, such as regions, the first few.

    Numbers are bytes with `nbytes`, and below a key that tells bytes.
    """
    match value:
        case bool():
            return "yes" if value else "no"
        case int() if nbytes:
            return size_text(value)
        case Mapping():
            return _few(_pairs(value, nbytes), ", ")
        case list():
            each = (
                " ".join(_pairs(item, nbytes)) if isinstance(item, Mapping) else words_of(item, nbytes=nbytes)
                for item in value
            )
            return _few(list(each), "; ")
        case _:
            return str(value)


def _pairs(value: Mapping[str, object], whole: bool) -> list[str]:
    return [f"{key} {words_of(each, nbytes=whole or in_bytes(key, each))}" for key, each in value.items()]


def _few(words: list[str], between: str) -> str:
    more = [f"{len(words) - _LISTED} more"] if len(words) > _LISTED else []
    return f"[{between.join(words[:_LISTED] + more)}]"


def now_of(document: Node) -> float | None:
    """Return what time it is on the tree's clock, if the root says so."""
    now = document.get("now")
    return now if isinstance(now, int | float) else None
