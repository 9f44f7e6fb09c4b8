"""Which taker gets which thing.

Each taker may take one of several things, and no thing may be taken more often than its capacity allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence


def matched(wants: Sequence[Sequence[int]], capacities: Mapping[int, int | None]) -> list[int | None]:
    """Return what each taker gets.

    As many takers as possible get something, and an earlier taker is not displaced by a later one. `wants[i]`
    are the things that taker `i` would take. A thing's capacity is how often it may be taken; None is without
    bound.

    This is a maximum bipartite matching with capacities, by augmenting paths (Kuhn, Naval Research Logistics
    Quarterly 2, 1955). A taker that was served once stays served, with another thing if need be. So the order
    in which things were handed out leaves no taker without one.
    """
    got: list[int | None] = [None] * len(wants)
    holders: dict[int, list[int]] = {thing: [] for thing in capacities}
    for taker, wanted in enumerate(wants):
        unbounded = next((thing for thing in wanted if capacities[thing] is None), None)
        if unbounded is not None:
            got[taker] = unbounded
            continue
        _augment(taker, wants, capacities, got, holders)
    return got


def _augment(
    taker: int,
    wants: Sequence[Sequence[int]],
    capacities: Mapping[int, int | None],
    got: list[int | None],
    holders: dict[int, list[int]],
) -> None:
    """Find a thing for a taker, by moving others if they have a choice."""
    came_by: dict[int, int] = {}  # thing → the taker that reached for it
    looking = deque([taker])
    while looking:
        reaching = looking.popleft()
        for thing in wants[reaching]:
            if thing in came_by:
                continue
            came_by[thing] = reaching
            if len(holders[thing]) < (capacities[thing] or 0):
                _hand_over(thing, came_by, got, holders)
                return
            looking.extend(holders[thing])


def _hand_over(
    thing: int, came_by: Mapping[int, int], got: list[int | None], holders: dict[int, list[int]]
) -> None:
    while True:
        taker = came_by[thing]
        before = got[taker]
        got[taker] = thing
        holders[thing].append(taker)
        if before is None:
            return
        holders[before].remove(taker)
        thing = before
