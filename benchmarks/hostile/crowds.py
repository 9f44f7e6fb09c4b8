"""Measures what crowds of connections do to a server, and to other clients of it.

    python -m benchmarks.hostile.crowds                         # every kind of crowd, some 12 s each
    python -m benchmarks.hostile.crowds --only 'gRPC: open' --count 2000 --checkout ../before

Each crowd comes to a server of its own, stands for a while, is pressed (each connection sends one small piece
more, all at once) and is killed. In each phase it prints the loop's longest turn in CPU time of its own, the
longest collection of garbage in it, and the longest time that each of four well-meaning clients waited.
At the end it prints what the crowd cost in memory while it stood.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks import processes
from benchmarks.helper import Helper
from benchmarks.hostile import watched
from benchmarks.hostile.crowd import KINDS
from benchmarks.hostile.measure import NEIGHBOUR, write_models
from benchmarks.hostile.watched import Word
from benchmarks.subjects import CHECKOUT, Subject, running, wait_ready
from chaos.subject.ports import free_ports

_STANDS: Final = 3.0  # seconds
_AFTER: Final = 2.0  # seconds in which what was begun comes to its end


class Phases:
    """Writes a line for each phase."""

    def __init__(self, page: memoryview, beside: Helper) -> None:
        self._page, self._beside = page, beside
        self.begin()

    def begin(self) -> None:
        """Forget what was."""
        self._beside.tell("")
        for word in Word:
            self._page[word] = 0

    def end(self, phase: str) -> None:
        """Print what the phase that ends has brought."""
        page, clients = self._page, self._beside.tell("")
        waits = ", ".join(f"{name} {_told(told)}" for name, told in clients.items())
        print(
            f"  {phase:9} turn {page[Word.TURN] / 1e6:6.1f} ms, step {page[Word.STEP] / 1e6:5.1f}, collection"
            f" {page[Word.COLLECTION] / 1e6:5.1f}, loop {page[Word.USED] / 1e9:5.2f} s | {waits}",
            flush=True,
        )
        self.begin()


def _told(told: Mapping[str, float]) -> str:
    failed = f" ({told['failed']} of {told['asked']} failed)" if told["failed"] else ""
    return f"{told['longest'] * 1e3:.0f} ms{failed}"


@contextmanager
def _server(checkout: Path, scratch: Path, page: Path) -> Iterator[Subject]:
    http, grpc, metrics = free_ports(3)
    command = [sys.executable, "-m", "benchmarks.hostile.watched", str(page)]
    command += [f"--model-repository={scratch / 'models'}", "--http-address=127.0.0.1"]
    command += ["--grpc-address=127.0.0.1", f"--http-port={http}", f"--grpc-port={grpc}"]
    command += [f"--metrics-port={metrics}"]
    log = scratch / "server.log"
    with running(command, cwd=checkout, log=log) as child:
        subject = Subject(label="server", host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
        wait_ready(subject, child, log)
        yield subject
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(("a turn", "a step", "a collection")):
            print("      " + line)


def _measure(name: str, count: int, checkout: Path, scratch: Path) -> None:
    path = scratch / "longest"
    path.unlink(missing_ok=True)
    page = memoryview(watched.mapped(path)).cast("Q")
    kind = KINDS[name]
    with _server(checkout, scratch, path) as server:
        assert server.grpc_port is not None
        assert server.pid is not None
        port = server.grpc_port if kind.grpc else server.port
        with (
            Helper(
                "benchmarks.hostile.crowd", f"--port={port}", f"--kind={name}", f"--count={count}"
            ) as crowd,
            Helper(
                "benchmarks.hostile.beside",
                f"--http={server.port}",
                f"--grpc={server.grpc_port}",
                f"--model={NEIGHBOUR}",
            ) as beside,
        ):
            time.sleep(_AFTER)
            phases = Phases(page, beside)
            time.sleep(_AFTER)
            phases.end("alone")
            before = processes.resident(server.pid)
            came = crowd.tell("come")["connections"]
            time.sleep(_AFTER)
            phases.end("comes")
            time.sleep(_STANDS)
            phases.end("stands")
            taken = processes.resident(server.pid) - before
            if kind.piece:
                crowd.tell("press")
                time.sleep(_AFTER)
                phases.end("presses")
            crowd.kill()
            time.sleep(_AFTER)
            phases.end("dies")
            print(f"  {came} came; {taken / 1024:.0f} KiB more in all")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="only crowds whose name holds this")
    parser.add_argument("--count", type=int, default=10_000, help="connections of each crowd")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="where the server's code is")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as scratch:
        write_models(Path(scratch) / "models")
        for name in KINDS:
            if given.only in name:
                print(f"{name} (load {os.getloadavg()[0]:.1f})", flush=True)
                _measure(name, given.count, given.checkout.absolute(), Path(scratch))


if __name__ == "__main__":
    main()
