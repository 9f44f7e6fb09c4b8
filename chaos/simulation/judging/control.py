"""What the repository API may answer to orders, and what must be true of a model after them.

Orders that overlapped have been carried out in some order that was not observed. So the possible outcomes for
a model are found by trying every order that agrees with this: an order that was answered before another was
asked comes first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from typing import Final

from actors.catalog.loading import OUTDATED
from chaos.simulation.faults import Blow, Window, met
from chaos.simulation.operators import Ordered
from chaos.simulation.orders import ATTEMPTS
from chaos.simulation.outcomes import LOST
from chaos.simulation.world.models import MODELS
from chaos.simulation.world.workers import Journal

# Seconds by which clocks of one simulation may differ because of rounding.
BARELY: Final = 0.001

_OUTDATED: Final = re.compile(rf"(?:version \d+ is at UNAVAILABLE state: )?{re.escape(OUTDATED)};")


class Standing(Enum):
    """What has become of a model."""

    SERVES = "serves"
    UNLOADED = "unloaded"
    FAILED = "failed to load"


class Control:
    """Knows the orders of one simulation.

    `orders` may go on growing, and orders under way may be carried out meanwhile.
    """

    def __init__(
        self,
        startup: Sequence[str] | None,
        orders: Sequence[Ordered],
        *,
        journal: Journal,
        windows: Sequence[Window],
        blows: Sequence[Blow],
    ) -> None:
        """`startup` is None if there is no model control.

        Then everything is loaded, and there are no orders.
        """
        self._startup = (
            None if startup is None else {*startup, *(s for m in startup for s in MODELS[m].steps)}
        )
        self._orders = orders
        self._journal = journal
        self._windows = windows
        self._blows = blows

    def first(self, model: str) -> Standing:
        """Return what is true of a model once the server has started."""
        loaded = self._startup is None or model in self._startup
        return Standing.SERVES if loaded else Standing.UNLOADED

    # -- requests --------------------------------------------------------------------------------------------

    def may_be_gone(self, model: str, at: float) -> bool:
        """Whether a request that comes at `at` may find the model unloaded."""
        takers = [
            (each.began, each.ended)
            for each in self._orders
            if each.order.what == "unload" and _concerns(each, model)
        ]
        if self.first(model) is Standing.UNLOADED:
            takers.append((-math.inf, -math.inf))
        return any(
            began <= at + BARELY and at - BARELY <= self._back(model, ended) for began, ended in takers
        )

    def was_unloaded(self, model: str, *, by: float) -> bool:
        """Whether it may have been by then."""
        return any(
            each.order.what == "unload" and each.began <= by and _concerns(each, model)
            for each in self._orders
        )

    def must_be_gone(self, model: str, begin: float, end: float) -> bool:
        """Whether it was unloaded before `begin`, and no order can have loaded it until `end`."""
        takers = [each.began for each in self._orders if _unloads(each, model) and each.ended < begin]
        if self.first(model) is Standing.UNLOADED:
            takers.append(-math.inf)
        loads = [each for each in self._orders if each.order.what == "load" and _concerns(each, model)]
        return any(all(each.ended < began or each.began > end + BARELY for each in loads) for began in takers)

    def _back(self, model: str, after: float) -> float:
        """Return when it surely serves again, if it was unloaded by `after`."""
        return min(
            (
                each.ended
                for each in self._orders
                if each.ok
                and each.order.what == "load"
                and each.began >= after
                and model in (each.order.model, *MODELS[each.order.model].steps)
            ),
            default=math.inf,
        )

    # -- what is true in the end -----------------------------------------------------------------------------

    def standings(self, model: str) -> AbstractSet[Standing]:
        """Return what may be true of a model once everything has come to rest."""
        orders = tuple(each for each in self._orders if _concerns(each, model))

        @cache
        def after(done: frozenset[int]) -> frozenset[Standing]:
            """Return what may be true after those; the last of them was asked before any other had ended."""
            if not done:
                return frozenset((self.first(model),))
            found: set[Standing] = set()
            for last in done:
                before = done - {last}
                if all(orders[each].began <= orders[last].ended for each in before):
                    for standing in after(before):
                        found |= _effects(orders[last], model, standing)
            return frozenset(found)

        return after(frozenset(range(len(orders))))

    # -- answers ---------------------------------------------------------------------------------------------

    def complaints(self) -> Iterator[str]:
        """Yield what is wrong with answers to orders."""
        for each in self._orders:
            if not each.code:
                yield f"an order was not answered: {each}"
            elif not (each.ok or self._excused(each)):
                yield f"an order was answered with what nothing excuses: {each}"

    def _excused(self, done: Ordered) -> bool:
        name = done.order.model
        if done.code == LOST:
            return met(self._windows, "connections", "", done.began, math.inf)
        if done.code == "INTERNAL" and done.message.endswith(" came to no end"):
            return self._struck(done)
        if done.order.what == "unload":
            return False
        if done.code == "INTERNAL":
            unread = f"failed to load '{name}', failed to poll from model repository"
            return done.message.startswith(f"{unread}: ") and any(
                met(self._windows, "unreadable", each, done.began, done.ended) for each in ("", name)
            )
        told = done.message.removeprefix(f"load failed for model '{name}': ").removesuffix("\n")
        if done.code != "INVALID_ARG" or told == done.message:
            return False
        if _OUTDATED.fullmatch(told):
            return any(
                _concerns(each, name)
                and each.order.what == "unload"
                and each.began <= done.ended
                and done.began <= each.ended
                for each in self._orders
            )
        return self._troubled(done, name) or self._lacks_parts(done)

    def _troubled(self, done: Ordered, model: str) -> bool:
        """Whether so many loads of the model were made to fail that the order fails."""
        journal = self._journal
        times = [
            *journal.load_failures.get(model, ()),
            *journal.deaths.get(model, ()),
            *journal.launches_refused,
        ]
        failed = sum(done.began <= at <= done.ended for at in times)
        suspended = met(self._windows, "suspended", model, done.began, done.ended)
        return failed >= ATTEMPTS or suspended or self._struck(done)

    def _lacks_parts(self, done: Ordered) -> bool:
        """Whether a model that it is composed of may have been gone, or have failed to load."""
        return any(
            self.may_be_gone(step, done.began)
            or self._troubled(done, step)
            or met(self._windows, "unreadable", step, done.began, done.ended)
            or met(self._windows, "unreadable", "", done.began, done.ended)
            or any(
                each.order.what == "unload" and each.began <= done.ended and done.began <= each.ended
                for each in self._orders
                if _concerns(each, step)
            )
            for step in MODELS[done.order.model].steps
        )

    def _struck(self, done: Ordered) -> bool:
        """Whether an actor that it needs was made to crash meanwhile."""
        names = _family(done.order.model)
        # These stand above the lanes, and take the lanes along.
        roots = ("models", "repository", "repository/lanes")
        lanes = [f"repository/lanes/{name}" for name in names]
        return any(
            done.began <= blow.at <= done.ended
            and (
                blow.path in (*roots, *lanes)
                or any(blow.path.startswith((f"models/{name}/", f"models/{name}@")) for name in names)
            )
            for blow in self._blows
        )


def _family(model: str) -> set[str]:
    """Return the model, what it is composed of, and what is composed of it."""
    return {
        model,
        *MODELS[model].steps,
        *(name for name, each in MODELS.items() if model in each.steps),
    }


def _concerns(done: Ordered, model: str) -> bool:
    return model in _family(done.order.model)


def _unloads(done: Ordered, model: str) -> bool:
    return done.ok and done.order.what == "unload" and done.order.model == model


_FAILED: Final[Mapping[Standing, AbstractSet[Standing]]] = {
    Standing.SERVES: {Standing.SERVES},
    Standing.UNLOADED: {Standing.UNLOADED, Standing.FAILED},
    Standing.FAILED: {Standing.FAILED},
}
"""The state after a load that failed.

A version that serves goes on, and a model that could not be read is not mentioned.
"""


def _effects(done: Ordered, model: str, before: Standing) -> AbstractSet[Standing]:
    """Return what may be true of a model after an order, where `before` was true."""
    own = done.order.model == model
    if done.order.what == "unload":
        if own and done.ok:
            return {Standing.UNLOADED}
        taken = own or model not in MODELS[done.order.model].steps or done.order.dependents
        return {before, Standing.UNLOADED} if taken else {before}
    if own and done.ok:
        return {Standing.SERVES}
    if own and OUTDATED in done.message:
        return {before}
    known = own and done.code != LOST and not done.message.endswith(" came to no end")
    return _FAILED[before] if known else {Standing.SERVES, *_FAILED[before]}
