"""Does something wait for itself? The wait-for graph of calls that models make of models.

A node that waits needs either *every* node it waits for (a batch all the calls that it has to wait for, an
ensemble all its steps), or *any* of them (a queued request any instance of its model, an instance any of the
batches that it executes). A node that waits for nothing goes on by itself. A node is stuck if it can't be
shown to go on, however long one waits. The stuck nodes are all that are not in the smallest set of nodes that
go on, which a walk over the graph finds in time linear in its size.

A wait that is not in the graph counts as one that ends. So the builder of the graph may leave out what it
does not know, and at worst a deadlock goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Waits:
    """What a node waits for: all of `on`, or any one of them. `on` is never empty."""

    on: Sequence[Hashable]
    every: bool

    def __post_init__(self) -> None:
        if not self.on:
            raise ValueError("a node that waits for nothing is no waiting node: say None")


def find_deadlock(
    start: Node, waits_of: Callable[[Node], Waits | None], *, limit: int = 10_000
) -> list[Node] | None:
    """Return a chain from `start` to a node that is in it already; None if `start` goes on.

    Each node of the chain waits for the next in vain.

    `waits_of` says what a node waits for, None for one that goes on by itself; it is asked once for each node
    that can be reached. A graph of more than `limit` nodes is taken for one that goes on.
    """
    graph = _reachable(start, waits_of, limit)
    if graph is None:
        return None
    going = _going_on(graph)
    if start in going:
        return None
    chain = [start]
    while True:
        waits = graph[chain[-1]]
        assert waits is not None, "what waits for nothing goes on"
        # `waits.on` has nodes of the graph.
        following: Node = next(each for each in waits.on if each not in going)  # type: ignore[assignment]
        if following in chain:
            return [*chain, following]
        chain.append(following)


def _reachable(
    start: Node, waits_of: Callable[[Node], Waits | None], limit: int
) -> dict[Node, Waits | None] | None:
    graph: dict[Node, Waits | None] = {}
    unseen = [start]
    while unseen:
        node = unseen.pop()
        if node in graph:
            continue
        if len(graph) >= limit:
            return None
        waits = graph[node] = waits_of(node)
        if waits is not None:
            unseen += waits.on  # type: ignore[arg-type]  # nodes of the same graph
    return graph


def _going_on(graph: dict[Node, Waits | None]) -> set[Node]:
    """Return the nodes that go on, if every node that can go on does."""
    waiting_for: dict[Hashable, list[Node]] = {}
    missing: dict[Node, int] = {}
    for node, waits in graph.items():
        if waits is not None:
            needs = set(waits.on)
            missing[node] = len(needs) if waits.every else 1
            for need in needs:
                waiting_for.setdefault(need, []).append(node)
    going = {node for node, waits in graph.items() if waits is None}
    ended = list(going)
    while ended:
        for node in waiting_for.get(ended.pop(), ()):
            missing[node] -= 1
            if not missing[node]:
                going.add(node)
                ended.append(node)
    return going
