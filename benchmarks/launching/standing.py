"""A Ray cluster of `benchmarks.launching.cluster`, and commands for it. `python` is one that has Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from engine.fleet.launching.reading import Registry
from engine.fleet.launching.registry import LaunchedServer

ROOT: Final = Path(__file__).parents[2]
_LAUNCH: Final = "import sys; from engine.cli.fleet.launch import launch; sys.exit(launch(sys.argv[1:]))"


class RayCluster:
    """A cluster that stands. `nodes` are those that take servers."""

    def __init__(self, python: str, process: subprocess.Popen[str], environ: Mapping[str, str]) -> None:
        self.environ = environ
        """What a process has that joins the cluster."""
        self._python = python
        self._process = process
        began = time.monotonic()
        told = self._answer()
        self.up = time.monotonic() - began
        """The seconds that its start took."""
        self.pid = process.pid
        self.address: str = told["address"]
        self.nodes: list[str] = told["nodes"]

    def add(self) -> str:
        """Add a node; return its number."""
        node = str(self._do("add")["node"])
        self.nodes.append(node)
        return node

    def kill(self, node: str) -> None:
        """Kill a node's processes."""
        self.nodes = self._do(f"kill {node}")["nodes"]

    def relay(self, url: str) -> str:
        """Have Ray Serve pass on requests to `url`; return the URL of its port."""
        return str(self._do(f"relay {url}")["url"])

    def launch(
        self, *words: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `tritium fleet launch` for this cluster."""
        return self.run(_LAUNCH, "--ray", self.address, *words, environ=environ)

    def run(
        self, code: str, *words: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run some Python where there is Ray."""
        return subprocess.run(
            [self._python, "-c", code, *words],
            env=self.environ if environ is None else environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    def servers(self, *words: str) -> list[LaunchedServer]:
        """Launch; return the group's servers as the command prints them. Raises RuntimeError."""
        done = self.launch("--json", *words)
        if done.returncode:
            raise RuntimeError(f"`tritium fleet launch` ended with {done.returncode}: {done.stderr}")
        return [LaunchedServer.read(json.dumps(each)) for each in json.loads(done.stdout)]

    def registry(self, **environ: str) -> Registry:
        """Return a reader of the cluster's registry, to be closed. `environ` is added to the cluster's."""
        return Registry(self.address, self._python, {**self.environ, **environ})

    def _do(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError("the Ray cluster ended")


@contextmanager
def standing(python: str, nodes: int, environ: Mapping[str, str] | None = None) -> Iterator[RayCluster]:
    """Start a cluster of a head and `nodes` nodes, and end it with all that runs there."""
    # Ray puts sockets there, whose paths are to have 107 bytes at most.
    folder = tempfile.mkdtemp(prefix="tr-", dir="/tmp")
    whole = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        **(environ or {}),
    }
    process = subprocess.Popen(
        [python, str(Path(__file__).with_name("cluster.py")), folder, str(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=whole,
        cwd=folder,
    )
    try:
        yield RayCluster(python, process, whole)
    finally:
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)
