"""What simulations have come by, counted by name.

A scenario that no longer brings something about proves nothing about it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from actors.catalog.loading import OUTDATED
from chaos.simulation.operators import Ordered
from chaos.simulation.outcomes import ANSWERED, LOST, Outcome
from chaos.simulation.plan import Scenario
from chaos.simulation.scenario import OF_ORDERS
from chaos.simulation.simulate import Verdict
from chaos.simulation.world.models import MODELS


def met(verdict: Verdict) -> Counter[str]:
    """Return what one simulation has come by."""
    return Counter(
        [
            *(f"{each.order.what} {_end_of(each)}" for each in verdict.orders),
            *_of_unloads(verdict.orders, verdict.outcomes),
            *(_told(each) for each in verdict.outcomes),
            *(f"{each.look.what} by {each.look.wire}" for each in verdict.looks if each.code == ANSWERED),
            *(f"recycled for {ceiling}" for ceiling in verdict.recycled.elements()),
            *_crashes(verdict.scenario, verdict.crashed),
        ]
    )


def _end_of(done: Ordered) -> str:
    if done.ok:
        return "done"
    if done.code == LOST:
        return "lost"
    if OUTDATED in done.message:
        return "superseded"
    if done.message.endswith(" came to no end"):
        return "cut short"
    return "not read" if done.code == "INTERNAL" else "failed"


def _of_unloads(orders: Sequence[Ordered], outcomes: Sequence[Outcome]) -> Iterator[str]:
    for done in orders:
        if done.ok and done.order.what == "unload":
            for each in outcomes:
                if (
                    each.ok
                    and each.request.model == done.order.model
                    and each.began < done.began < each.ended
                ):
                    yield "answered across an unload"


def _told(outcome: Outcome) -> str:
    if outcome.code == "NOT_FOUND":
        return "refused as unloaded"
    kind = MODELS[outcome.request.model].kind
    what = kind if kind in ("sequence", "decoupled") else "request"
    return f"{what} by {outcome.request.wire} {'answered' if outcome.ok else 'not answered'}"


def _crashes(scenario: Scenario, crashed: Sequence[str]) -> Iterator[str]:
    if scenario.startup is not None:
        for point in crashed:
            if point in OF_ORDERS:
                yield f"{point} among orders"
