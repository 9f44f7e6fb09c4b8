"""How many requests wait for their execution, and how many are executed, read at a scrape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from actors.generation.generator import Generator
from actors.serving.model import ModelState
from actors.values.families import Families, Family


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
