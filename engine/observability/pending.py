"""How much there is to do: for a scrape of all requests, and for a client of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from actors.generation.generator import Generator
from actors.serving.model import ModelState
from actors.serving.routing.roster import Roster
from actors.values.families import Families, Family
from actors.values.interfaces import ModelLoad
from actors.values.requests import ServedModel
from actors.values.specs import ModelKey


class RequestLoad(NamedTuple):
    """How many requests wait for their execution, and how many are being executed."""

    pending: int = 0
    running: int = 0


def waiting_requests(state: ModelState) -> int:
    """Return how many requests wait in a version's queue, behind batches that execute, or under suspicion.

    Those of an ensemble wait for its steps, and are counted by the steps' models (contract, observability.md
    section 1.3).
    """
    if state.composite is not None:
        return 0
    held = sum(each.held.waiting for each in state.instances if each.worker is not None)
    return len(state.queue) + held + sum(len(each.suspects) for each in state.instances)


def request_load(state: ModelState) -> RequestLoad:
    """Return what a version has accepted and not answered, by whether it executes.

    Each accepted request is counted once, whatever became of its worker: until a dead worker is buried its
    requests are taken to run, and then those that run again wait.
    """
    composite = state.composite
    if isinstance(composite, Generator):
        return RequestLoad(composite.waiting, composite.running)
    # The requests of a language model's engine are those of the model, an ensemble's those of its steps.
    if composite is not None or state.whole is not None:
        return RequestLoad()
    pending = waiting_requests(state)
    return RequestLoad(pending, max(0, len(state.in_flight) - pending))


def total_load(states: Iterable[ModelState]) -> RequestLoad:
    """Return what versions have to do together."""
    pending = running = 0
    for each in map(request_load, states):
        pending += each.pending
        running += each.running
    return RequestLoad(pending, running)


FAMILIES: Final[Families[RequestLoad]] = (
    Family(
        "tritium_requests_pending",
        "gauge",
        "Requests of all models that wait for their execution to start",
        lambda load: load.pending,
    ),
    Family(
        "tritium_requests_running",
        "gauge",
        "Requests of all models that are being executed; of a language model, those that have a token",
        lambda load: load.running,
    ),
)


class LoadReports:
    """Implements `actors.values.interfaces.ModelLoads`."""

    def __init__(self, roster: Roster, cache_used: Callable[[ModelKey, int], float | None]) -> None:
        """`cache_used` returns the part of its engines' caches that a language model uses."""
        self._roster = roster
        self._cache_used = cache_used

    def of(self, model: ServedModel) -> ModelLoad:
        """Return what a model has to do (`ModelLoads`)."""
        if isinstance(model, ModelState):
            return self._of_state(model)
        # Several versions share its requests.
        return _together([self._of_state(each) for each in self._roster.ready(model.spec.key).values()])

    def _of_state(self, state: ModelState) -> ModelLoad:
        composite = state.composite
        if isinstance(composite, Generator):
            used = self._cache_used(state.spec.key, state.spec.version)
            size = composite.sample().cache
            return ModelLoad(
                queue_depth=composite.waiting,
                utilization=used,
                cache_used=used,
                max_tokens=None if size is None else size.block_size * size.blocks,
            )
        if composite is not None:
            parts = [
                self._of_state(each)
                for name in state.spec.depends_on
                for key in self._roster.keys(name)
                for each in self._roster.ready(key).values()
            ]
            return _together(parts)
        lanes = busy = 0
        for each in state.rotation:
            if each.worker is not None:
                lanes += each.spec.lanes
                busy += min(each.spec.lanes, len(each.held.outstanding) + len(each.held.open))
        return ModelLoad(queue_depth=waiting_requests(state), utilization=busy / lanes if lanes else None)


def _together(loads: Sequence[ModelLoad]) -> ModelLoad:
    """Return the load of models that have to do the same work: it ends as late as the busiest lets it."""
    told = [each.utilization for each in loads if each.utilization is not None]
    return ModelLoad(
        queue_depth=sum(each.queue_depth for each in loads), utilization=max(told) if told else None
    )
