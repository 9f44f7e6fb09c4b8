"""The servers whose engines are killed: a fake engine, transformers or vLLM, and what is asked of each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

from actors.values.events import Event
from benchmarks.llm_deaths.findings import Kill
from benchmarks.subjects import CHECKOUT
from chaos.languages.page import Asked
from chaos.languages.serving import write_model
from chaos.subject.server import LogLines, Process, Server
from engine.cli.llm.folder import write_repository

MODEL: Final = "tale"
ENGINES: Final = ("fake", "transformers", "vllm")
PATIENCE: Final = 300.0
"""Seconds until a server is ready: vLLM imports for half a minute."""

_ARGUMENTS: Final[Mapping[str, Mapping[str, object]]] = {
    "transformers": {"dtype": "float32", "max_num_seqs": 64},
    "vllm": {"dtype": "float32", "max_num_seqs": 64, "max_model_len": 1024, "enforce_eager": True},
}
_VARIABLES: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is served, and by what. `folder` and `environment` are those of real engines."""

    engine: str
    instances: int
    pace: float = 0.02  # seconds of a step of the fake engine
    tokens: int = 250  # of an answer of the fake engine
    folder: Path | None = None
    environment: Path | None = None

    def prompts(self) -> Sequence[str]:
        """Return what is asked, in turn."""
        if self.engine == "fake":
            return [Asked(self.tokens + 7 * number, 3 * number).prompt for number in range(16)]
        from examples.llm.tiny_model import lines

        return lines()[:-2]

    def write(self, repository: Path) -> Sequence[str]:
        """Write the repository; return the flags of its server."""
        if self.engine == "fake":
            write_model(repository, MODEL, pace=self.pace, instances=self.instances)
            return []
        assert self.folder is not None, "the command line was checked"
        environment = "" if self.environment is None else str(self.environment)
        directory = write_repository(
            self.folder, repository, name=MODEL, backend=self.engine, environment=environment
        )
        kind = "KIND_MODEL" if self.engine == "vllm" else "KIND_CPU"
        path = directory / "config.pbtxt"
        lines = [line for line in path.read_text().splitlines() if not line.startswith("instance_group")]
        lines.append(f"instance_group [ {{ kind: {kind} count: {self.instances} }} ]")
        lines.append('parameters { key: "tritium.threads" value { string_value: "1" } }')
        path.write_text("\n".join(lines) + "\n")
        arguments = {"model": str(self.folder), **_ARGUMENTS[self.engine]}
        (directory / "1" / "model.json").write_text(json.dumps(arguments))
        return (
            [f"--backend-config={self.engine},folders={self.folder}"] if self.engine == "transformers" else []
        )


class DeathServer(Server):
    """A server of one language model. Its log tells which engines there are."""

    patience = PATIENCE

    @staticmethod
    def launch(
        command: Sequence[str], environ: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> Process:
        """See `Server`."""
        return subprocess.Popen(
            [command[0], "-m", "chaos.languages.serving", *command[4:], "--openai-port=0"],
            cwd=CHECKOUT,
            env={**_VARIABLES, **environ},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    @property
    def url(self) -> str:
        """What the `openai` package is given."""
        return f"http://127.0.0.1:{self.openai_port}/v1"


class Engines:
    """The engines of a server, as its log tells of them. Times are seconds since `began`."""

    def __init__(self, server: DeathServer, began: float) -> None:
        """`began` is on the wall clock."""
        self._lines = LogLines(server.out)
        self._began = began
        self._pids: dict[str, int] = {}  # of those that serve, by the actor's path
        self._readied: list[tuple[str, float]] = []

    def look(self) -> Mapping[str, int]:
        """Return the process ids of the engines that serve now, by their places."""
        for line in self._lines.fresh():
            actor = str(line.get("actor", ""))
            if "/engine/instances/" not in actor:
                continue
            if line["event"] == Event.WORKER_READY.value:
                self._pids[actor] = line["pid"]
                self._readied.append((actor, _wall(line) - self._began))
            elif line["event"] == Event.WORKER_EXITED.value:
                self._pids.pop(actor, None)
        return self._pids

    def completed(self, kills: Sequence[Kill]) -> Sequence[Kill]:
        """Return the kills with when each engine was there again."""
        self.look()
        found = []
        for kill in kills:
            ready = next((at for actor, at in self._readied if actor == kill.engine and at > kill.at), -1.0)
            found.append(replace(kill, ready=ready))
        return found


def _wall(line: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def wall() -> float:
    """Return the wall clock's time, which the log has too, in seconds."""
    return time.clock_gettime(time.CLOCK_REALTIME)


def kill(pid: int, number: int) -> bool:
    """Send a signal; return whether there was such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
