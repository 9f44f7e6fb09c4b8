"""A supervision tree that is taller than the screen: calm nodes are folded into counts, the others stay.

A node is calm if it runs, has not been restarted, and reports no work in hand. A node is folded together with
all below it, if all of that is calm; its parent counts it. As little is folded as makes the tree fit. If it
does not fit with every calm node folded, nodes that were restarted but have run well since count as calm too.
Then what is left is cut to a line each. Pure: documents in, documents out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

Node = Mapping[str, Any]

FOLDED: Final = "folded"
"""The key of a node in a folded document that counts the nodes folded below it."""

SHORT: Final = "short"
"""The key of a node in a folded document that is true if one line must do for it."""

RECENT: Final = 300.0
"""Seconds after which a restart is no news any more, if there is room only for news."""

_DEPTHS: Final = (2, 3, 4)
_UNFOLDED_FIRST: Final = ("models", "repository")
_PHASES: Final = frozenset({"serving", "passive", None})
_BUSY: Final = ("busy_with", "waiting", "loading", "evicting", "unavailable", "failed")
_TOLD_FIRST: Final = (*_BUSY, "phase", "attempt", "pid")


def fold(document: Node, fits: Callable[[Node], bool]) -> Node:
    """Return as much of the tree as `fits`.

    If even the smallest form does not fit, it is returned with a line for each node.
    """
    now = document.get("now")
    recent = _Folding(now=now if isinstance(now, int | float) else None)
    for folding in (_Folding(now=None), recent, replace(recent, short=True)):
        least = folding.of(document)
        if fits(least):
            return _unfolded(document, folding, least, fits)
    return replace(recent, short=True).of(document)


def _unfolded(document: Node, folding: _Folding, best: Node, fits: Callable[[Node], bool]) -> Node:
    """Unfold branch after branch, level after level, for as long as there is room."""
    branches = dict.fromkeys(str(child.get("name")) for child in document.get("children", ()))
    for depth in _DEPTHS:
        for branch in sorted(branches, key=_UNFOLDED_FIRST.__contains__, reverse=True):
            deeper = replace(folding, depths={**folding.depths, branch: depth})
            tree = deeper.of(document)
            if fits(tree):
                folding, best = deeper, tree
            else:
                del branches[branch]
    return best


def size(document: Node) -> int:
    """Return of how many nodes a tree is: it takes at least as many lines."""
    return sum(1 for _ in _walk(document))


def folded_away(document: Node) -> int:
    """Return how many nodes a folded document does not show."""
    return int(document.get(FOLDED, 0)) + sum(folded_away(child) for child in document.get("children", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folding:
    """How much to fold: in each branch what is deeper than its depth.

    Restarts long before `now` do not prevent that.
    """

    now: float | None
    depths: Mapping[str, int] = field(default_factory=dict)
    short: bool = False

    def of(self, document: Node) -> Node:
        """Return the tree with calm nodes folded away."""
        return self._folded(document, 0, at=0)

    def _folded(self, node: Node, depth: int, *, at: int) -> Node:
        kept: list[Node] = []
        hidden = 0
        for child in node.get("children", ()):
            below = self.depths.get(str(child.get("name")), 1) if at == 0 else depth
            if (at >= below or node.get("name") == "connections") and all(
                _calm(each, self.now) for each in _walk(child)
            ):
                hidden += size(child)
            else:
                kept.append(self._folded(child, below, at=at + 1))
        return {
            **node,
            "info": _news(node),
            "children": kept,
            FOLDED: hidden,
            SHORT: self.short or _calm(node, self.now),
        }


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("children", ()):
        yield from _walk(child)


def _news(node: Node) -> Mapping[str, object]:
    """Return what the node says of itself, the most interesting first, without empty values."""
    info = node.get("info") or {}
    keys = [*(key for key in _TOLD_FIRST if key in info), *(key for key in info if key not in _TOLD_FIRST)]
    return {key: info[key] for key in keys if info[key] is not None and info[key] not in ([], {}, "")}


def _calm(node: Node, now: float | None) -> bool:
    """Whether the node needs no attention; with `now`, a node that was restarted long ago is calm again."""
    info = node.get("info") or {}
    return (
        node.get("state") == "running"
        and (not (node.get("restarts") or node.get("last_exit")) or _settled(node, now))
        and info.get("phase") in _PHASES
        and info.get("ready") is not False
        and not any(info.get(key) for key in _BUSY)
        and "in_flight" not in info  # whatever counts it is on its way out
    )


def _settled(node: Node, now: float | None) -> bool:
    since = node.get("since")
    return now is not None and isinstance(since, int | float) and now - since >= RECENT
