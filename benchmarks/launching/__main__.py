"""`python -m benchmarks.launching --ray ENVIRONMENT`: servers in a Ray cluster, and Ray Serve in the path."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import clients, repository
from benchmarks.launching.calling import RetryingClient, post
from benchmarks.launching.standing import RayCluster, standing
from benchmarks.payloads import Request, encode
from benchmarks.processes import family
from benchmarks.results import Load
from benchmarks.scenarios import pair
from engine.fleet.launching.reading import Registry
from engine.fleet.launching.registry import LaunchedServer, Phase

_DESCRIPTION: Final = """\
Start a Ray cluster on this machine, and servers in it. Measured are one server's port, and a deployment of
Ray Serve that passes on requests to it, in turn; then how long it takes until a server answers again after
its node was killed, after its actor was killed, and after it was killed itself."""
_MODEL: Final = "onnx_add_sub"
_PATH: Final = f"/v2/models/{_MODEL}/infer"
_PATIENCE: Final = 60.0
_CONNECTIONS: Final = (1, 4)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launching", description=_DESCRIPTION)
    parser.add_argument(
        "--ray", type=Path, required=True, metavar="FOLDER", help="a virtual environment with ray[serve]"
    )
    parser.add_argument("--seconds", type=float, default=4, help="of each load (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="of loads, whose medians count (default: 3)")
    parser.add_argument("--kills", type=int, default=5, help="of each kind (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    options = parser.parse_args()
    python = str(options.ray.resolve() / "bin" / "python")
    request = encode(pair(), "json")
    with tempfile.TemporaryDirectory(prefix="tritium-launching-") as scratch:
        models = Path(scratch) / "models"
        repository.write_some(models, [_MODEL])
        with standing(python, 3) as cluster, cluster.registry() as registry:
            found = {
                "cluster": {"processes": len(family(cluster.pid)), "up_s": cluster.up},
                "paths": _paths(cluster, models, request, options.seconds, options.rounds),
                "kills": _kills(cluster, registry, models, request.body, options.kills),
            }
    _report(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


# -- Ray Serve in the path, and not


def _paths(
    cluster: RayCluster, models: Path, request: Request, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    with _group(cluster, models, 1) as (server,):
        direct = f"http://{server.host}:{server.http_port}"
        urls = {"server's port": direct, "Ray Serve": cluster.relay(direct)}
        loads: dict[tuple[str, int], list[Load]] = {}
        for _ in range(rounds):
            for count in _CONNECTIONS:
                for name, url in urls.items():
                    load = clients.wrk(url + _PATH, request, concurrency=count, seconds=seconds)
                    if load.errors or load.refused:
                        raise clients.ClientFailed(f"{load.errors + load.refused} errors by {name}")
                    loads.setdefault((name, count), []).append(load)
        return [
            {
                "path": name,
                "connections": count,
                "requests_per_s": median(each.rate for each in found),
                "p50_ms": 1000 * median(each.p50 for each in found),
                "p99_ms": 1000 * median(each.p99 for each in found),
            }
            for (name, count), found in loads.items()
        ]


# -- what is killed


def _kills(
    cluster: RayCluster, registry: Registry, models: Path, body: bytes, kills: int
) -> list[dict[str, Any]]:
    turn = threading.Lock()  # a registry is for one thread at a time
    with _group(cluster, models, 2) as servers:
        group = servers[0].name.rpartition("-")[0].rpartition("-")[0]

        def find() -> list[LaunchedServer]:
            with turn:
                return registry.replicas(group)

        def node(server: LaunchedServer) -> None:
            cluster.kill(server.node)

        def actor(server: LaunchedServer) -> None:
            os.kill(_parent(server.pid), signal.SIGKILL)

        def itself(server: LaunchedServer) -> None:
            os.kill(server.pid, signal.SIGKILL)

        ways: dict[str, Callable[[LaunchedServer], None]] = {
            "node": node,
            "actor": actor,
            "server": itself,
        }
        found = []
        for what, kill in ways.items():
            with RetryingClient(find, lambda server: post(server, _PATH, body)) as client:
                back = [_seconds_away(find, kill, body) for _ in _with_spare(cluster, what, kills)]
            found.append(
                {
                    "killed": what,
                    "times": kills,
                    "back_s": median(back),
                    "slowest_back_s": max(back),
                    "answers": client.answers,
                    "retried": client.retried,
                    "errors": client.errors,
                    "slowest_answer_s": client.slowest,
                }
            )
        return found


def _with_spare(cluster: RayCluster, what: str, kills: int) -> Iterator[None]:
    """Yield for each kill, once the cluster has its three nodes."""
    for _ in range(kills):
        yield
        if what == "node":
            cluster.add()


def _seconds_away(
    find: Callable[[], list[LaunchedServer]], kill: Callable[[LaunchedServer], None], body: bytes
) -> float:
    """Kill what the first server stands on; return after how many seconds it answers requests again."""
    old = find()[0]
    began = time.monotonic()
    kill(old)
    while time.monotonic() - began < _PATIENCE:
        new = [each for each in find() if each.name == old.name and each.boot != old.boot]
        if new and new[0].phase is Phase.SERVING:
            post(new[0], _PATH, body)
            return time.monotonic() - began
        time.sleep(0.02)
    raise TimeoutError(f"{old.name} did not answer again in {_PATIENCE:.0f} s")


def _parent(pid: int) -> int:
    """Return the process that started another one: a server's actor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def _group(cluster: RayCluster, models: Path, replicas: int) -> Iterator[Sequence[LaunchedServer]]:
    name = f"of-{replicas}"
    words = ("--name", name, "--replicas", str(replicas), "--python", sys.executable)
    servers = cluster.servers(*words, "--", f"--model-repository={models}", "--http-address=127.0.0.1")
    try:
        yield servers
    finally:
        cluster.launch("--name", name, "--stop")


def _report(found: dict[str, Any]) -> None:
    print(f"{'path':16}{'connections':>12}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}")
    for each in found["paths"]:
        print(
            f"{each['path']:16}{each['connections']:12}{each['requests_per_s']:12.0f}"
            f"{each['p50_ms']:10.2f}{each['p99_ms']:10.2f}"
        )
    print(
        f"\n{'killed':10}{'times':>6}{'back s':>8}{'slowest':>9}{'answers':>9}{'errors':>8}{'slowest s':>11}"
    )
    for each in found["kills"]:
        print(
            f"{each['killed']:10}{each['times']:6}{each['back_s']:8.1f}{each['slowest_back_s']:9.1f}"
            f"{each['answers']:9}{each['errors']:8}{each['slowest_answer_s']:11.2f}"
        )
    print(f"\nRay: {found['cluster']['processes']} processes, up in {found['cluster']['up_s']:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
