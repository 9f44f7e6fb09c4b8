"""Starts an owner and its protocol processes, and loads them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import clients, payloads
from benchmarks.design.many_cores.measure import Costs, children, costs, pin
from benchmarks.grpc import clients as grpc_clients
from benchmarks.grpc import judge
from benchmarks.grpc import payloads as grpc_payloads
from benchmarks.grpc.scenarios import GRPC_SCENARIOS, Shape
from benchmarks.repository import write_some
from benchmarks.results import Load
from benchmarks.scenarios import SCENARIOS
from benchmarks.subjects import CHECKOUT, NotStarted, Subject, running, wait_ready
from chaos.subject.ports import free_ports

MODEL: Final = "onnx_add_sub"
_HTTP: Final = next(each for each in SCENARIOS if each.name == "onnx-binary")
_GRPC: Final = next(each for each in GRPC_SCENARIOS if each.name == "grpc-unary")
_START: Final = 20.0
_LEAVE: Final = 0.1

Loader = Callable[[float], Load]


@dataclass(frozen=True, slots=True)
class Owner:
    """A server that takes requests from rings at `path`, and from its own ports."""

    subject: Subject
    path: Path
    pid: int

    @property
    def kinds(self) -> Mapping[str, Sequence[int]]:
        """Its processes by kind."""
        return {"owner": [self.pid], "worker": children(self.pid)}


@contextmanager
def owner(scratch: Path) -> Iterator[Owner]:
    """Run an owner of one ONNX model. Raises NotStarted."""
    models = scratch / "models"
    models.mkdir()
    if left_out := write_some(models, [MODEL]):
        raise NotStarted(f"{MODEL}: {left_out[MODEL]}")
    http, grpc, metrics = free_ports(3)
    path, log = scratch / "owner.sock", scratch / "owner.log"
    command = [sys.executable, "-m", "benchmarks.design.many_cores.owner", str(path)]
    command += [f"--model-repository={models}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    command += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    with running(command, cwd=CHECKOUT, log=log) as child:
        subject = Subject(label="owner", host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
        wait_ready(subject, child, log)
        _until(path.exists, child, log)
        yield Owner(subject, path, child.pid)


@contextmanager
def protocols(of: Owner, count: int, scratch: Path) -> Iterator[tuple[Subject, list[int]]]:
    """Run so many protocol processes, which share a port for each protocol. Raises NotStarted."""
    http, grpc = free_ports(2)
    command = [sys.executable, "-m", "benchmarks.design.many_cores.protocol", str(of.path)]
    command += [str(http), str(grpc)]
    with ExitStack() as stack:
        logs = [scratch / f"protocol{number}.log" for number in range(count)]
        every = [stack.enter_context(running(command, cwd=CHECKOUT, log=log, grace=_LEAVE)) for log in logs]
        for child, log in zip(every, logs, strict=True):
            _until(partial(_listens, child.pid), child, log)
        yield (
            Subject(label="protocol", host="127.0.0.1", port=http, grpc_port=grpc),
            [child.pid for child in every],
        )


def _listens(pid: int) -> bool:
    """Whether a process holds sockets that listen: at least as many as both protocols need."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[3] == "0A" and fields[9] in inodes for fields in table) >= 2


def _until(true: Callable[[], bool], child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START
    while not true():
        if child.poll() is not None or time.monotonic() > deadline:
            raise NotStarted(f"{log.name}: {log.read_text()[-500:]}")
        time.sleep(0.02)


def over_http(subject: Subject, concurrency: int) -> Loader:
    """Return what loads a subject with binary inferences, one answer of it checked."""
    request, expected = payloads.build(_HTTP)
    outputs, _ = subject.infer(MODEL, request)
    payloads.check(outputs, expected)
    url = subject.url(MODEL, 0)
    return lambda seconds: clients.wrk(url, request, concurrency=concurrency, seconds=seconds)


def over_grpc(subject: Subject, shape: Shape) -> Loader:
    """Return what loads a subject with unary calls, one answer of it checked."""
    assert subject.grpc_port is not None
    address = judge.Address(subject.host, subject.grpc_port)
    message = grpc_payloads.encode(_GRPC.first, _GRPC.inputs()).SerializeToString()
    task = grpc_clients.Task(
        address=address,
        path=f"{grpc_payloads.SERVICE}ModelInfer",
        way=_GRPC.way,
        shape=shape,
        messages=[[message]],
        answer_size=judge.verify(_GRPC, address),
    )
    return partial(grpc_clients.h2load, task)


LOADS: Final[Mapping[str, Callable[[Subject], Loader]]] = {
    "HTTP 16": lambda subject: over_http(subject, 16),
    "HTTP 64": lambda subject: over_http(subject, 64),
    "HTTP 256": lambda subject: over_http(subject, 256),
    "gRPC 8×16": lambda subject: over_grpc(subject, Shape(8, 16)),
    "gRPC 16×32": lambda subject: over_grpc(subject, Shape(16, 32)),
}


def flooded(of: Owner, rings: int, seconds: float, *, window: int = 64, alone: bool = True) -> Costs:
    """Have the owner answer as quickly as it can, on a core of its own if `alone`."""
    command = [sys.executable, "-m", "benchmarks.design.many_cores.flood", str(of.path), MODEL]
    command += [str(rings), str(window), str(seconds)]
    if alone:
        pin(of.pid, [0])
        for pid in children(of.pid):
            pin(pid, [1])

    def load() -> Load:
        child = clients.start(command, CHECKOUT)
        if alone:
            pin(child.pid, [1])
        rate, failed = clients.finish(child, "flood", seconds + _START).split()
        count = round(float(rate) * seconds)
        return Load(
            requests=count,
            seconds=seconds,
            rate=float(rate),
            p50=0,
            p99=0,
            errors=0,
            refused=int(failed),
        )

    return costs(of.kinds, load)
