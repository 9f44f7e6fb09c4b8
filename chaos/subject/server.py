"""The server under test: a process of its own, started and observed from outside as an operator would do it.

Its output goes to numbered files, so that a server which is started again in the same folder has files of its
own: `1.stdout.jsonl` and `1.stderr.jsonl`, then `2.…`.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGTERM, Signals
from typing import IO, Any, ClassVar, Final, Protocol, Self

import orjson
import psutil
import trio
from prometheus_client.parser import text_string_to_metric_families

from actors.values.events import Event
from chaos.record.records import Phase, Sample
from chaos.subject import processes
from chaos.subject.sabotage import SOCKET_FLAG
from chaos.wires.http import LOOPBACK, Broken, Connection, Reply, ask
from engine.core.choosing import PURE

PATIENCE: Final = 60.0
"""Seconds for things that must happen at some time, on a machine that may be busy."""

MARK: Final = "LC_CHAOS_SERVER"
"""The environment variable by which a server's processes are known.

Workers have it too, because variables of the locale are passed on in any sandbox.
"""

KUBERNETES: Final[Mapping[str, str]] = {
    f"{prefix}_{name}": value.format(address=address, port=port)
    for prefix, address, port in (("TRITIUM", "10.0.0.1", 8000), ("TRITIUM_METRICS", "10.0.0.2", 8002))
    for name, value in {
        "SERVICE_HOST": "{address}",
        "SERVICE_PORT": "{port}",
        "SERVICE_PORT_HTTP": "{port}",
        "PORT": "tcp://{address}:{port}",
        f"PORT_{port}_TCP": "tcp://{address}:{port}",
        f"PORT_{port}_TCP_PROTO": "tcp",
        f"PORT_{port}_TCP_PORT": "{port}",
        f"PORT_{port}_TCP_ADDR": "{address}",
    }.items()
}
"""The environment of a container beside Services called `tritium` and `tritium-metrics`.

None of it is a setting.
"""

_POLLING: Final = 0.01
_ROOT: Final = Path(__file__).parents[2]

Node = Mapping[str, Any]


class ServerFailed(Exception):
    """The server did not do what any server must: it ended before it was ready, or does not answer.

    The message has its last words.
    """


class Process(Protocol):
    """What is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The process id."""

    def poll(self) -> int | None:
        """Return the exit status, -n for signal n; None while the process runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal; of no effect on a process that has ended."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def wait(self) -> int:
        """Wait for the end and return the exit status."""


