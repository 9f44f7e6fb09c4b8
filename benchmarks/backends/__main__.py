"""Measures what a worker costs beside its framework in a process of its own.

    python -m benchmarks.backends                              # every framework that is installed
    python -m benchmarks.backends openvino --rows 64 --rounds 9

Three figures for each backend. *CPU*: of the worker for an inference, and of the framework by itself for the
same rows, in turn; the median of the ratios of neighbouring rounds. *Load*: of ten models one after the
other, until each is ready, and of ten processes that import the framework and load the same models. *Memory*:
what is resident of the worker, and of such a process, after the same inferences. Both have one thread, unless
`--threads` says otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from benchmarks import processes
from benchmarks.backends.frameworks import FRAMEWORKS, WIDTH, Framework
from benchmarks.helper import Helper
from benchmarks.payloads import Request, encode
from benchmarks.scenarios import MIB
from benchmarks.subjects import CHECKOUT, Subject, infer, running, wait_ready
from chaos.subject.ports import free_ports
from engine.settings.extras import is_missing

MODELS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured of one backend: seconds and bytes, each of the worker and of the framework alone."""

    backend: str
    cpu: Sequence[tuple[float, float]] = field(default_factory=list)
    load: tuple[float, float]
    memory: tuple[int, int]

    def line(self) -> str:
        """Return the row of a report."""
        ratio = median(ours / theirs for ours, theirs in self.cpu)
        ours, theirs = (median(side) * 1000 for side in zip(*self.cpu, strict=True))
        loads = [seconds / MODELS for seconds in self.load]
        worker, alone = (nbytes / MIB for nbytes in self.memory)
        return (
            f"{self.backend:14} {ours:8.3f} {theirs:8.3f} {ratio:6.3f}"
            f" {loads[0]:8.3f} {loads[1]:8.3f} {loads[0] / loads[1]:6.2f}"
            f" {worker:8.1f} {alone:8.1f} {worker - alone:+6.1f}"
        )


HEAD: Final = (
    f"{'':14} {'CPU ms an inference':>24} {'load of a model, s':>24} {'resident MiB':>24}\n"
    f"{'backend':14} "
    + " ".join(f"{'worker':>8} {'alone':>8} {each:>6}" for each in ("ratio", "ratio", "more"))
)


class Alone(Helper):
    """A framework by itself: a process of `benchmarks.backends.bare`."""

    def __init__(self, framework: Framework, version: Path, threads: int) -> None:
        super().__init__("benchmarks.backends.bare", framework.backend, str(version), str(threads))
        self.loaded = self.read()

    def cpu(self, count: int, rows: int) -> float:
        """Return the CPU seconds of an inference."""
        return float(self.tell(f"{count} {rows}")["cpu"]) / count


@contextmanager
def _server(repository: Path, scratch: Path) -> Iterator[Subject]:
    http, grpc, metrics = free_ports(3)
    command = [sys.executable, "-m", "engine", "serve", f"--model-repository={repository}"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--model-control-mode=explicit"]
    command += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    log = scratch / "server.log"
    with running(command, cwd=CHECKOUT, log=log) as child:
        subject = Subject(label="server", host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
        wait_ready(subject, child, log)
        yield subject


def _load(server: Subject, model: str) -> None:
    connection = server.connect()
    try:
        connection.request("POST", f"/v2/repository/models/{model}/load", body=b"{}")
        reply = connection.getresponse()
        said = reply.read()
        if reply.status != 200:
            raise SystemExit(f"{model} does not load: {said.decode()}")
    finally:
        connection.close()


def _workers_cpu(server: Subject) -> dict[int, int]:
    assert server.pid is not None
    return {each.pid: each.ticks for each in processes.family(server.pid)[1:]}


def _served(server: Subject, request: Request, count: int) -> tuple[float, int]:
    """Return the CPU seconds of an inference in the worker, and the worker's pid."""
    before = _workers_cpu(server)
    connection = server.connect()
    try:
        for _ in range(count):
            infer(connection, "m0", request)
    finally:
        connection.close()
    spent = {pid: ticks - before.get(pid, 0) for pid, ticks in _workers_cpu(server).items()}
    busiest = max(spent, key=lambda pid: spent[pid])
    return spent[busiest] * processes.TICK / count, busiest


def measure(framework: Framework, scratch: Path, given: argparse.Namespace) -> Figures:
    """Measure one backend."""
    repository = scratch / framework.backend
    versions = [repository / f"m{number}" / "1" for number in range(MODELS)]
    for version in versions:
        version.mkdir(parents=True)
        framework.write(version)
        (version.parent / "config.pbtxt").write_text(framework.configuration(given.threads))
    x = np.random.default_rng(0).normal(size=(given.rows, WIDTH)).astype(np.float32)
    request = encode({"X": x}, "binary")
    with _server(repository, scratch) as server:
        begun = time.perf_counter()
        for version in versions:
            _load(server, version.parent.name)
        served = time.perf_counter() - begun
        begun = time.perf_counter()
        for version in versions:
            with Alone(framework, version, given.threads):
                pass
        by_itself = time.perf_counter() - begun
        with Alone(framework, versions[0], given.threads) as bare:
            pairs = []
            worker = 0
            for at in range(given.rounds + 1):
                ours, worker = _served(server, request, given.count)
                theirs = bare.cpu(given.count, given.rows)
                if at:  # the first warms both up
                    pairs.append((ours, theirs))
            memory = processes.resident(worker), processes.resident(bare.pid)
    return Figures(backend=framework.backend, cpu=pairs, load=(served, by_itself), memory=memory)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backends", nargs="*", default=list(FRAMEWORKS), metavar="BACKEND")
    parser.add_argument("--rows", type=int, default=128, help="rows of an inference")
    parser.add_argument("--count", type=int, default=300, help="inferences of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    unknown = [name for name in given.backends if name not in FRAMEWORKS]
    if unknown:
        parser.error(f"no such backend: {', '.join(unknown)}; there are {', '.join(FRAMEWORKS)}")
    print(HEAD)
    for name in given.backends:
        if is_missing(name):
            print(f"{name:14} is not installed")
            continue
        with tempfile.TemporaryDirectory() as directory:
            print(measure(FRAMEWORKS[name], Path(directory), given).line(), flush=True)


if __name__ == "__main__":
    main()
