"""Measures tensors in system shared memory beside the same tensors on the wire, in one run.

    python -m benchmarks.regions                          # some three minutes
    python -m benchmarks.regions --seconds 1 --rounds 5   # better where other work runs
    python -m benchmarks.regions --turns-only --sandbox=strict

Flags that it does not know go to the server. Both rows of a pair name their outputs, and only the place of
the tensors differs. It prints requests a second
and CPU time a request for both, and the medians of the ratios of neighbouring rounds. Then it prints the
longest turn of the server's loop, in CPU time of its own, for requests of growing size.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import clients, processes
from benchmarks.grpc import clients as grpc_clients
from benchmarks.grpc import judge
from benchmarks.grpc import payloads as grpc_payloads
from benchmarks.grpc.scenarios import Asked, Shape, Way
from benchmarks.hostile import watched
from benchmarks.payloads import HEADER_LENGTH, Request
from benchmarks.repository import write_some
from benchmarks.results import Cell, Measured, Sample
from benchmarks.runner import Turns, sampled
from benchmarks.scenarios import MIB, Array, ramp
from benchmarks.subjects import CHECKOUT, Subject, infer_path, running, wait_ready
from benchmarks.terminal import Terminal
from chaos.subject.ports import free_ports

MODEL: Final = "onnx_identity"
WIRE: Final = "wire"
REGION: Final = "region"
SIZES: Final = (64, 16 * MIB)
LARGE: Final = (MIB, 16 * MIB, 256 * MIB)  # of the longest turns
CONCURRENCIES: Final = (1, 4)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Regions:
    """Two objects in /dev/shm, one with an input and one for outputs, registered with a server."""

    def __init__(self, server: Subject, nbytes: int) -> None:
        self.nbytes = nbytes
        self.names = {side: f"benchmark-{os.getpid()}-{nbytes}-{side}" for side in ("in", "out")}
        array = ramp(nbytes)()["INPUT0"]
        size = max(nbytes, _PAGE)
        for side, name in self.names.items():
            data = array.tobytes() if side == "in" else b"\xff" * nbytes
            Path("/dev/shm", name).write_bytes(data.ljust(size, b"\0"))
            place = {"key": f"/{name}", "offset": 0, "byte_size": size}
            _post(server, f"/v2/systemsharedmemory/region/{name}/register", json.dumps(place).encode())

    def output(self) -> bytes:
        """Return what lies in the output region."""
        return Path("/dev/shm", self.names["out"]).read_bytes()[: self.nbytes]

    def close(self) -> None:
        """Remove both objects."""
        for name in self.names.values():
            Path("/dev/shm", name).unlink()


def _post(server: Subject, path: str, body: bytes) -> None:
    connection = server.connect()
    connection.request("POST", path, body)
    response = connection.getresponse()
    said = response.read()
    connection.close()
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status} {said[:300].decode(errors='replace')}")


def over_http(regions: Regions) -> Mapping[str, Request]:
    """Return the two requests over HTTP."""
    array = ramp(regions.nbytes)()["INPUT0"]
    head = json.dumps(
        _document(array, {"binary_data_size": array.nbytes}, {"binary_data": True}),
    ).encode()
    places = [
        {"shared_memory_region": regions.names[side], "shared_memory_byte_size": regions.nbytes}
        for side in ("in", "out")
    ]
    return {
        WIRE: Request(head + array.tobytes(), {HEADER_LENGTH: str(len(head))}),
        REGION: Request(json.dumps(_document(array, *places)).encode(), {}),
    }


def _document(array: Array, given: Mapping[str, object], wanted: Mapping[str, object]) -> object:
    entry = {"name": "INPUT0", "shape": list(array.shape), "datatype": "FP32", "parameters": given}
    return {"inputs": [entry], "outputs": [{"name": "OUTPUT0", "parameters": wanted}]}


def over_grpc(regions: Regions) -> Mapping[str, bytes]:
    """Return the two messages."""
    inputs = ramp(regions.nbytes)()
    wire = grpc_payloads.encode(Asked(MODEL), inputs)
    wire.outputs.add(name="OUTPUT0")
    region = grpc_payloads.encode(Asked(MODEL), inputs)
    del region.raw_input_contents[:]
    region.outputs.add(name="OUTPUT0")
    for side, tensor in (("in", region.inputs[0]), ("out", region.outputs[0])):
        tensor.parameters["shared_memory_region"].string_param = regions.names[side]
        tensor.parameters["shared_memory_byte_size"].int64_param = regions.nbytes
    return {WIRE: wire.SerializeToString(), REGION: region.SerializeToString()}


@contextmanager
def _server(checkout: Path, scratch: Path, module: Sequence[str], flags: Sequence[str]) -> Iterator[Subject]:
    http, grpc, metrics = free_ports(3)
    command = [sys.executable, "-m", *module, f"--model-repository={scratch / 'models'}"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--http-port={http}"]
    command += [f"--grpc-port={grpc}", f"--metrics-port={metrics}", "--allow-client-shm=true", *flags]
    log = scratch / "server.log"
    with running(command, cwd=checkout, log=log) as child:
        subject = Subject(label="server", host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
        wait_ready(subject, child, log)
        yield subject


@contextmanager
def _regions(server: Subject, nbytes: int) -> Iterator[Regions]:
    regions = Regions(server, nbytes)
    try:
        _post(server, infer_path(MODEL), over_http(regions)[REGION].body)
        if regions.output() != ramp(nbytes)()["INPUT0"].tobytes():
            raise SystemExit(f"the model's output of {nbytes} bytes did not reach its region")
        yield regions
    finally:
        regions.close()


def measure(server: Subject, sizes: Sequence[int], turns: Turns) -> None:
    """Take all pairs."""
    for nbytes in sizes:
        with _regions(server, nbytes) as regions:
            title = f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes} B"
            requests, messages = over_http(regions), over_grpc(regions)
            for concurrency in CONCURRENCIES:
                cell = Cell("regions", f"{title}, HTTP", concurrency, "wrk")
                turns.measure(cell, {each: _http(server, requests[each], concurrency) for each in requests})
                cell = Cell("regions", f"{title}, gRPC", concurrency, "h2load", "grpc", 1)
                turns.measure(cell, {each: _grpc(server, messages[each], concurrency) for each in messages})


def _http(server: Subject, request: Request, concurrency: int) -> Callable[[float], Sample]:
    url = server.url(MODEL, 0)

    def load(seconds: float) -> Sample:
        return sampled(
            server.pid, lambda: clients.wrk(url, request, concurrency=concurrency, seconds=seconds)
        )

    return load


def _grpc(server: Subject, message: bytes, concurrency: int) -> Callable[[float], Sample]:
    assert server.grpc_port is not None
    task = grpc_clients.Task(
        address=judge.Address(server.host, server.grpc_port),
        path=judge.method(Way.UNARY),
        way=Way.UNARY,
        shape=Shape(concurrency, 1),
        messages=[[message]],
        answer_size=1,
    )
    return lambda seconds: sampled(server.pid, lambda: grpc_clients.h2load(task, seconds))


def report(cells: Sequence[Measured]) -> None:
    """Print a table of what was measured."""
    print(f"\n{'what':14} {'at':>4} {'wire/s':>8} {'region/s':>8} {'ratio':>6} {'CPU µs':>9} {'region':>9}")
    for wire, region in zip(cells[::2], cells[1::2], strict=True):
        pairs = zip(wire.samples, region.samples, strict=True)
        ratio = median(theirs.load.rate / ours.load.rate for ours, theirs in pairs)
        costs = [(each.cpu_per_request or 0) * 1e6 for each in (wire, region)]
        print(
            f"{wire.cell.title:14} {wire.cell.concurrency:4}"
            f" {wire.rate:8,.0f} {region.rate:8,.0f} {ratio:6.2f}"
            f" {costs[0]:9.1f} {costs[1]:9.1f}"
        )


def longest_turns(checkout: Path, scratch: Path, flags: Sequence[str]) -> None:
    """Print how long the loop was held by requests of growing size."""
    page = scratch / "longest"
    turn = memoryview(watched.mapped(page)).cast("Q")
    print(f"\n{'size':>8}  longest turn of the loop, in CPU time")
    with _server(checkout, scratch, ["benchmarks.hostile.watched", str(page)], flags) as server:
        for nbytes in LARGE:
            with _regions(server, nbytes) as regions:
                body = over_http(regions)[REGION].body
                turn[0] = 0
                for _ in range(8):
                    _post(server, infer_path(MODEL), body)
                print(f"{nbytes // MIB:4} MiB  {turn[0] / 1e6:.2f} ms")
        assert server.pid is not None
        print(f"{processes.resident(server.pid) / MIB:.0f} MiB resident")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="where the server's code is")
    parser.add_argument("--turns-only", action="store_true", help="only the loop's longest turns")
    given, flags = parser.parse_known_args()
    checkout = given.checkout.absolute()
    with tempfile.TemporaryDirectory() as directory, Terminal() as terminal, ExitStack() as stack:
        scratch = Path(directory)
        write_some(scratch / "models", [MODEL])
        if not given.turns_only:
            cells = 2 * len(SIZES) * len(CONCURRENCIES)
            turns = Turns(seconds=given.seconds, rounds=given.rounds, cells=cells, progress=terminal)
            server = stack.enter_context(_server(checkout, scratch, ["engine", "serve"], flags))
            measure(server, SIZES, turns)
            report(turns.findings.cells)
        longest_turns(checkout, scratch, flags)


if __name__ == "__main__":
    main()
