"""Measures what should cost a request nothing, or next to nothing, and what a large one costs others.

    python -m benchmarks.tails                                   # everything, some four minutes
    python -m benchmarks.tails --only strings --checkout ../before .
    python -m benchmarks.tails --only idle models

With several checkouts, their servers are loaded in turn, round by round. Figures are medians over rounds;
ratios are medians over those of neighbouring rounds.

- *strings*: a BYTES tensor of a million short strings in, and the same out, each time alone.
- *idle*: one request after the other, and 16 at a time, beside 0 and beside many idle connections of others.
- *models*: the same request to one model, in a repository of that model and of a thousand that are loaded.
- *dormant*: resident memory of a server with 1 and with 1,001 models that wait for their first request.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import clients, payloads, processes, report
from benchmarks.grpc import clients as grpc_clients
from benchmarks.grpc import judge
from benchmarks.grpc import payloads as grpc_payloads
from benchmarks.grpc.payloads import SERVICE
from benchmarks.grpc.scenarios import GRPC_SCENARIOS, Shape
from benchmarks.helper import Helper
from benchmarks.hostile import watched
from benchmarks.hostile.attacker import OverGrpc, OverHttp, Send
from benchmarks.hostile.inputs import TEXTS, Hostile
from benchmarks.hostile.measure import write_models
from benchmarks.hostile.watched import Word
from benchmarks.report import Table
from benchmarks.repository import write_some
from benchmarks.results import Load, Sample, percentile
from benchmarks.runner import sampled
from benchmarks.scenarios import SCENARIOS
from benchmarks.subjects import CHECKOUT, Subject, infer_path, running, wait_ready
from chaos.subject.ports import free_ports
from protocols.kserve.proto import grpc_service_pb2 as pb

STRINGS: Final = 1_000_000
IDLE: Final = 10_000
MODELS: Final = 1_000
_HTTP: Final = next(each for each in SCENARIOS if each.name == "onnx-binary")
_GRPC: Final = next(each for each in GRPC_SCENARIOS if each.name == "grpc-unary")
_SETTLE: Final = 2.0  # seconds in which a server comes to rest
_MODEL: Final = """\
class TritonPythonModel:
    def execute(self, requests):
        raise RuntimeError("it is never asked")
