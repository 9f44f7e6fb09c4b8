"""CPU time of processes by the nanosecond, and where processes may run."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes
from benchmarks.results import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """One load: answers a second, and CPU microseconds an answer took in each kind of process."""

    rate: float
    failed: int
    by_kind: Mapping[str, float]
    client: float  # microseconds of the load client
    busiest: float  # the share of one core that the busiest single process used
    idle: float  # the share of the machine that stayed unused

    @property
    def total(self) -> float:
        """Microseconds in all processes but the client."""
        return sum(self.by_kind.values())


def used(pids: Iterable[int]) -> int:
    """Return the nanoseconds that all threads of these processes have run."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return total


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs."""
    return [each.pid for each in processes.family(pid)[1:]]


def pin(pid: int, cores: Sequence[int]) -> None:
    """Let a process, and what it starts, run on these cores only, if the machine has them."""
    allowed = set(cores) & os.sched_getaffinity(0)
    if allowed:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), allowed)


def costs(kinds: Mapping[str, Sequence[int]], load: Callable[[], Load]) -> Costs:
    """Run a load, and share its CPU time out over kinds of processes."""
    every = [pid for pids in kinds.values() for pid in pids]
    before = {pid: used([pid]) for pid in every}
    childs, (waited, all_time) = _of_children(), _idle()
    result = load()
    now_waited, now = _idle()
    spent = {pid: used([pid]) - before[pid] for pid in every}
    return Costs(
        rate=result.rate,
        failed=result.errors + result.refused,
        by_kind={
            kind: sum(spent[pid] for pid in pids) / 1e3 / result.requests for kind, pids in kinds.items()
        },
        client=(_of_children() - childs) * 1e6 / result.requests,
        busiest=max(spent.values()) / 1e9 / result.seconds,
        idle=(now_waited - waited) / max(1, now - all_time),
    )


def _of_children() -> float:
    """Return the CPU seconds of children that were waited for: of load clients."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _idle() -> tuple[int, int]:
    """Return the ticks in which cores had nothing to do, and all ticks, stolen ones too."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return ticks[3] + ticks[4], sum(ticks)
