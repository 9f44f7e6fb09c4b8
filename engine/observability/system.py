"""What the kernel says about the machine and this process, read from /proc.

The kernel makes the files in memory, so that reading them takes microseconds and needs no thread.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from actors.seams import faults
from actors.supervision.context import ChildContext
from actors.values.families import Families, Family, SplitFamily, by

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_utilization(before: Sequence[int], after: Sequence[int]) -> float:
    """Return the busy share of the time between two `cpu` lines of /proc/stat, between 0 and 1.

    The columns are user, nice, system, idle, iowait, irq, softirq and steal; guest time is part of user's.
    """
    spent = [late - early for early, late in zip(before, after, strict=True)]
    total = sum(spent)
    idle = spent[3] + spent[4]
    return min(1.0, max(0.0, 1 - idle / total)) if total > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSample:
    """CPU use since the sample before, and memory in bytes."""

    cpu_utilization: float
    memory_total: int
    memory_used: int


class MachineSampler:
    """Samples the machine, at most once an `interval` of seconds.

    CPU use needs a span to be measured over.
    """

    def __init__(self, *, interval: float, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self._interval = interval
        self._clock = clock
        self._proc = proc
        self._ticks = self._read_ticks()
        self._latest: MachineSample | None = None
        self._due = 0.0

    def sample(self) -> MachineSample:
        """Return the present sample, a new one if the last has become too old."""
        now = self._clock()
        if self._latest is None or now >= self._due:
            ticks = self._read_ticks()
            total, available = self._read_memory()
            self._latest = MachineSample(
                cpu_utilization=cpu_utilization(self._ticks, ticks),
                memory_total=total,
                memory_used=total - available,
            )
            self._ticks = ticks
            self._due = now + self._interval
        return self._latest

    def _read_ticks(self) -> list[int]:
        with (self._proc / "stat").open() as lines:
            return [int(word) for word in lines.readline().split()[1:9]]

    def _read_memory(self) -> tuple[int, int]:
        values = {"MemTotal": 0, "MemAvailable": 0}
        with (self._proc / "meminfo").open() as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in values:
                    values[name] = int(value.split()[0]) * 1024
        return values["MemTotal"], values["MemAvailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """The server process itself, whose leaks would show here first."""

    cpu_seconds: float
    resident_bytes: int
    open_descriptors: int
    most_descriptors: int


def sample_process(proc: Path = Path("/proc")) -> ProcessSample:
    """Return what this process uses."""
    own = proc / "self"
    # The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    fields = (own / "stat").read_text().rpartition(")")[2].split()
    user, system, resident = int(fields[11]), int(fields[12]), int(fields[21])
    return ProcessSample(
        cpu_seconds=(user + system) / _TICKS,
        resident_bytes=resident * _PAGE,
        open_descriptors=len(os.listdir(own / "fd")),
        most_descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


MACHINE: Final[Families[MachineSample]] = (
    Family("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", lambda s: s.cpu_utilization),
    Family(
        "nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", lambda s: s.memory_total
    ),
    Family("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", lambda s: s.memory_used),
)

# There is no such pool, and a dashboard that divides these two expects them to exist.
POOLS: Final[Families[None]] = (
    Family(
        "nv_pinned_memory_pool_total_bytes",
        "gauge",
        "Pinned memory pool total memory size, in bytes",
        lambda _: 0,
    ),
    Family(
        "nv_pinned_memory_pool_used_bytes",
        "gauge",
        "Pinned memory pool used memory size, in bytes",
        lambda _: 0,
    ),
)

PROCESS: Final[Families[ProcessSample]] = (
    Family(
        "process_cpu_seconds_total",
        "counter",
        "Total user and system CPU time spent in seconds.",
        lambda s: s.cpu_seconds,
    ),
    Family(
        "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", lambda s: s.resident_bytes
    ),
    Family("process_open_fds", "gauge", "Number of open file descriptors.", lambda s: s.open_descriptors),
    Family(
        "process_max_fds", "gauge", "Maximum number of open file descriptors.", lambda s: s.most_descriptors
    ),
)


# -- how late the event loop runs. A loop that lags makes every request wait, whatever the cause

_WINDOW: Final = 30.0


class LoopLag:
    """The lag of a timer, in seconds: the last one, and the highest of the last half minute to minute.

    The maximum forgets old peaks, so that it is a gauge that an alert can clear, and no scrape resets it for
    another.
    """

    def __init__(self) -> None:
        self.last = 0.0
        self._peak = 0.0
        self._previous_peak = 0.0
        self._turned_at = 0.0

    @property
    def highest(self) -> float:
        """The highest lag seen lately."""
        return max(self._peak, self._previous_peak)

    def record(self, lag: float, now: float) -> None:
        """Note that a timer due at `now - lag` fired at `now`."""
        if faults.points is not None:
            faults.points.passing("loop_lag.record")
        if now - self._turned_at >= _WINDOW:
            # After a gap longer than a window, nothing recent is left to remember.
            self._previous_peak = self._peak if now - self._turned_at < 2 * _WINDOW else 0.0
            self._peak = 0.0
            self._turned_at = now
        self.last = lag
        self._peak = max(self._peak, lag)


LAG: Final[Families[LoopLag]] = (
    SplitFamily(
        "tritium_loop_lag_seconds",
        "gauge",
        "How late the event loop runs: at the last look, and at worst within the last minute",
        lambda lag: by("stat", [("last", lag.last), ("max", lag.highest)]),
    ),
)


async def measure_loop_lag(ctx: ChildContext, lag: LoopLag, *, interval: float = 0.1) -> None:
    """Sleep and see how late it got, for ever. The start function of a permanent child."""
    ctx.started()
    while True:
        due = trio.current_time() + interval
        await trio.sleep_until(due)
        now = trio.current_time()
        lag.record(max(0.0, now - due), now)
