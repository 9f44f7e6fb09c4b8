"""Sending ahead: when a batch may wait in a worker, and when it is taken back for another instance.

A batch that already lies in the worker, behind the one that executes there, begins the moment that one ends.
That saves the way from the worker to the server and back, some 0.2 ms. The price is that it waits behind one
execution though another instance may be free sooner, and behind a hang for ever. So the possible loss is
bounded:

- A batch that was sent ahead is taken back once that execution has taken longer than `PATIENCE` and another
  instance is idle.
- An execution *lasts* when it has taken `PATIENCE` and twice as long as the last one of that instance. If the
  model has other instances, nothing is sent ahead behind an execution that lasts: it stays in the queue.
- If no instance is ever idle, an instance whose own execution does not last lends its room. It gets the
  batches that wait behind an execution that has taken `PATIENCE` and twice as long as the lender's own last
  one. In even traffic no execution takes that long, so nothing moves to and fro.

The measure is the last execution, and not a number of milliseconds. On a machine that has too few cores
everything takes long, and then most of all a worker should have its next batch at hand.

Taking back costs a second copy of the inputs. Executions shorter than `PATIENCE` never cause it. This module
does not decide whether the worker has begun by then: see `actors.wire.arena`, "Claims".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

PATIENCE: Final = 0.005
"""Seconds that a batch may wait behind an execution while another instance could begin it."""


def outlasts(busy_since: float, now: float) -> bool:
    """Whether an execution has taken longer than a batch may wait; never if a lane is free (infinite)."""
    return now - busy_since > PATIENCE


def lasts(busy_since: float, took: float, now: float) -> bool:
    """Whether a worker's execution lasts, so no batch should wait there; `took` is that of its last one."""
    return now - busy_since > PATIENCE + 2 * took


@dataclass(frozen=True, slots=True)
class Workload:
    """The state of an instance. `room` is for batches of any kind, on a free lane or behind others.

    Times are seconds.
    """

    # When the last of its lanes began its present execution; infinite while a lane is free.
    busy_since: float
    room: bool
    took: float = 0.0  # its last execution


def relievable(workloads: Iterable[Workload], now: float) -> float:
    """Return the latest start of an execution behind which others may take the waiting batches.

    It is minus infinity if no instance can take any.
    """
    latest = -math.inf
    for each in workloads:
        if not each.room:
            continue
        if each.busy_since == math.inf:
            return now - PATIENCE
        if not lasts(each.busy_since, each.took, now):
            latest = max(latest, now - PATIENCE - 2 * each.took)
    return latest


def overdue(workloads: Sequence[Workload], now: float) -> list[int]:
    """Return the instances whose batches that have not begun are to be taken back, the longest busy first."""
    latest = relievable(workloads, now)
    late = [at for at, each in enumerate(workloads) if each.busy_since < latest]
    return sorted(late, key=lambda at: workloads[at].busy_since)
