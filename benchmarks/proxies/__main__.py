"""`python -m benchmarks.proxies`: how much longer a request takes through HAProxy and Envoy."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from pathlib import Path
from typing import Final

import grpc
import httpx
import trio

from benchmarks.awake import kept_awake
from benchmarks.report import Table, milliseconds
from benchmarks.results import percentile
from benchmarks.subjects import CHECKOUT, NotStarted, server
from benchmarks.terminal import Terminal, show
from chaos.fleet.balancers import BALANCERS, balancer
from chaos.subject.ports import free_ports
from chaos.wires.http import LOOPBACK, Connection, request
from protocols.kserve.proto import grpc_service_pb2 as pb

_DESCRIPTION: Final = """\
Serve an ONNX model, put HAProxy and Envoy before it by the configurations of `tritium fleet proxy-config`,
and ask it one request at a time: directly, and through each, by turns. Balancers that are not installed are
left out."""

_MODEL: Final = "add_sub_onnx"
_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
_DIRECT: Final = "directly"
_PATIENCE: Final = 30.0

Times = Mapping[str, Sequence[float]]
"""Seconds of each request, by the way that it took."""


class WrongAnswer(Exception):
    """What came back was no inference."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxies", description=_DESCRIPTION)
    parser.add_argument("--turns", type=int, default=40, help="of each way (default: 40)")
    parser.add_argument("--requests", type=int, default=100, help="in a turn (default: 100)")
    parser.add_argument("--awake", action="store_true", help="keep a core from sleeping between requests")
    return parser


def _body() -> Mapping[str, object]:
    data = [float(number) for number in range(16)]
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": data} for name in ("INPUT0", "INPUT1")
    ]
    return {"inputs": inputs}


async def over_http(ports: Mapping[str, int], *, turns: int, requests: int) -> Times:
    """Ask over HTTP. The first turn of each way is not counted. Raises WrongAnswer."""
    asked = request("POST", f"/v2/models/{_MODEL}/infer", json.dumps(_body()).encode())
    seconds: dict[str, list[float]] = {way: [] for way in ports}
    async with AsyncExitStack() as stack:
        connections = {
            way: await stack.enter_async_context(await Connection.open(port)) for way, port in ports.items()
        }
        for turn in range(turns + 1):
            for way, connection in connections.items():
                for _ in range(requests):
                    began = time.perf_counter()
                    reply = await connection.ask(asked)
                    took = time.perf_counter() - began
                    if reply.status != 200:
                        raise WrongAnswer(f"{way}: {reply.status} {reply.body[:200]!r}")
                    if turn:
                        seconds[way].append(took)
    return seconds


def over_grpc(ports: Mapping[str, int], *, turns: int, requests: int) -> Times:
    """Ask over gRPC, with grpcio. The first turn of each way is not counted. Raises grpc.RpcError."""
    asked = pb.ModelInferRequest(model_name=_MODEL)
    for name in ("INPUT0", "INPUT1"):
        tensor = asked.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        tensor.contents.fp32_contents.extend(range(16))
    message = asked.SerializeToString()
    seconds: dict[str, list[float]] = {way: [] for way in ports}
    with ExitStack() as stack:
        calls: dict[str, Callable[..., bytes]] = {
            way: stack.enter_context(grpc.insecure_channel(f"{LOOPBACK}:{port}")).unary_unary(_METHOD)
            for way, port in ports.items()
        }
        for turn in range(turns + 1):
            for way, call in calls.items():
                for _ in range(requests):
                    began = time.perf_counter()
                    call(message, timeout=_PATIENCE)
                    if turn:
                        seconds[way].append(time.perf_counter() - began)
    return seconds


def _until_ready(port: int) -> None:
    """Wait until a balancer finds its server."""
    with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=_PATIENCE) as client:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                if client.get("/v2/health/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
    raise NotStarted(f"the balancer at port {port} does not find its server")


def table(protocol: str, times: Times) -> Table:
    """Return what each way takes, and how much more than without a balancer."""
    ordered = {way: sorted(seconds) for way, seconds in times.items()}
    direct = percentile(ordered[_DIRECT], 50)
    rows = []
    for way, seconds in ordered.items():
        p50 = percentile(seconds, 50)
        more = "" if way == _DIRECT else milliseconds(p50 - direct)
        rows.append(
            (way, f"{len(seconds):,}", milliseconds(p50), more, milliseconds(percentile(seconds, 99)))
        )
    return Table(
        title=f"{protocol}, one request at a time, milliseconds",
        columns=("way", "requests", "p50", "more", "p99"),
        rows=rows,
    )


def measure(folder: Path, proxies: Sequence[str], *, turns: int, requests: int) -> list[Table]:
    """Serve the model from `folder`, and ask it. Raises NotStarted, WrongAnswer, grpc.RpcError."""
    repository = folder / "models"
    shutil.copytree(CHECKOUT / "examples" / "models" / _MODEL, repository / _MODEL)
    file = folder / "fleet.yaml"
    with ExitStack() as stack:
        subject = stack.enter_context(server("server", CHECKOUT, repository, folder))
        file.write_text(
            f"replicas:\n  - {{name: a, url: 'http://{LOOPBACK}:{subject.port}',"
            f" grpc: '{LOOPBACK}:{subject.grpc_port}', metrics: false}}\n"
        )
        http, grpc_ports = {_DIRECT: subject.port}, {_DIRECT: subject.grpc_port or 0}
        for proxy in proxies:
            http[proxy], grpc_ports[proxy] = free_ports(2)
            stack.enter_context(balancer(file, proxy, http[proxy], grpc_ports[proxy]))
            _until_ready(http[proxy])

        async def ask() -> Times:
            return await over_http(http, turns=turns, requests=requests)

        return [
            table("HTTP", trio.run(ask)),
            table("gRPC", over_grpc(grpc_ports, turns=turns, requests=requests)),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and show it; return the exit status."""
    options = _parser().parse_args(argv)
    proxies = [name for name, command in BALANCERS.items() if shutil.which(command[0])]
    if not proxies:
        sys.stderr.write(f"none of {', '.join(BALANCERS)} is installed\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="tritium-proxies-") as folder, Terminal() as terminal:
        terminal.step(f"a server, and {' and '.join(proxies)} before it")
        try:
            with kept_awake() if options.awake else nullcontext():
                tables = measure(Path(folder), proxies, turns=options.turns, requests=options.requests)
        except (NotStarted, WrongAnswer, grpc.RpcError) as error:
            sys.stderr.write(f"{error}\n")
            return 2
    show(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
