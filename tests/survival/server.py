"""A real server process, as an operator would start it, and what a test may ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.survival.wire import Connection, Response

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds for what must happen at some time; the machine may be busy

Node = Mapping[str, Any]


async def until(condition: Callable[[], bool], *, within: float = PATIENCE) -> None:
    """Wait for something that other processes bring about."""

    async def ask() -> bool:
        return condition()

    await eventually(ask, within=within)


async def eventually(condition: Callable[[], Awaitable[bool]], *, within: float = PATIENCE) -> None:
    """The same for what has to be asked for."""
    with trio.fail_after(within):
        while True:
            if await condition():
                return
            await trio.sleep(0.01)


class ServerProcess:
    """`tritium serve` in a process of its own, on ports of the kernel's choice."""

    def __init__(self, process: subprocess.Popen[bytes], files: Path) -> None:
        self._process = process
        self._files = files
        self.http_port = 0
        self.grpc_port = 0
        self.metrics_port = 0

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Host and port, as tritonclient takes it."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """The same of gRPC."""
        return f"127.0.0.1:{self.grpc_port}"

    # -- what it says

    @property
    def stdout(self) -> str:
        """Everything printed so far."""
        return (self._files / "stdout").read_text()

    @property
    def stderr(self) -> str:
        """Everything complained of so far."""
        return (self._files / "stderr").read_text()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event, in order."""
        return [line for line in self._log_lines() if line.get("event") == event]

    def _log_lines(self) -> Iterator[dict[str, Any]]:
        for text in (self.stdout + self.stderr).splitlines():
            if text.startswith("{"):
                try:
                    yield json.loads(text)
                except ValueError:
                    continue  # it is being written

    # -- what it answers

    async def connect(self) -> Connection:
        """Open a connection of one's own to the HTTP port."""
        return await Connection.open(self.http_port)

    async def get(self, path: str, *, method: str = "GET", port: int = 0) -> Response:
        """One request on a fresh connection."""
        async with await Connection.open(port or self.http_port) as connection:
            return await connection.request(method, path)

    async def tree(self) -> Node:
        """The supervision tree's root."""
        node: Node = (await self.get("/v2/tritium/tree")).json()
        return node

    async def node(self, path: str) -> Node:
        """One node of the tree, by its path."""
        return find(await self.tree(), path)

    async def instances(self, model: str) -> list[Node]:
        """The instances of a model's version 1."""
        return list((await self.node(f"models/{model}/1/instances"))["children"])

    async def workers(self, model: str) -> list[int]:
        """Process ids of the workers that serve a model; one that is starting is not among them."""
        return [each["info"]["pid"] for each in await self.instances(model) if serving(each)]

    async def wait_serving(self, model: str, *, but_not: tuple[int, ...] = ()) -> list[int]:
        """Wait until all instances of a model serve, in workers other than those; return the process ids."""
        with trio.fail_after(PATIENCE):
            while True:
                nodes = await self.instances(model)
                pids = [node["info"]["pid"] for node in nodes if serving(node)]
                if len(pids) == len(nodes) and not set(pids) & set(but_not):
                    return pids
                await trio.sleep(0.02)

    async def index(self) -> dict[str, dict[str, Any]]:
        """The repository index, by model."""
        entries = (await self.get("/v2/repository/index", method="POST")).json()
        return {entry["name"]: entry for entry in entries}

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over the series that carry `labels`; 0 where there is none."""
        text = (await self.get("/metrics", port=self.metrics_port)).body.decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in {name, f"{name}_total"} and labels.items() <= sample.labels.items()
        )

    async def until_metric(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric has this value."""

        async def reached() -> bool:
            return await self.metric(name, **labels) == value

        await eventually(reached)

    async def until_metric_above(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric is over this value."""

        async def exceeded() -> bool:
            return await self.metric(name, **labels) > value

        await eventually(exceeded)

    # -- its life

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        """Every process it has started that lives."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    async def wait_ports(self) -> None:
        """Wait until the listeners are open, and learn their ports. Raises AssertionError if it ends before.

        gRPC, which opens between the other two, has port 0 where it is switched off.
        """
        ports: dict[str, int] = {}

        def known() -> bool:
            assert self.status is None, self.stderr
            ports.update(
                {
                    line["service"]: int(line["address"].rpartition(":")[2])
                    for line in self.logged("listener_opened")
                    if not line["address"].startswith("unix:")
                }
            )
            return {"HTTPService", "Metrics Service"} <= ports.keys()

        await until(known)
        self.http_port, self.metrics_port = ports["HTTPService"], ports["Metrics Service"]
        self.grpc_port = ports.get("GRPCInferenceService", 0)

    async def wait_ready(self) -> None:
        """Poll the readiness endpoint. Raises AssertionError if the server ends before."""
        await self.wait_ports()
        with trio.fail_after(PATIENCE):
            while (await self.get("/v2/health/ready")).status != 200:
                assert self.status is None, self.stderr
                await trio.sleep(0.02)

    async def wait_loaded(self) -> None:
        """Wait until every model is ready or has failed, whether or not that makes the server ready."""
        await self.wait_ports()
        await until(lambda: bool(self.logged("server_ready")))

    async def wait_ended(self) -> int:
        """Wait until it has exited; return the exit status."""
        await until(lambda: self.status is not None)
        assert self.status is not None
        return self.status

    def kill_all(self) -> None:
        """Leave nothing behind, whatever a test did."""
        for process in self.descendants():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if self.status is None:
            self._process.kill()
        self._process.wait()


def serving(instance: Node) -> bool:
    """Whether an instance's worker has its model loaded and warm."""
    return bool(instance["state"] == "running" and instance["info"].get("phase") == "serving")


def find(node: Node, path: str) -> Node:
    """The node at `path`. Raises AssertionError where there is none."""
    if node["path"] == path:
        return node
    for child in node["children"]:
        if path == child["path"] or path.startswith(child["path"] + "/"):
            return find(child, path)
    raise AssertionError(f"nothing at {path}")


def start(
    repository: Path, flags: Sequence[str], files: Path, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to `files`."""
    files.mkdir()
    command = [
        *(sys.executable, "-m", "engine", "serve", f"--model-repository={repository}"),
        *("--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0"),
        *("--metrics-port=0", "--log-format=json"),
        *flags,
    ]
    # Every TRITIUM_ variable is a flag of the server's, TRITIUM_SURVIVAL_SECONDS an unknown one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITIUM_")}
    with open(files / "stdout", "wb") as stdout, open(files / "stderr", "wb") as stderr:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, **environ},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )


@asynccontextmanager
async def served(
    repository: Path,
    *flags: str,
    files: Path,
    environ: Mapping[str, str],
    ready: bool = True,
    exit_status: int | None = 0,
) -> AsyncIterator[ServerProcess]:
    """Run a server around the block, then end it by SIGTERM if it still runs.

    Afterwards its exit status is `exit_status` (None: whatever it is), no process that it started lives, and shared memory
    has no name that it had not before.
    """
    names_before = shared_memory_names()
    server = ServerProcess(start(repository, flags, files, environ), files)
    try:
        if ready:
            await server.wait_ready()
        yield server
        started = server.descendants()
        if server.status is None:
            server.signal(signal.SIGTERM)
        status = await server.wait_ended()
        assert exit_status in (None, status), server.stderr
        await until(lambda: not any(alive(each) for each in started))
        await until(lambda: not shared_memory_names() - names_before)
    except BaseException:
        print(f"the server's last words:\n{server.stdout[-8000:]}\n{server.stderr[-8000:]}")
        raise
    finally:
        server.kill_all()


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie that waits for its new parent does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def shared_memory_names() -> set[str]:
    """What lies in the file system of POSIX shared memory."""
    try:
        return set(os.listdir("/dev/shm"))
    except FileNotFoundError:
        return set()
