"""Measures what an auth file costs: one server without it, and one with 10,000 keys and 1,000 rules.

    python -m benchmarks.gate                            # some six minutes
    python -m benchmarks.gate --seconds 1 --rounds 15    # better where other work runs: compare the CPU time

Every client shows a key to both servers; the one without a file does not look at it. It prints, for each
concurrency over HTTP and gRPC, requests a second and CPU time a request of both, and the ratios: those of
neighbouring rounds, of which it takes the median. Then it prints how long refusals take on one connection.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import clients, payloads, processes
from benchmarks.grpc import clients as grpc_clients
from benchmarks.grpc import judge
from benchmarks.grpc import payloads as grpc_payloads
from benchmarks.grpc.scenarios import GRPC_SCENARIOS, Shape
from benchmarks.hostile.attacker import OverGrpc, OverHttp, Send
from benchmarks.hostile.inputs import Hostile
from benchmarks.repository import write_some
from benchmarks.results import Cell, Measured, Sample, percentile
from benchmarks.runner import Turns, sampled
from benchmarks.scenarios import SCENARIOS
from benchmarks.subjects import CHECKOUT, Subject, infer_path, running, wait_ready
from benchmarks.terminal import Terminal
from chaos.subject.ports import free_ports
from engine.identity.keys import digest_of, new_secret

KEYS: Final = 10_000
RULES: Final = 1_000
OPEN: Final = "without"
GATED: Final = "with the file"
_HTTP: Final = next(each for each in SCENARIOS if each.name == "onnx-binary")
_GRPC: Final = next(each for each in GRPC_SCENARIOS if each.name == "grpc-unary")
_SHAPES: Final = (Shape(1, 1), Shape(16, 1), Shape(64, 1), Shape(4, 8), Shape(16, 32))
_REFUSALS: Final = 1_000
_PAUSE: Final = 0.1  # seconds after a connection that was closed on us


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys as clients show them: one that may infer, and one to which the last rule denies everything."""

    good: str
    denied: str


def write_auth_file(path: Path) -> Keys:
    """Write an auth file.

    Every rule matches the groups of its asker, so that each is looked at, and only the last two decide.
    """
    secrets = [new_secret() for _ in range(KEYS)]
    with path.open("w") as file:
        for number, secret in enumerate(secrets):
            group = "denied" if number == 1 else "users"
            file.write(f'[[key]]\nid = "key-{number}"\nname = "client-{number}"\n')
            file.write(f'digest = "{digest_of(secret)}"\ngroups = ["all", "{group}"]\n\n')
        for number in range(RULES - 2):
            file.write('[[rule]]\nfor = ["group:all"]\nallow = ["inference", "metadata"]\n')
            file.write(f'models = ["other_{number}_*"]\n\n')
        file.write('[[rule]]\nfor = ["group:users"]\nallow = ["inference", "metadata", "statistics"]\n')
        file.write('models = ["onnx_*"]\n\n')
        file.write('[[rule]]\nfor = ["group:denied"]\ndeny = ["*"]\n')
    middle = KEYS // 2
    return Keys(good=f"key-{middle}.{secrets[middle]}", denied=f"key-1.{secrets[1]}")


