"""What is measured besides load: start-up, idle memory, and the time a killed worker takes to be replaced."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import parsers, payloads, processes
from benchmarks.payloads import Request, WrongAnswer
from benchmarks.results import Memory
from benchmarks.scenarios import Scenario, Tensors
from benchmarks.subjects import Source, Subject, infer, tree

_PATIENCE = 30.0  # a worker that is not back by then is not coming back


class NoRecovery(Exception):
    """A killed worker was not replaced, or could not be found."""


def startup(source: Source, repository: Path, scratch: Path) -> float:
    """Return the seconds from the start of a server's process until it is ready with all of `repository`."""
    began = time.perf_counter()
    with source.serve(repository, scratch):
        return time.perf_counter() - began


def idle_memory(subject: Subject, *, settle: float = 1.0) -> Memory:
    """Return a server's resident memory after `settle` seconds of rest. `subject.pid` must be known."""
    if subject.pid is None:
        raise ValueError(f"{subject.label} was not started here")
    time.sleep(settle)
    server, *workers = (processes.resident(stat.pid) for stat in processes.family(subject.pid))
    return Memory(subject.label, server, workers)


def _worker(subject: Subject, model: str, other_than: int | None) -> int:
    """Return the pid of a model's worker: one of the server's own descendants, and not `other_than`."""
    if subject.pid is None:
        raise ValueError(f"{subject.label} was not started here")
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        ours = {stat.pid for stat in processes.family(subject.pid)[1:]}
        published = parsers.worker_pids(tree(subject), model)
        for pid in published:
            # A reply alone is not enough to kill a process.
            if pid != other_than and pid in ours:
                return pid
        time.sleep(0.01)
    raise NoRecovery(f"{subject.label}: the tree shows no worker of {model!r} among the server's processes")


def _until_good(subject: Subject, model: str, request: Request, expected: Tensors | None) -> None:
    """Ask until a good answer comes, one request at a time, each sent as soon as the last one failed."""
    deadline = time.monotonic() + _PATIENCE
    last: Exception | None = None
    connection = subject.connect()
    try:
        while time.monotonic() < deadline:
            try:
                outputs, _ = infer(connection, model, request)
            except WrongAnswer as refused:  # a 503 until the next worker stands
                last = refused
                # On few cores, leave the starting worker some time.
                time.sleep(0.001)
            except (OSError, http.client.HTTPException) as broken:
                last = broken
                connection.close()
            else:
                payloads.check(outputs, expected)
                return
    finally:
        connection.close()
    raise NoRecovery(f"{subject.label}: no good answer {_PATIENCE:.0f} s after the kill; last: {last!r}")


def recoveries(subject: Subject, scenario: Scenario, kills: int) -> Iterator[float]:
    """Kill a model's worker `kills` times; yield the seconds from each SIGKILL to the next good answer.

    Raises NoRecovery, or WrongAnswer if the server does not publish its tree.
    """
    request, expected = payloads.build(scenario)
    killed: int | None = None
    for _ in range(kills):
        killed = _worker(subject, scenario.model, other_than=killed)
        _until_good(subject, scenario.model, request, expected)
        began = time.perf_counter()
        os.kill(killed, signal.SIGKILL)
        _until_good(subject, scenario.model, request, expected)
        yield time.perf_counter() - began
