"""The functions into which bugs are put: each keeps a promise, and nothing else in the product keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TARGETS: Final[Mapping[str, str]] = {
    "wants_restart": "a permanent child is started again, a temporary one is not",
    "affected": "rest_for_one restarts the failed child and those after it",
    "RestartWindow.exceeded": "a supervisor gives up when its budget is used up, and not before",
    "restart:judge": "a row of deaths ends with progress, and backoff grows only within a row",
    "Branch._stop_all": "children are stopped from right to left",
    "Branch._restart": "a group's children start one after the other",
    "_wants_another_life": "a restart that fails is tried again",
    "after_death": "each request of a dead worker is put back, suspected or answered, and exactly once",
    "_halves": "bisection keeps both halves of a suspect batch",
    "_Inquest.accuse": "a request that kills its worker alone is not tried for ever",
    "SuspectQueue.next": "suspects run one group at a time",
    "RequestQueue.take": "what is cancelled is not executed, and the bytes of what leaves are not counted",
    "RequestQueue.expire": "a request whose time is up is answered, and no other",
    "RequestQueue.next_expiry": "the scheduler wakes for the earliest deadline",
    "BatchPolicy.decide": "a batch begins when it is full or due",
    "Scatter._column": "every request of a batch gets its own rows",
    "PartStream.receive": "a stream of responses goes on as long as its client takes them",
    "Slot.release": "a slot is free when nothing holds it",
    "ControlPage.begin": "the page names the batch that executes",
    "BatchReplies._read": "a request of a batch sees its own inputs",
    "onward": "an answer that goes on in another engine is as long as it was to be",
    "WorkerBatch.fail": "what a model raises for a whole batch answers each request",
}
"""Functions by name, see `chaos.mutations.operators`, and the promise of each."""
