"""Which replicas serve a model: those that have it already, then by a hash that all controllers agree on.

A replica's share of a hash is that of rendezvous hashing (Thaler, Ravishankar: *Using name-based mappings to
increase hit rates*, 1998): a replica that joins or leaves moves only the models that it gets or had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from engine.fleet.policy.values import Seen, Wish

_SHOWN: Final = 10  # labels in a message


def place(wishes: Iterable[Wish], seen: Mapping[str, Seen]) -> dict[str, tuple[str, ...]]:
    """Return the replicas of each model, sorted by name.

    The largest models choose first. A model gets fewer replicas than it should where no more have its labels
    and room for it.
    """
    left = {name: each.room for name, each in seen.items()}
    placed = {}
    for wish in sorted(wishes, key=lambda each: (-each.memory, each.model)):
        able = [each for each in seen.values() if _may(each, wish, left[each.name])]
        able.sort(key=lambda each: (not bool(each.served(wish.model).ready), _weight(each.name, wish.model)))
        chosen = [each.name for each in able[: wish.replicas]]
        for name in chosen:
            room = left[name]
            left[name] = None if room is None else room - wish.memory
        placed[wish.model] = tuple(sorted(chosen))
    return placed


def why_fewer(wish: Wish, placed: Collection[str], seen: Mapping[str, Seen]) -> str:
    """Return why a model has fewer replicas than it should; empty if it has enough."""
    labelled = [each for each in seen.values() if _has_labels(each, wish)]
    target = wish.replicas or max(len(labelled), 1)
    if len(placed) >= target or not seen:
        return ""
    if len(placed) < len(labelled):
        room = f"{wish.memory / 2**30:.3g} GiB"
        return f"{len(placed)} of {len(labelled)} replicas have room for its {room} beside other models"
    if not wish.labels:
        return f"there are {len(seen)} of the {target} replicas that it should have"
    asked = ", ".join(f"{key}={value}" for key, value in sorted(wish.labels.items()))
    if labelled:
        return f"{len(labelled)} of {len(seen)} replicas have its labels {asked}"
    there = sorted({f"{key}={value}" for each in seen.values() for key, value in each.labels.items()})
    others = ", ".join(there[:_SHOWN]) or "no labels at all"
    return f"none of {len(seen)} replicas has its labels {asked}; there are {others}"


def _may(replica: Seen, wish: Wish, room: int | None) -> bool:
    return (room is None or room >= wish.memory) and _has_labels(replica, wish)


def _has_labels(replica: Seen, wish: Wish) -> bool:
    return all(replica.labels.get(key) == value for key, value in wish.labels.items())


def _weight(replica: str, model: str) -> bytes:
    return hashlib.blake2b(f"{model}\0{replica}".encode(), digest_size=8).digest()
