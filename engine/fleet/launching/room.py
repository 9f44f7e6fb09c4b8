"""Whether the nodes of a cluster can take a group of servers, each on a node of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.fleet.launching.registry import LaunchOrder


def what_lacks(order: LaunchOrder, nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return what the cluster lacks for `order`, in a sentence; empty if it has it all.

    `nodes` are as `ray.nodes()` returns them. What counts is what a node has in all, in use or not.
    """
    alive = [each for each in nodes if each["Alive"]]
    fitting = [each for each in alive if _fits(order, each["Resources"])]
    if len(fitting) >= order.replicas:
        return ""
    needs = " and ".join(f"{amount:g} {name}{'s' * (amount != 1)}" for name, amount in bundle(order).items())
    return (
        f"{order.replicas} servers need {order.replicas} nodes, as each stands on a node of its own."
        f" {_of(len(alive))} alive, and {len(fitting)} of them"
        f" {'has' if len(fitting) == 1 else 'have'} {needs}"
    )


def bundle(order: LaunchOrder) -> dict[str, float]:
    """Return what Ray reserves for each server."""
    wanted = {"CPU": order.cpus, "GPU": order.gpus}
    # A bundle must not be empty, and a server without a reservation would be placed anywhere.
    return {name: amount for name, amount in wanted.items() if amount}


def _fits(order: LaunchOrder, resources: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0) >= amount for name, amount in bundle(order).items())


def _of(count: int) -> str:
    return "1 node is" if count == 1 else f"{count} nodes are"
