"""Sending ahead: when a batch may wait in a worker behind what executes there, and when it is taken back for another instance.

A batch that already lies in the worker begins the moment the one before it ends. That saves the way from the
worker to the server and back, some 0.2 ms. The price: it waits behind one execution though another instance
may be free sooner, and behind a hang for ever. So what may be lost is bounded:

- What was sent ahead is taken back once that execution has taken longer than `PATIENCE` and another instance is idle.
- An execution *lasts* when it has taken `PATIENCE` and twice as long as the last one of that instance. Nothing is sent ahead
  behind one that lasts where the model has other instances: it stays in the queue.
- Where no instance is ever idle, one that goes on lends its room: it gets what waits behind an execution that has taken
  `PATIENCE` and twice as long as its own last one. In even traffic no execution does, so nothing moves to and fro.

The measure is the last execution, and not a number of milliseconds, because on a machine that has too few
cores everything takes long, and it is then that a worker should have its next batch at hand.

Taking back costs a second copy of the inputs. Executions shorter than `PATIENCE` never cause it. Whether the
worker has begun by then is not for this module to say: `actors.arena`, "Claims".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

PATIENCE: Final = 0.005
"""Seconds that a batch may wait behind an execution while another instance could begin it."""


def outlasts(busy_since: float, now: float) -> bool:
    """Whether an execution has taken longer than a batch is to wait for; never where a lane is free (infinite)."""
    return now - busy_since > PATIENCE


def lasts(busy_since: float, took: float, now: float) -> bool:
    """Whether a worker is no place for what has not begun; `took` is how long its last execution did."""
    return now - busy_since > PATIENCE + 2 * took


@dataclass(frozen=True, slots=True)
class Standing:
    """What an instance is at. `room` is for batches of any kind, on a free lane or behind others; times are seconds."""

    busy_since: float  # when the last of its lanes began what it executes; infinite while one is free
    room: bool
    took: float = 0.0  # its last execution


def relievable(standings: Iterable[Standing], now: float) -> float:
    """Return since when at the latest an instance must have been busy for others to take what waits there.

    Minus infinity where no instance can take anything.
    """
    latest = -math.inf
    for each in standings:
        if not each.room:
            continue
        if each.busy_since == math.inf:
            return now - PATIENCE
        if not lasts(each.busy_since, each.took, now):
            latest = max(latest, now - PATIENCE - 2 * each.took)
    return latest


def overdue(standings: Sequence[Standing], now: float) -> list[int]:
    """Return which instances what has not begun is to be taken back from, the longest busy first."""
    latest = relievable(standings, now)
    late = [at for at, each in enumerate(standings) if each.busy_since < latest]
    return sorted(late, key=lambda at: standings[at].busy_since)
