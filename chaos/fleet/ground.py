"""Servers side by side, the file that says what they should be, and a controller that can be killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

import trio

from chaos.subject.server import Server

MODEL: Final = "steps"
GOOD, BETTER, BROKEN, ILL, FAULTY = range(1, 6)
"""Versions: two that work, one that does not load, one that fails a probe, and one that fails clients."""

_CONFIG: Final = """\
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tritium.probe" value { string_value: "required" } }
"""

_CODE: Final = """\
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        if {broken}:
            raise RuntimeError("its weights are missing")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb.get_input_tensor_by_name(request, "X").as_numpy()
        if {ill} or ({faulty} and x[0] > 0):
            return pb.InferenceResponse(error=pb.TritonError("it can't"))
        return pb.InferenceResponse([pb.Tensor("Y", x + {version})])
"""


def lay(repository: Path) -> None:
    """Write the model's versions."""
    folder = repository / MODEL
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(_CONFIG)
    for version in (GOOD, BETTER, BROKEN, ILL, FAULTY):
        (folder / str(version)).mkdir()
        code = _CODE.format(
            version=version, broken=version == BROKEN, ill=version == ILL, faulty=version == FAULTY
        )
        (folder / str(version) / "model.py").write_text(code)


class Controlling:
    """A controller process. What it logged is in `events`."""

    def __init__(self, file: Path, log: Path) -> None:
        self.log = log
        with log.open("ab") as written:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "engine", "fleet", "run"),
                    *(f"--file={file}", "--name=chaos", "--log-format=json"),
                ],
                stdin=subprocess.DEVNULL,
                stderr=written,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it at whatever it is just doing."""
        self._process.send_signal(SIGKILL)
        self._process.wait()

    def end(self) -> int:
        """Tell it to end, and return its exit status."""
        self._process.terminate()
        return self._process.wait()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return what has been logged so far, by this one and those before it."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"}\n")]

    def decisions(self) -> list[str]:
        """Return what was decided so far."""
        return [str(each["decision"]) for each in self.events if each["event"] == "fleet_decided"]


class Ground:
    """A fleet on this machine, in `folder`."""

    def __init__(self, folder: Path, count: int, rules: Mapping[str, float]) -> None:
        self.folder = folder
        self.repository = folder / "models"
        self.file = folder / "fleet.yaml"
        self.names = [f"r{number}" for number in range(count)]
        self.servers: dict[str, Server] = {}
        self._rules = rules
        lay(self.repository)

    async def start(self) -> None:
        """Start all servers, and wait until their ports are known."""
        for name in self.names:
            self.servers[name] = self._serve(name)
        for server in self.servers.values():
            await server.wait_ports()

    def _serve(self, name: str, ports: tuple[int, int, int] = (0, 0, 0)) -> Server:
        flags = (
            *("--model-control-mode=explicit", "--await-fleet=true", f"--replica-name={name}"),
            "--drain-delay-secs=2",
        )
        return Server.start(self.repository, self.folder / name, *flags, ports=ports)

    def restart(self, name: str) -> None:
        """Start a server that has ended again, at its ports."""
        old = self.servers[name]
        self.servers[name] = self._serve(name, (old.http_port, old.grpc_port, old.metrics_port))

    def want(self, version: int, extra: str = "") -> None:
        """Write the file that says which version all replicas should serve."""
        replicas = "".join(
            f"  - {{name: {name}, url: 'http://127.0.0.1:{server.http_port}',"
            f" grpc: '127.0.0.1:{server.grpc_port}',"
            f" metrics: 'http://127.0.0.1:{server.metrics_port}/metrics'}}\n"
            for name, server in self.servers.items()
        )
        rules = ", ".join(f"{key}: {value}" for key, value in self._rules.items())
        text = (
            f"replicas:\n{replicas}models:\n  {MODEL}: {{versions: {version}}}\nrules: {{{rules}}}\n{extra}"
        )
        written = self.file.with_suffix(".new")
        written.write_text(text)
        written.replace(self.file)

    def controller(self) -> Controlling:
        """Start a controller; all write into one log."""
        return Controlling(self.file, self.folder / "controller.jsonl")

    async def serving(self) -> dict[str, Sequence[int]]:
        """Return the versions that each server has ready."""
        found: dict[str, Sequence[int]] = {}
        for name, server in self.servers.items():
            index = json.loads((await server.ask("/v2/repository/index", method="POST")).body)
            found[name] = [int(each["version"]) for each in index if each.get("state") == "READY"]
        return found

    async def is_good(self, version: int) -> bool:
        """Whether a version is written down as good on all replicas."""
        for server in self.servers.values():
            document = json.loads((await server.ask("/v2/tritium/fleet")).body)["document"]
            if document is not None and document["models"][MODEL]["good"]["versions"] == [version]:
                return True
        return False

    async def until_all_serve(self, version: int, *, within: float = 120) -> float:
        """Wait until all servers have a version ready, and no other; return the seconds that took."""
        began = trio.current_time()
        with trio.fail_after(within):
            while True:
                serving = await self.serving()
                ready = [await server.is_ready() for server in self.servers.values()]
                if all(ready) and all(each == [version] for each in serving.values()):
                    return trio.current_time() - began
                await trio.sleep(0.05)

    def kill_all(self) -> None:
        """End all servers."""
        for server in self.servers.values():
            server.kill_all()


@asynccontextmanager
async def ground(folder: Path, count: int, **rules: float) -> AsyncIterator[Ground]:
    """Give a fleet whose servers run."""
    made = Ground(folder, count, rules)
    try:
        await made.start()
        yield made
    finally:
        made.kill_all()
