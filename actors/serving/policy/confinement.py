"""Whether a worker has taken more than its model's limits, and when to look again. See docs/worker_life.md.

Looking costs a little, and a worker that is looked at only now and then can overshoot. So the next look is
due when the limit could have been reached at the earliest: memory can't be filled faster than it can be
written, and processes can't be started faster than the kernel copies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.serving.policy.retries import Oom, TooManyProcesses
from actors.values.confinement import Confinement

FILLED_PER_SECOND: Final = 4 * 1024**3
"""Bytes of memory that a process can newly fill in a second, about: the kernel has to clear the pages."""

STARTED_PER_SECOND: Final = 2000.0
"""Processes that a process can start in a second, about."""

# Seconds; looking still earlier gains less than it costs.
SHORTEST: Final = 0.02
LONGEST: Final = 0.25


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of a worker and of all processes that it has started."""

    # Bytes, anonymous and shared, swapped out or not. Memory that several processes share counts for each of
    # them, or once if the measurement is exact.
    memory: int
    # Ended processes that are still listed are included.
    processes: int


def judge(usage: Usage, limits: Confinement) -> Oom | TooManyProcesses | None:
    """Return why a worker must be killed, or None."""
    if limits.memory and usage.memory > limits.memory:
        return Oom(usage.memory, limits.memory)
    if limits.processes and usage.processes > limits.processes:
        return TooManyProcesses(usage.processes, limits.processes)
    return None


def next_look(usage: Usage, limits: Confinement) -> float:
    """Return in how many seconds the worker, which keeps its limits now, should be looked at again."""
    waits = [LONGEST]
    if limits.memory:
        waits.append((limits.memory - usage.memory) / FILLED_PER_SECOND)
    if limits.processes:
        waits.append((limits.processes - usage.processes + 1) / STARTED_PER_SECOND)
    return max(SHORTEST, min(waits))
