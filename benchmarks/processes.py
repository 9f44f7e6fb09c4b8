"""What /proc knows about the processes that the benchmarks started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import parsers
from benchmarks.parsers import ProcessStat

TICK: Final = 1.0 / os.sysconf("SC_CLK_TCK")
"""Seconds of a tick."""


def _read(pid: int | str) -> ProcessStat | None:
    try:
        return parsers.proc_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def _everything() -> Iterator[ProcessStat]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(entry.name)) is not None:
            yield stat


def family(pid: int) -> Sequence[ProcessStat]:
    """Return a process and all its descendants, the process first; empty if it is gone."""
    everything = {stat.pid: stat for stat in _everything()}
    members = [everything[pid]] if pid in everything else []
    for member in members:  # grows while it is walked: breadth first
        members += [stat for stat in everything.values() if stat.parent == member.pid]
    return members


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process tree has used, with that of children it has waited for."""
    return sum(stat.ticks for stat in family(pid)) * TICK


def resident(pid: int) -> int:
    """Return a process's resident bytes; 0 if it is gone."""
    try:
        return parsers.resident_bytes(Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def still_running(stat: ProcessStat) -> bool:
    """Whether this very process runs: not its zombie, and not a later one with its number."""
    now = _read(stat.pid)
    return now is not None and now.started == stat.started and not now.zombie


def wait_gone(stats: Sequence[ProcessStat], timeout: float) -> Sequence[ProcessStat]:
    """Wait up to `timeout` seconds for processes to end; return those that did not."""
    deadline = time.monotonic() + timeout
    while (left := [stat for stat in stats if still_running(stat)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