@contextmanager
def _server(label: str, checkout: Path, scratch: Path, *more: str) -> Iterator[Subject]:
    http, grpc, metrics = free_ports(3)
    command = [sys.executable, "-m", "engine", "serve", f"--model-repository={scratch / 'models'}"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--http-port={http}"]
    command += [f"--grpc-port={grpc}", f"--metrics-port={metrics}", *more]
    log = scratch / f"server{len(more)}.log"
    with running(command, cwd=checkout, log=log) as child:
        subject = Subject(label=label, host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
        wait_ready(subject, child, log)
        yield subject


class Load:
    """Loads both servers in turn."""

    def __init__(self, subjects: Sequence[Subject], keys: Keys, turns: Turns) -> None:
        self._subjects = subjects
        self._turns = turns
        self._authorization = f"Bearer {keys.good}"

    def over_http(self) -> None:
        """Infer with binary tensors over HTTP/1.1."""
        request, _ = payloads.build(_HTTP)
        request = replace(request, headers={**request.headers, "Authorization": self._authorization})

        def taker(subject: Subject, concurrency: int) -> Callable[[float], Sample]:
            url = subject.url(_HTTP.model, 0)
            return lambda seconds: sampled(
                subject.pid,
                lambda: clients.wrk(url, request, concurrency=concurrency, seconds=seconds),
            )

        for concurrency in _HTTP.concurrencies:
            cell = Cell("gate", "HTTP binary", concurrency, "wrk")
            self._turns.measure(cell, {each.label: taker(each, concurrency) for each in self._subjects})

    def over_grpc(self) -> None:
        """Infer by unary calls over gRPC."""
        message = grpc_payloads.encode(_GRPC.first, _GRPC.inputs()).SerializeToString()
        open_to_all = self._subjects[0]
        assert open_to_all.grpc_port is not None
        size = judge.verify(_GRPC, judge.Address(open_to_all.host, open_to_all.grpc_port))

        def taker(subject: Subject, shape: Shape) -> Callable[[float], Sample]:
            assert subject.grpc_port is not None
            task = grpc_clients.Task(
                address=judge.Address(subject.host, subject.grpc_port),
                path=f"{grpc_payloads.SERVICE}ModelInfer",
                way=_GRPC.way,
                shape=shape,
                messages=[[message]],
                answer_size=size,
                metadata=(("authorization", self._authorization),),
            )
            return lambda seconds: sampled(subject.pid, lambda: grpc_clients.h2load(task, seconds))

        for shape in _SHAPES:
            cell = Cell("gate", "gRPC unary", shape.connections, "h2load", "grpc", shape.streams)
            self._turns.measure(cell, {each.label: taker(each, shape) for each in self._subjects})


def _ratios(cells: Sequence[Measured], label: str) -> None:
    """Print a table of what was measured."""
    print(
        f"\n{'what':14} {'at':>6} {'req/s':>8} {'with':>8} {'ratio':>6}"
        f" {'CPU µs':>8} {'with':>8} {'ratio':>6} {'p50 ms':>8} {'p99':>8} {'p50 with':>8} {'p99':>8}"
    )
    for bare, gated in zip(cells[::2], cells[1::2], strict=True):
        assert gated.subject == label
        pairs = list(zip(bare.samples, gated.samples, strict=True))
        rates = median(theirs.load.rate / ours.load.rate for ours, theirs in pairs)
        costs = median((theirs.cpu_per_request or 0) / (ours.cpu_per_request or 1) for ours, theirs in pairs)
        failed = f"  {bare.failures + gated.failures} FAILED" if bare.failures + gated.failures else ""
        print(
            f"{bare.cell.title:14} {bare.cell.at:>6} {bare.rate:8,.0f} {gated.rate:8,.0f} {rates:6.3f}"
            f" {(bare.cpu_per_request or 0) * 1e6:8.1f} {(gated.cpu_per_request or 0) * 1e6:8.1f}"
            f" {costs:6.3f} {bare.p50 * 1e3:8.3f} {bare.p99 * 1e3:8.3f}"
            f" {gated.p50 * 1e3:8.3f} {gated.p99 * 1e3:8.3f}{failed}"
        )


def _refusals(server: Subject, keys: Keys) -> None:
    """Print how long refusals take, from the first byte of a request to the last of its answer."""
    wrong = keys.good[:-4] + "AAAA"
    cases = (
        ("a key with another secret", wrong, False),
        ("an unknown key", "unknown." + wrong.partition(".")[2], False),
        (f"denied by the last of {RULES:,} rules", keys.denied, False),
        ("denied, another model each time", keys.denied, True),
    )
    print(f"\n{'refused':34} {'over':5} {'p50 ms':>7} {'p99 ms':>7} {'most ms':>8} {'CPU ms':>7}  answer")
    for what, key, fresh in cases:
        for over in ("HTTP", "gRPC"):
            _refuse(what, over, server, key, fresh=fresh)


def _sends(over: str, server: Subject, key: str, *, fresh: bool) -> Iterator[Send]:
    """Yield what sends one request, on one connection for all that ask for the same model."""
    headers = [("authorization", f"Bearer {key}")]
    names = (f"onnx_{number}" if fresh else "onnx_add_sub" for number in count())
    link: OverHttp | OverGrpc | None = None
    for name in names:
        if over == "HTTP":
            asked = Hostile(name=name, body=bytes, path=infer_path(name), headers=headers)
            link = OverHttp(server.port, asked, b"") if fresh or link is None else link
        else:
            assert server.grpc_port is not None
            message = grpc_payloads.encode(replace(_GRPC.first, model=name), _GRPC.inputs())
            asked = Hostile(
                name=name,
                body=bytes,
                path=f"{grpc_payloads.SERVICE}ModelInfer",
                headers=headers,
                grpc=True,
            )
            body = message.SerializeToString()
            link = OverGrpc(server.grpc_port, asked, body) if fresh or link is None else link
        yield link.send


def _refuse(what: str, over: str, server: Subject, key: str, *, fresh: bool) -> None:
    assert server.pid is not None
    times: list[float] = []
    answer = ""
    before = processes.cpu_seconds(server.pid)
    for send, _ in zip(_sends(over, server, key, fresh=fresh), range(_REFUSALS), strict=False):
        began = time.perf_counter()
        try:
            answer = send()
        except OSError as error:
            answer = f"no answer: {error}"
            time.sleep(_PAUSE)
            continue
        times.append(time.perf_counter() - began)
    cost = (processes.cpu_seconds(server.pid) - before) / _REFUSALS
    times.sort()
    if not times:
        print(f"{what:34} {over:5} not measured: {answer}")
        return
    print(
        f"{what:34} {over:5} {percentile(times, 50) * 1e3:7.2f} {percentile(times, 99) * 1e3:7.2f}"
        f" {times[-1] * 1e3:8.2f} {cost * 1e3:7.2f}  {answer[:60]}"
    )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="where the server's code is")
    parser.add_argument("--refusals-only", action="store_true")
    given = parser.parse_args()
    checkout = given.checkout.absolute()
    with tempfile.TemporaryDirectory() as directory, Terminal() as terminal, ExitStack() as stack:
        scratch = Path(directory)
        write_some(scratch / "models", [_HTTP.model])
        keys = write_auth_file(scratch / "auth.toml")
        subjects = [
            stack.enter_context(_server(OPEN, checkout, scratch)),
            stack.enter_context(_server(GATED, checkout, scratch, f"--auth-file={scratch / 'auth.toml'}")),
        ]
        if not given.refusals_only:
            cells = len(_HTTP.concurrencies) + len(_SHAPES)
            turns = Turns(seconds=given.seconds, rounds=given.rounds, cells=cells, progress=terminal)
            load = Load(subjects, keys, turns)
            load.over_http()
            load.over_grpc()
            _ratios(turns.findings.cells, GATED)
        _refusals(subjects[1], keys)


if __name__ == "__main__":
    main()
