"""Processes as one sees them from outside."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psutil

from chaos.record.outcome import now
from chaos.record.records import Phase, Sample

_ENDED_WITHIN: Final = 5.0


def descendants(pid: int) -> list[psutil.Process]:
    """Return every process that descends from this one and lives; none if there is no such process."""
    try:
        return [each for each in psutil.Process(pid).children(recursive=True) if alive(each)]
    except psutil.NoSuchProcess:
        return []


def with_variable(name: str, value: str) -> list[psutil.Process]:
    """Return every living process that has this variable in its environment, as far as that may be read."""
    return [each for each in psutil.process_iter() if _variable(each, name) == value and alive(each)]


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):  # it has just ended, or is none of ours
        return None


def alive(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie, which waits for its parent to read its exit status, does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill those of the processes that still live, and wait until they have ended, for 5 seconds at most."""
    killed = list(processes)
    for each in killed:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(killed, _ENDED_WITHIN)


def sample(pid: int, phase: Phase) -> Sample:
    """Return what a server and its children take now. Raises psutil.NoSuchProcess where it has ended."""
    server = psutil.Process(pid)
    with server.oneshot():
        rss, threads, descriptors = server.memory_info().rss, server.num_threads(), server.num_fds()
    children = descendants(pid)
    return Sample(
        t=now(),
        rss=rss,
        workers_rss=sum(map(_rss, children)),
        descriptors=descriptors,
        threads=threads,
        children=len(children),
        phase=phase,
    )


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