"""
_CONFIG: Final = """\
backend: "python"
max_batch_size: 64
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
parameters { key: "tritium.residency" value { string_value: "on_demand" } }
"""


@contextmanager
def _server(
    label: str, checkout: Path, repository: Path, scratch: Path, *more: str, page: Path | None = None
) -> Iterator[Subject]:
    """Serve `repository` from a checkout; where there is a `page`, with the loop watched."""
    http, grpc, metrics = free_ports(3)
    module = ["engine", "serve"] if page is None else ["benchmarks.hostile.watched", str(page)]
    command = [sys.executable, "-m", *module, f"--model-repository={repository}", *more]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--http-port={http}"]
    command += [f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    log = Path(tempfile.mkstemp(dir=scratch, suffix=".log")[1])
    with running(command, cwd=checkout, log=log) as child:
        subject = Subject(label=label, host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
        wait_ready(subject, child, log)
        yield subject


# -- A million short strings -------------------------------------------------------------------------------


def texts(count: int) -> list[bytes]:
    """Return short strings of all lengths up to eleven bytes."""
    return [b"s%d" % (number * 7_919 % 10 ** (number % 10 + 1)) for number in range(count)]


def messages(count: int) -> Mapping[str, Hostile]:
    """Return a request for each way in which `count` strings come in and go out."""
    elements = texts(count)
    entry = {"name": "IN", "datatype": "BYTES", "shape": [count]}
    packed = b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    head = json.dumps(
        {
            "inputs": [entry | {"parameters": {"binary_data_size": len(packed)}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    document = {"inputs": [entry | {"data": [element.decode() for element in elements]}]}
    compact = json.dumps(document, separators=(",", ":")).encode()
    binary = [("inference-header-content-length", str(len(head)))]
    raw = pb.ModelInferRequest(model_name=TEXTS)
    raw.inputs.add(name="IN", datatype="BYTES", shape=[count])
    typed = pb.ModelInferRequest()
    typed.CopyFrom(raw)
    raw.raw_input_contents.append(packed)
    typed.inputs[0].contents.bytes_contents.extend(elements)
    path, method = infer_path(TEXTS), f"{SERVICE}ModelInfer"
    bodies = {
        "HTTP, JSON": compact,
        "HTTP, JSON with spaces": json.dumps(document).encode(),
        "HTTP, binary": head + packed,
        "gRPC, raw": raw.SerializeToString(),
        "gRPC, typed contents": typed.SerializeToString(),
    }
    return {
        name: Hostile(
            name=name,
            body=lambda body=body: body,  # type: ignore[misc]  # bound now
            path=method if name.startswith("gRPC") else path,
            headers=binary if name == "HTTP, binary" else (),
            grpc=name.startswith("gRPC"),
        )
        for name, body in bodies.items()
    }


@dataclass(slots=True)
class _Watched:
    """A server whose loop is watched, and what was seen of it: milliseconds, by way."""

    server: Subject
    page: memoryview
    used: dict[str, list[float]]
    turns: dict[str, list[float]]
    took: dict[str, list[float]]


def strings(checkouts: Sequence[Path], scratch: Path, rounds: int) -> Table:
    """Send a million strings in each way; see how long the loop is busy, in all and in a turn."""
    write_models(scratch / "strings")
    asked = messages(STRINGS)
    with ExitStack() as stack:
        subjects = []
        for number, checkout in enumerate(checkouts):
            path = scratch / f"page{number}"
            page = memoryview(watched.mapped(path)).cast("Q")
            server = stack.enter_context(
                _server(str(checkout), checkout, scratch / "strings", scratch, page=path)
            )
            subjects.append(_Watched(server, page, {}, {}, {}))
        for name, hostile in asked.items():
            for turn in range(-1, rounds):  # turn -1 warms up
                for subject in subjects:
                    _send_strings(name, hostile, subject, turn)
    rows = []
    for name in asked:
        for subject in subjects:
            used, took = subject.used[name], sorted(subject.took[name])
            shares = [mine / first for mine, first in zip(used, subjects[0].used[name], strict=True)]
            rows.append(
                [
                    name,
                    subject.server.label,
                    f"{median(used):.1f}",
                    f"{median(shares):.2f}×",
                    f"{max(subject.turns[name]):.1f}",
                    f"{percentile(took, 50):.0f}",
                    f"{percentile(took, 99):.0f}",
                ]
            )
    columns = ["a million strings", "of", "loop ms", "÷ first", "longest turn ms", "p50 ms", "p99 ms"]
    return Table("Strings", columns, rows, words=2)


def _send_strings(name: str, hostile: Hostile, subject: _Watched, turn: int) -> None:
    assert subject.server.grpc_port is not None
    body = hostile.body()
    send: Send = (
        OverGrpc(subject.server.grpc_port, hostile, body).send
        if hostile.grpc
        else OverHttp(subject.server.port, hostile, body).send
    )
    page = subject.page
    page[Word.TURN] = page[Word.USED] = 0
    began = time.perf_counter()
    answer = send()
    took = time.perf_counter() - began
    if answer not in {"OK", "HTTP/1.1 200 OK"}:
        raise SystemExit(f"{name}: {subject.server.label} answered {answer!r}")
    time.sleep(0.1)  # until the turn that sent the last bytes has been counted
    if turn >= 0:
        subject.used.setdefault(name, []).append(page[Word.USED] / 1e6)
        subject.turns.setdefault(name, []).append(page[Word.TURN] / 1e6)
        subject.took.setdefault(name, []).append(took * 1e3)


# -- Idle connections, and many models ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """A server that is loaded with the add/sub request, and the ways to do that."""

    label: str
    subject: Subject
    ways: Mapping[str, Callable[[float], Load]]


def _asked(label: str, subject: Subject) -> _Asked:
    assert subject.grpc_port is not None
    request, _ = payloads.build(_HTTP)
    address = judge.Address(subject.host, subject.grpc_port)
    message = grpc_payloads.encode(_GRPC.first, _GRPC.inputs()).SerializeToString()
    size, url = judge.verify(_GRPC, address), subject.url(_HTTP.model, 0)

    def over_http(concurrency: int) -> Callable[[float], Load]:
        return lambda seconds: clients.wrk(url, request, concurrency=concurrency, seconds=seconds)

    def over_grpc(shape: Shape) -> Callable[[float], Load]:
        task = grpc_clients.Task(
            address=address,
            path=f"{SERVICE}ModelInfer",
            way=_GRPC.way,
            shape=shape,
            messages=[[message]],
            answer_size=size,
        )
        return lambda seconds: grpc_clients.h2load(task, seconds)

    ways = {
        "HTTP, 1": over_http(1),
        "HTTP, 16": over_http(16),
        "gRPC, 1": over_grpc(Shape(1, 1)),
        "gRPC, 4×8": over_grpc(Shape(4, 8)),
    }
    return _Asked(label, subject, ways)


def _side_by_side(title: str, servers: Sequence[_Asked], *, seconds: float, rounds: int) -> Table:
    """Load servers in turn; the last columns refer to the first one."""
    rows = []
    for way in servers[0].ways:
        samples: dict[str, list[Sample]] = {each.label: [] for each in servers}
        for turn in range(-1, rounds):  # turn -1 warms up
            for each in servers:
                length = seconds if turn >= 0 else min(seconds, 0.5)
                sample = sampled(each.subject.pid, lambda: each.ways[way](length))  # noqa: B023  called here
                if sample.load.errors or sample.load.refused:
                    raise SystemExit(f"{way}, {each.label}: not every request had a good answer")
                samples[each.label] += [sample] if turn >= 0 else []
        first = samples[servers[0].label]
        rows += [_row(way, label, taken, first) for label, taken in samples.items()]
    columns = [
        title,
        "server with",
        "req/s",
        "p50 ms",
        "p99 ms",
        "CPU µs/req",
        "req/s ÷ first",
        "CPU ÷ first",
    ]
    return Table(title, columns, rows, words=2)


def _row(way: str, label: str, taken: Sequence[Sample], first: Sequence[Sample]) -> Sequence[str]:
    def middle(figure: Callable[[Sample], float]) -> float:
        return median(map(figure, taken))

    def shares(figure: Callable[[Sample], float]) -> str:
        return (
            f"{median(figure(mine) / figure(other) for mine, other in zip(taken, first, strict=True)):.2f}×"
        )

    return [
        way,
        label,
        report.count(middle(lambda sample: sample.load.rate)),
        report.milliseconds(middle(lambda sample: sample.load.p50)),
        report.milliseconds(middle(lambda sample: sample.load.p99)),
        f"{middle(_cpu) * 1e6:.1f}",
        shares(lambda sample: sample.load.rate),
        shares(_cpu),
    ]


def _cpu(sample: Sample) -> float:
    return sample.cpu_per_request or 0.0


def idle(checkout: Path, scratch: Path, *, count: int, seconds: float, rounds: int) -> Table:
    """Load one server alone, and others beside `count` idle connections, half of them over gRPC."""
    models = scratch / "idle"
    write_some(models, [_HTTP.model])
    limit = f"--max-connections={count + 200}"
    with ExitStack() as stack:

        def server(label: str, crowds: Mapping[str, bool]) -> _Asked:
            subject = stack.enter_context(_server(label, checkout, models, scratch, limit))
            for kind, grpc in crowds.items():
                port = subject.grpc_port if grpc else subject.port
                asked = [f"--port={port}", f"--kind={kind}", f"--count={count}"]
                crowd = stack.enter_context(Helper("benchmarks.hostile.crowd", *asked))
                came = crowd.tell("come")["connections"]
                if came != count:
                    raise SystemExit(f"only {came} of {count} idle connections came to {label}")
            return _asked(label, subject)

        servers = [
            server("0 idle", {}),
            server(f"{count:,} idle over HTTP", {"HTTP: kept": False}),
            server(f"{count:,} idle over gRPC", {"gRPC: after a call": True}),
        ]
        time.sleep(_SETTLE)
        return _side_by_side("Idle connections", servers, seconds=seconds, rounds=rounds)


def write_repository(directory: Path, *, loaded: int, dormant: int) -> None:
    """Write the model that is asked, and as many others."""
    write_some(directory, [_HTTP.model])
    config = (directory / _HTTP.model / "config.pbtxt").read_text()
    in_a_thread = 'parameters { key: "tritium.isolation" value { string_value: "thread" } }'
    for number in range(loaded):
        other = directory / f"loaded_{number}"
        shutil.copytree(directory / _HTTP.model, other)
        # A thousand workers would need more memory than most machines have.
        (other / "config.pbtxt").write_text(f"{config}\n{in_a_thread}\n")
    for number in range(dormant):
        version = directory / f"dormant_{number}" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_MODEL)
        (version.parent / "config.pbtxt").write_text(_CONFIG)


def models(checkout: Path, scratch: Path, *, count: int, seconds: float, rounds: int) -> Table:
    """Load one model, in a repository of that alone, of many that are loaded, and of many on demand."""
    with ExitStack() as stack:

        def server(label: str, **others: int) -> _Asked:
            directory = scratch / label.replace(" ", "-")
            write_repository(directory, **others)
            return _asked(label, stack.enter_context(_server(label, checkout, directory, scratch)))

        servers = [
            server("1 model", loaded=0, dormant=0),
            server(f"{count:,} models loaded", loaded=count - 1, dormant=0),
            server(f"{count:,} models on demand", loaded=0, dormant=count - 1),
        ]
        time.sleep(_SETTLE)
        return _side_by_side("Models", servers, seconds=seconds, rounds=rounds)


def dormant(checkouts: Sequence[Path], scratch: Path, *, count: int) -> Table:
    """See what models that wait for their first request take of the server's memory."""
    few, many = scratch / "few", scratch / "many"
    for directory, number in ((few, 1), (many, count + 1)):
        write_repository(directory, loaded=0, dormant=number)
    rows = []
    for checkout in checkouts:
        sizes = []
        for directory in (few, many):
            with _server(str(checkout), checkout, directory, scratch) as subject:
                time.sleep(_SETTLE)
                assert subject.pid is not None
                sizes.append(processes.resident(subject.pid))
        each = (sizes[1] - sizes[0]) / count
        rows.append([str(checkout), *map(report.mebibytes, sizes), f"{each / 1024:.1f}"])
    columns = ["of", "MiB with 1", f"MiB with {count + 1:,}", "KiB for each"]
    return Table("Models on demand, none of them loaded", columns, rows)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=("strings", "idle", "models", "dormant"))
    parser.add_argument("--checkout", nargs="+", type=Path, default=[CHECKOUT], help="where servers' code is")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=int, default=IDLE, help="idle connections of each protocol")
    parser.add_argument("--models", type=int, default=MODELS, help="models of the larger repositories")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    checkouts = [each.absolute() for each in given.checkout]
    load = {"seconds": given.seconds, "rounds": given.rounds}
    chosen = given.only or ("strings", "idle", "models", "dormant")
    with tempfile.TemporaryDirectory(prefix="tritium-tails-") as directory:
        for name in chosen:
            scratch = Path(directory, name)
            scratch.mkdir()
            if name == "strings":
                tables = [strings(checkouts, scratch, given.rounds)]
            elif name == "dormant":
                tables = [dormant(checkouts, scratch, count=given.models)]
            elif name == "idle":
                tables = [idle(each, scratch, count=given.idle, **load) for each in checkouts]
            else:
                tables = [models(each, scratch, count=given.models, **load) for each in checkouts]
            for table in tables:
                print(report.plain(table), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
