"""`tritium serve` as an operator runs it: a process, what it says on each stream, and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.core.choosing import PURE
from tests.support.forked import ForkedProcess, start_module

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = (
    "--http-address=127.0.0.1",
    "--http-port=0",
    "--grpc-address=127.0.0.1",
    "--grpc-port=0",
    "--metrics-port=0",
)

DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() * 2)])
            for request in requests
        ]
"""
DOUBLE_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def write_model(
    repository: Path, name: str = "double", *, code: str = DOUBLE, config: str = DOUBLE_CONFIG
) -> None:
    """Write a Python model; the default doubles `X`, FP32 [n]."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(config)


def clean_environ(**changes: str) -> dict[str, str]:
    """Return this process's environment without settings of a server's, and with `changes`.

    A server runs the core that this process was told to run.
    """
    kept = {
        name: value for name, value in os.environ.items() if name == PURE or not name.startswith("TRITIUM_")
    }
    return {**kept, **changes}


class Served:
    """A server process; `out` and `err` are what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, folder: Path) -> None:
        self.process = process
        self._folder = folder

    @property
    def out(self) -> str:
        return (self._folder / "stdout").read_text(errors="backslashreplace")

    @property
    def err(self) -> str:
        return (self._folder / "stderr").read_text(errors="backslashreplace")

    @property
    def said(self) -> str:
        return self.out + self.err

    def wait_said(self, pattern: str, within: float = 60.0) -> re.Match[str]:
        """Wait until a stream has what `pattern` matches."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            found = re.search(pattern, self.said)
            if found:
                return found
            assert self.process.poll() is None, self.said
            threading.Event().wait(0.02)
        raise AssertionError(f"{pattern!r} was not said:\n{self.said}")

    def address(self, service: str = "HTTPService") -> str:
        """Return where it listens."""
        plain, as_json = f"Started {service} at ", f'"service": "{service}", "address": "'
        return self.wait_said(rf"(?:{plain}|{as_json})([0-9.]+:[0-9]+)")[1]

    def wait_ready(self) -> None:
        self.wait_said("server_ready")

    def get(self, path: str, *, service: str = "HTTPService") -> tuple[int, dict[str, str], bytes]:
        """Ask by a connection of its own: (status, headers, body)."""
        try:
            with urllib.request.urlopen(f"http://{self.address(service)}{path}", timeout=10) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = 60.0) -> int:
        return self.process.wait(within)


def ended(process: subprocess.Popen[bytes] | ForkedProcess) -> None:
    """End a process, and wait for that; one that does not end in time is killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait(10)


@contextmanager
def serving(
    folder: Path,
    *flags: str,
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    python: str = sys.executable,
    command: Sequence[str] | None = None,
    fresh: bool = False,
    **options: Any,
) -> Iterator[Served]:
    """Run `tritium serve` on `python` with `flags` and loopback ports, or `command`, and kill it at the end.

    Its output goes to files in `folder`. It is forked (`tests.support.forked`) where nothing is asked for
    that a fork does not have; `fresh`: it never is.
    """
    environ = environ or clean_environ()
    forked = not (prefix or command or options or fresh) and python == sys.executable
    command = command or [*prefix, python, "-m", "engine", "serve", *LOOPBACK, *flags]
    folder.mkdir(exist_ok=True)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process: subprocess.Popen[bytes] | ForkedProcess
        if forked:
            process = start_module("engine", command[3:], env=environ, stdout=out, stderr=err)
        else:
            process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=out, stderr=err, **options)
        try:
            yield Served(process, folder)
        finally:
            ended(process)
