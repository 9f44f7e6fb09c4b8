"""What simulations have come by, counted by name.

A scenario that no longer brings something about proves nothing about it any more.
"""

from __future__ import annotations

from collections import Counter

from actors.catalog.loading import OUTDATED
from chaos.simulation.operators import Ordered
from chaos.simulation.outcomes import ANSWERED, Outcome
from chaos.simulation.scenario import OF_ORDERS
from chaos.simulation.simulate import Verdict
from chaos.simulation.world.models import MODELS


def met(verdict: Verdict) -> Counter[str]:
    """Return what one simulation has come by."""
    unloads = [each for each in verdict.orders if each.ok and each.order.what == "unload"]
    among_orders = () if verdict.scenario.startup is None else verdict.crashed
    return Counter(
        [
            *(f"{each.order.what} {_end_of(each)}" for each in verdict.orders),
            *("answered across an unload" for each in verdict.outcomes if _across(each, unloads)),
            *(_told(each) for each in verdict.outcomes),
            *(f"language {_fate(each)}" for each in verdict.outcomes if each.request.told is not None),
            *(f"{each.look.what} by {each.look.wire}" for each in verdict.looks if each.code == ANSWERED),
            *(f"recycled for {ceiling}" for ceiling in verdict.recycled.elements()),
            *(f"{point} among orders" for point in among_orders if point in OF_ORDERS),
        ]
    )


def _end_of(done: Ordered) -> str:
    if OUTDATED in done.message:
        return "superseded"
    return {ANSWERED: "done", "INVALID_ARG": "failed"}.get(done.code, done.code)


def _across(outcome: Outcome, unloads: list[Ordered]) -> bool:
    return outcome.ok and any(
        outcome.request.model == each.order.model and outcome.began < each.began < outcome.ended
        for each in unloads
    )


def _fate(outcome: Outcome) -> str:
    """Return what became of a language model's answer."""
    if outcome.late:
        return "ended by its deadline"
    if not outcome.ok:
        return f"ended by {outcome.code} {'behind some text' if outcome.texts else 'before any'}"
    return "whole through a death" if outcome.attempts > 1 else "whole"


def _told(outcome: Outcome) -> str:
    if outcome.code == "NOT_FOUND":
        return "refused as unloaded"
    kind = MODELS[outcome.request.model].kind
    what = kind if kind in ("sequence", "decoupled", "language") else "request"
    return f"{what} by {outcome.request.wire} {'answered' if outcome.ok else 'not answered'}"
