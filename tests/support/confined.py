"""How far a server's workers are shut in, as the kernel has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from engine.worker.limits import VARIABLE

GUARD = ("guard", "1", "2")
"""The level that a worker was started with; its `NoNewPrivs`, and its `Seccomp`: a filter.

A worker on a Python of its model's was told its level before it became that program: "" stands for it.
"""


def confinements(log: Path) -> set[tuple[str, str, str]]:
    """Return how the workers are confined that a server's log, of Triton's format, tells the start of.

    At least one of them lives. `GUARD` is one of the values.
    """
    pids = re.findall(r"worker_started .*\bpid=(\d+)", log.read_text())
    found = {confined(int(pid)) for pid in pids if Path("/proc", pid).exists()}
    assert found, log.read_text()
    return found


def confined(pid: int) -> tuple[str, str, str]:
    """Return how one worker is confined."""
    process = Path("/proc", str(pid))
    environ = dict(each.split("=", 1) for each in (process / "environ").read_text().split("\0") if each)
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    level = json.loads(environ[VARIABLE])["sandbox"] if VARIABLE in environ else ""
    return level, status["NoNewPrivs"], status["Seccomp"]
