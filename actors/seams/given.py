"""What a server takes from its machine below the level of its own objects: threads, alarms, fault points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from actors.seams import alarm, faults, threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """The defaults are those of production."""

    # None: trio's own.
    threads: threads.Threads | None = None
    # Whether precise timers ring. They ring on the machine's clock, so not where the run has another one.
    alarms: bool = True
    points: faults.Points | None = None


@contextmanager
def giving(seams: Seams) -> Iterator[None]:
    """Give them to the code of this run of trio. Fault points are given around the block."""
    threads.give(seams.threads)
    alarm.give(rings=seams.alarms)
    with faults.given(seams.points):
        yield
