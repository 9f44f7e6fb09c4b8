"""A real server process, as an operator would start it, and what a test may ask of it."""

import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import trio

from chaos.subject.processes import alive
from chaos.subject.server import PATIENCE, Node, Process, Server, find, serving
from tests.support.forked import start_module
from tests.survival.wire import Connection, Response

ROOT = Path(__file__).parents[2]


async def until(condition: Callable[[], bool], *, within: float = PATIENCE) -> None:
    """Wait for something that other processes bring about."""

    async def ask() -> bool:
        return condition()

    await eventually(ask, within=within)


async def eventually(condition: Callable[[], Awaitable[bool]], *, within: float = PATIENCE) -> None:
    """The same for a condition that must be awaited."""
    with trio.fail_after(within):
        while True:
            if await condition():
                return
            await trio.sleep(0.01)


class ServerProcess(Server):
    """`tritium serve` in its own process, on ports of the kernel's choice."""

    needed = frozenset({"HTTPService", "Metrics Service"})
    asking = PATIENCE

    @staticmethod
    def launch(
        command: Sequence[str], environ: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> Process:
        """Fork the server from a process that has imported it, where `tests.support.forked` allows that."""
        if command[1:3] != ["-m", "engine"]:
            return Server.launch(command, environ, stdout, stderr)
        return start_module("engine", command[3:], env=environ, stdout=stdout, stderr=stderr)

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
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        """Everything complained of so far."""
        return self.err.read_text()

    @property
    def failures(self) -> list[str]:
        """The reasons why it did not start, or did not end well."""
        return [line["error"] for line in self.logged("server_failed")]

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
        """Open a new connection to the HTTP port."""
        return await Connection.open(self.http_port)

    async def get(self, path: str, *, method: str = "GET", port: int = 0) -> Response:
        """One request on a fresh connection."""
        async with await Connection.open(port or self.http_port) as connection:
            return await connection.request(method, path)

    async def node(self, path: str) -> Node:
        """One node of the tree, by its path."""
        return find(await self.tree(), path)

    async def instances(self, model: str) -> list[Node]:
        """The instances of a model's version 1."""
        return list((await self.node(f"models/{model}/1/instances"))["children"])

    async def wait_serving(self, model: str, *, but_not: tuple[int, ...] = ()) -> list[int]:
        """Wait until all instances of a model serve, not in the workers `but_not`; return process ids."""
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

    async def wait_loaded(self) -> None:
        """Wait until every model is ready or has failed, whether or not that makes the server ready."""
        await self.wait_ports()
        await until(lambda: bool(self.logged("server_ready")))


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

    Afterwards its exit status is `exit_status` (None: any status), no process that it started lives, and
    shared memory has no new name.
    """
    names_before = shared_memory_names()
    with _killed_at_last(ServerProcess.start(repository, files, *flags, environ=environ)) as server:
        if ready:
            await server.wait_ready()
        yield server
        await _end(server, names_before, exit_status)


@contextmanager
def standing(repository: Path, *flags: str, files: Path, **environ: str) -> Iterator[ServerProcess]:
    """Run a server for all tests of a module, each of which asks it in a trio run of its own."""
    names_before = shared_memory_names()
    with _killed_at_last(ServerProcess.start(repository, files, *flags, environ=environ)) as server:
        trio.run(server.wait_ready)
        yield server
        trio.run(_end, server, names_before, 0)


@contextmanager
def _killed_at_last(server: ServerProcess) -> Iterator[ServerProcess]:
    try:
        yield server
    except BaseException:
        print(f"the server's last words:\n{server.stdout[-8000:]}\n{server.stderr[-8000:]}")
        raise
    finally:
        server.kill_all()


async def _end(server: ServerProcess, names_before: set[str], exit_status: int | None) -> None:
    started = server.descendants()
    if server.status is None:
        server.signal(signal.SIGTERM)
    status = await server.wait_ended()
    assert exit_status in (None, status), server.stderr
    await until(lambda: not any(alive(each) for each in started))
    await until(lambda: not shared_memory_names() - names_before)


def shared_memory_names() -> set[str]:
    """Return the names in the file system of POSIX shared memory."""
    try:
        return set(os.listdir("/dev/shm"))
    except FileNotFoundError:
        return set()
