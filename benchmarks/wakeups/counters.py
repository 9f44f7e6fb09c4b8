"""What the kernel counts of a process: its CPU time, how often it was switched, its system calls."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ATTACHED: Final = 5.0  # seconds that strace may take to begin


class Unavailable(Exception):
    """A figure can't be had here, and why."""


@dataclass(frozen=True, slots=True)
class Used:
    """What processes have used, with all their threads."""

    cpu: int  # nanoseconds on a core
    slept: int  # switches because it waited: as many wake-ups
    driven: int  # switches because another process was to run

    def __sub__(self, before: Used) -> Used:
        return Used(self.cpu - before.cpu, self.slept - before.slept, self.driven - before.driven)


def _found(pattern: str, text: str) -> int:
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else 0


def used(*pids: int) -> Used:
    """Read what processes have used, all together. Raises OSError where one is gone."""
    cpu = slept = driven = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
        status = (task / "status").read_text()
        cpu += int((task / "schedstat").read_text().split()[0])
        slept += _found(r"^voluntary_ctxt_switches:\s+(\d+)$", status)
        driven += _found(r"^nonvoluntary_ctxt_switches:\s+(\d+)$", status)
    return Used(cpu, slept, driven)


def system_calls(summary: str) -> Mapping[str, int]:
    """Read what `strace -c` prints: how often each system call was made."""
    found = {}
    for line in summary.splitlines():
        # % time, seconds, usecs/call, calls, errors (or nothing), syscall
        match = re.fullmatch(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)", line)
        if match and match[2] != "total":
            found[match[2]] = int(match[1])
    return found


def traced(pid: int, meanwhile: Callable[[], object], scratch: Path) -> Mapping[str, int]:
    """Return the system calls that a process and its threads make while `meanwhile` runs.

    Raises Unavailable where strace is not installed, or may not look.
    """
    program = shutil.which("strace")
    if program is None:
        raise Unavailable("strace is not installed (Debian and Ubuntu: apt-get install strace)")
    summary = scratch / "strace"
    command = [program, "-f", "-c", "-qq", "-o", str(summary), "-p", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        try:
            _wait_attached(pid, child)
            meanwhile()
        finally:
            child.send_signal(signal.SIGINT)
    return system_calls(summary.read_text())


def _wait_attached(pid: int, child: subprocess.Popen[str]) -> None:
    until = time.monotonic() + _ATTACHED
    tasks = Path(f"/proc/{pid}/task")
    while any(
        re.search(r"^TracerPid:\s+0$", (each / "status").read_text(), re.MULTILINE)
        for each in tasks.iterdir()
    ):
        if child.poll() is not None or time.monotonic() > until:
            child.kill()
            _, errors = child.communicate()
            raise Unavailable(f"strace can't look at a process here: {errors.strip()[-200:]}")
        time.sleep(0.01)
