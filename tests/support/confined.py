"""How far a server's workers are shut in, as the kernel has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from engine.worker.limits import VARIABLE

GUARD = ("guard", "1", "2")
"""The level that a worker was started with; its `NoNewPrivs`, and its `Seccomp`: a filter."""


def confinements(log: Path) -> set[tuple[str, str, str]]:
    """Return how the workers are confined that a server's log, of Triton's format, tells the start of.

    At least one of them lives. `GUARD` is one of the values.
    """
    pids = re.findall(r"worker_started .*\bpid=(\d+)", log.read_text())
    found = {_confined(Path("/proc", pid)) for pid in pids if Path("/proc", pid).exists()}
    assert found, log.read_text()
    return found


def _confined(process: Path) -> tuple[str, str, str]:
    environ = dict(each.split("=", 1) for each in (process / "environ").read_text().split("\0") if each)
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    level = json.loads(environ.get(VARIABLE, "{}")).get("sandbox", "off")
    return level, status["NoNewPrivs"], status["Seccomp"]
