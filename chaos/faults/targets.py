"""Which parts of the reference workload a fault may hit.

It also says which models feel the fault, and how much can be under way there.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.values.events import Event
from chaos.faults.base import NoTarget, Stage
from chaos.record.records import Excuse, LogExpected
from chaos.subject.server import Node, serving
from chaos.workload.backends.kinds import BACKENDS
from chaos.workload.control import journal_folder
from chaos.workload.repository import INSTANCES

PYTHON: Final = ("echo", "slow", "batching", "counter", "stream")
"""Models whose executions are never run twice."""

PURE: Final = ("add_sub",)
"""Models whose executions are run again, so that no client hears of a worker's death."""

_RUN_AGAIN: Final = {*PURE, *(kind for kind in BACKENDS if kind != "family")}

_BATCH: Final[Mapping[str, int]] = {
    "batching": 8,
    "counter": 4,
    "stream": 4,
    **dict.fromkeys(_RUN_AGAIN, 8),
}
"""By model, the requests that a worker may have in hand at once, if that is more than one.

These are the rows of a batch; slots, each with a sequence that is lost with the worker; and for `stream`,
whose execution goes on after `execute`, the requests that are open at its load.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance that serves, as the tree shows it."""

    model: str
    path: str
    pid: int


async def instances(stage: Stage, models: Collection[str]) -> list[Instance]:
    """Return the instances of these models that serve now, in the tree's order."""
    return [each for each in _instances(await stage.server.tree()) if each.model in models]


async def one_instance(stage: Stage, target: random.Random, models: Sequence[str]) -> Instance:
    """Return an instance of one of these models. Raises NoTarget if none serves."""
    found = await instances(stage, models)
    there = [model for model in models if any(each.model == model for each in found)]
    if not there:
        raise NoTarget(f"no instance of {', '.join(models)} serves just now")
    model = target.choice(there)
    return target.choice([each for each in found if each.model == model])


def _instances(node: Node) -> Iterator[Instance]:
    parts = node["path"].split("/")
    if len(parts) == 5 and parts[0] == "models" and parts[3] == "instances":
        if serving(node):
            yield Instance(model=parts[1], path=node["path"], pid=node["info"]["pid"])
        return
    for child in node["children"]:
        yield from _instances(child)


def felt_by(model: str) -> tuple[str, ...]:
    """Return the models whose requests go through this one: itself, and the pipeline for its steps."""
    return (model, "pipeline") if model in ("echo", "add_sub") else (model,)


def under_way(model: str) -> int:
    """Return how many requests one worker may be executing."""
    return _BATCH.get(model, 1)


def lost_with_workers(model: str, workers: int = 1) -> tuple[Excuse, ...]:
    """Return what the sudden death of so many workers excuses.

    For a pure model that is nothing, else what the workers were executing. A sequence is lost with the worker
    that had it; its client hears of that in the answer to its next step.
    """
    if model in _RUN_AGAIN:
        return ()
    most = workers * under_way(model)
    if model == "counter":
        return (Excuse(models=(model,), codes=("UNAVAILABLE", "INVALID_ARGUMENT"), most=most, after=1.0),)
    return (Excuse(models=felt_by(model), most=most, after=0.1),)


def lost_with_all_workers(model: str) -> tuple[Excuse, ...]:
    """Return what the death of every worker of a model excuses, until the first is back.

    No request waits in the queue of `slow` for over half a second: that is the model's own rule
    (`chaos.workload.repository`).
    """
    impatient = (Excuse(models=(model,), most=15, after=1.0),) if model == "slow" else ()
    return (*lost_with_workers(model, INSTANCES), *impatient)


def node_at(node: Node, path: str) -> Node:
    """Return the node at a path of the tree below one; nothing if it is not there."""
    if node["path"] == path:
        return node
    return next(filter(None, (node_at(child, path) for child in node["children"])), {})


def exit_of(instance: Instance, reason: str, *, within: float = 1.0) -> LogExpected:
    """Return the line that has to tell of the end of an instance's worker."""
    keys = {"actor": instance.path, "pid": instance.pid, "reason": reason}
    return LogExpected(event=Event.WORKER_EXITED.value, keys=keys, within=within)


def signalled(pid: int, number: signal.Signals) -> bool:
    """Send a signal. Returns whether there was still such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


_TAIL: Final = 4096  # bytes, in which the last line of a journal is


def at_work(run: Path, instance: Instance) -> bool:
    """Whether a worker has begun with something and not ended it: the last line that it wrote is a beginning.

    A worker without a journal has not.
    """
    try:
        with (journal_folder(run) / f"{instance.model}-{instance.pid}.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return False
    return bool(lines) and not json.loads(lines[-1])["end"]