class LogLines:
    """The JSON lines of a file that another process appends to, each given once.

    Lines that are not JSON are skipped.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """`fresh`: what is in the file already is not given."""
        self._path = path
        self._at = path.stat().st_size if fresh else 0

    def fresh(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that are whole and were not given before."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                try:
                    given = json.loads(line)
                except ValueError:
                    continue
                if isinstance(given, dict):
                    yield given


class Server:
    """A server process. Ports are 0 until `wait_ports`; all are on the loopback address."""

    needed: ClassVar[frozenset[str]] = frozenset({"HTTPService", "GRPCInferenceService", "Metrics Service"})
    """The listeners for which `wait_ports` waits."""

    asking: ClassVar[float] = 5.0
    """Seconds for an answer in which no model has a part."""

    patience: ClassVar[float] = PATIENCE
    """Seconds until it must be ready."""

    def __init__(self, process: Process, mark: str, out: Path, err: Path) -> None:
        self._process = process
        self._mark = mark
        self.out = out
        self.err = err
        self._opened = LogLines(out)
        self.http_port = 0
        self.grpc_port = 0
        self.metrics_port = 0
        self.trust: ssl.SSLContext | None = None
        """The authority to trust at the metrics' port, if it speaks TLS."""

    @classmethod
    def start(
        cls,
        repository: Path,
        folder: Path,
        *flags: str,
        sabotage: Path | None = None,
        ports: tuple[int, int, int] = (0, 0, 0),
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a server on a repository, its output in `folder`, and return at once.

        With `sabotage` the server is the saboteur's, with its control socket at that path. `ports` are those
        of HTTP, gRPC and metrics, 0 for the kernel's choice. `environ` is added to this process's
        environment, of which no TRITIUM_ variable is passed on but the one that chooses the core, and to what
        Kubernetes would add (`KUBERNETES`).
        """
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + len(list(folder.glob("*.stdout.jsonl")))
        out, err = folder / f"{number}.stdout.jsonl", folder / f"{number}.stderr.jsonl"
        program = ("engine", "serve") if sabotage is None else ("chaos.saboteur", f"{SOCKET_FLAG}{sabotage}")
        command = [
            *(sys.executable, "-m", *program, f"--model-repository={repository}"),
            *(
                f"--{name}-{what}"
                for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)
                for what in (f"address={LOOPBACK}", f"port={port}")
            ),
            *("--log-format=json", *flags),
        ]
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name == PURE or not name.startswith("TRITIUM_")
        }
        mark = uuid.uuid4().hex
        with out.open("wb") as stdout, err.open("wb") as stderr:
            environment = {**inherited, **KUBERNETES, **(environ or {}), MARK: mark}
            process = cls.launch(command, environment, stdout, stderr)
        return cls(process, mark, out, err)

    @staticmethod
    def launch(
        command: Sequence[str], environ: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> Process:
        """Start the server's process, in the folder that the packages are in."""
        return subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # A Ctrl-C is for the harness, which then ends the server.
            start_new_session=True,
        )

    @property
    def openai_port(self) -> int:
        """The port of the OpenAI API, once the server is ready; 0 if it is not served."""
        opened = Event.LISTENER_OPENED.value
        for line in LogLines(self.out).fresh():
            if line.get("event") == opened and line.get("service") == "OpenAI HTTPService":
                return int(line["address"].rpartition(":")[2])
        return 0

    # -- its life

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, -n for signal n; None while it runs."""
        return self._process.poll()

    def signal(self, number: Signals) -> None:
        """Send it a signal; of no effect on one that has ended."""
        self._process.send_signal(number)

    async def wait_ports(self) -> None:
        """Wait until the listeners are open, and learn their ports. Raises ServerFailed.

        gRPC, which opens between the other two, has port 0 if it is not needed and switched off.
        """
        if self.http_port:
            return
        ports: dict[str, int] = {}

        async def known() -> bool:
            self._must_run("before its listeners were open")
            for line in self._opened.fresh():
                if line.get("event") == Event.LISTENER_OPENED.value and not line["address"].startswith(
                    "unix:"
                ):
                    ports[line["service"]] = int(line["address"].rpartition(":")[2])
            return ports.keys() >= self.needed

        await self._until(known, "the listeners are open")
        self.http_port, self.metrics_port = ports["HTTPService"], ports["Metrics Service"]
        self.grpc_port = ports.get("GRPCInferenceService", 0)

    async def wait_ready(self) -> None:
        """Wait until the server says that it is ready, and before that until its ports are known.

        Raises ServerFailed.
        """
        await self.wait_ports()

        async def ready() -> bool:
            self._must_run("before it was ready")
            return await self.is_ready()

        await self._until(ready, "it is ready")

    async def wait_ended(self, *, within: float = PATIENCE) -> int:
        """Wait until it has exited; return the exit status. Raises ServerFailed if it takes too long."""
        if self.status is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                with trio.move_on_after(within):
                    await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        status = self.status
        if status is None:
            raise ServerFailed(f"the server runs still after {within:g} s: {self.last_words()}")
        return status

    async def stop(self, number: Signals = SIGTERM, *, within: float = PATIENCE) -> int:
        """Send it SIGTERM, which drains, or another signal; wait for its end and return the exit status.

        Raises ServerFailed.
        """
        self.signal(number)
        return await self.wait_ended(within=within)

    def survivors(self) -> list[psutil.Process]:
        """Return every living process that it has started, directly or not, even if it has ended itself.

        They are known by a variable in their environment. A process that cleared it, and whose parent has
        ended, is not found.
        """
        marked = processes.with_variable(MARK, self._mark)
        return [each for each in {*marked, *self.descendants()} if each.pid != self.pid]

    def kill_all(self) -> None:
        """Kill it and all that it has started, and reap it."""
        left = self.survivors()
        if self.status is None:
            self._process.kill()
        processes.kill([*left, *self.survivors()])
        self._process.wait()

    def last_words(self) -> str:
        """Return the end of its output, for people."""
        out, err = (path.read_text(errors="replace")[-4000:] for path in (self.out, self.err))
        return f"exit status {self.status}\nstdout: …{out}\nstderr: …{err}"

    def _must_run(self, when: str) -> None:
        if self.status is not None:
            raise ServerFailed(f"the server ended {when}: {self.last_words()}")

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        with trio.move_on_after(self.patience):
            # Another process brings the condition about, and sends no event.
            while not await condition():  # noqa: ASYNC110
                await trio.sleep(_POLLING)
            return
        raise ServerFailed(f"waited {self.patience:g} s in vain until {what}: {self.last_words()}")

    # -- what it answers

    async def ask(self, path: str, *, method: str = "GET", port: int = 0, body: bytes = b"") -> Reply:
        """Send one request on a connection of its own, to HTTP's port unless another is given.

        Raises OSError, Broken, and ServerFailed if there is no answer in `asking` seconds.
        """
        with trio.move_on_after(self.asking):
            trust = self.trust if port and port == self.metrics_port else None
            return await ask(port or self.http_port, method, path, body, trust=trust)
        raise ServerFailed(f"no answer to {method} {path} within {self.asking:g} s")

    async def is_ready(self) -> bool:
        """Whether it says that it is ready. One that does not answer, or not at once, is not."""
        try:
            return (await self.ask("/v2/health/ready")).status == 200
        except (OSError, Broken, ServerFailed):
            return False

    async def tree(self) -> Node:
        """Return the supervision tree's root. Raises what `ask` does."""
        root: Node = orjson.loads((await self.ask("/v2/tritium/tree")).body)
        return root

    async def workers(self, model: str) -> list[int]:
        """Return the process ids of the workers that serve a model's latest version, by instance.

        A worker that is starting is not among them. Raises what `ask` does, and LookupError if no version has
        instances.
        """
        return [node["info"]["pid"] for node in await self.instances(model) if serving(node)]

    async def instances(self, model: str) -> Sequence[Node]:
        """Return the nodes of the instances of a model's latest version.

        Raises what `ask` does, and LookupError.
        """
        pattern = re.compile(rf"models/{re.escape(model)}/(\d+)")
        versions = {
            int(match[1]): node
            for node in find(await self.tree(), "models")["children"]
            if (match := pattern.fullmatch(node["path"]))
        }
        if not versions:
            raise LookupError(f"no version of '{model}' runs")
        latest = versions[max(versions)]
        return list(find(latest, f"{latest['path']}/instances")["children"])

    async def scraper(self, *, receive_buffer: int = 0) -> Connection:
        """Connect to the metrics' port. Raises OSError, and Broken."""
        return await Connection.open(self.metrics_port, receive_buffer=receive_buffer, trust=self.trust)

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the series that carry `labels`; 0 if there is none.

        Raises what `ask` does.
        """
        text = (await self.ask("/metrics", port=self.metrics_port)).body.decode()
        return sum(
            each.value
            for family in text_string_to_metric_families(text)
            for each in family.samples
            if each.name in {name, f"{name}_total"} and labels.items() <= each.labels.items()
        )

    # -- what it takes

    def descendants(self) -> list[psutil.Process]:
        """Return every process it has started that lives."""
        return processes.descendants(self.pid)

    async def sample(self, phase: Phase) -> Sample:
        """Return what it and its children take now. Raises psutil.NoSuchProcess where it has ended."""
        return await trio.to_thread.run_sync(processes.sample, self.pid, phase)


def serving(instance: Node) -> bool:
    """Whether an instance's worker has its model loaded and warm."""
    return bool(instance["state"] == "running" and instance["info"].get("phase") == "serving")


def find(node: Node, path: str) -> Node:
    """Return the node at `path` of the tree below one. Raises LookupError if there is none."""
    if node["path"] == path:
        return node
    for child in node["children"]:
        if path == child["path"] or path.startswith(child["path"] + "/"):
            return find(child, path)
    raise LookupError(
        f"nothing at {path}; below {node['path']} there are {[each['name'] for each in node['children']]}"
    )


@asynccontextmanager
async def served(
    repository: Path,
    folder: Path,
    *flags: str,
    sabotage: Path | None = None,
    ports: tuple[int, int, int] = (0, 0, 0),
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Server]:
    """Run a server around the block, which begins when it is ready; see `Server.start` for the arguments.

    Afterwards neither it nor any process that it had started lives. It is ended by SIGTERM if it still runs,
    and by SIGKILL if that takes too long or the block failed. Raises ServerFailed.
    """
    server = Server.start(repository, folder, *flags, sabotage=sabotage, ports=ports, environ=environ)
    try:
        await server.wait_ready()
        yield server
        if server.status is None:
            await server.stop()
    finally:
        server.kill_all()
