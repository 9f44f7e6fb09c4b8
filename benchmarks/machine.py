"""What a reader of the figures must know: the machine, the versions, and what else was running."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks.subjects import CHECKOUT

_PACKAGES: Final = ("trio", "httptools", "orjson", "numpy", "onnxruntime", "protobuf", "grpclib", "grpcio")


def _processor() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _first_line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).partition("\n")[0] if done.returncode in (0, 1) else ""


def _revision() -> str:
    return _first_line(["git", "describe", "--always", "--dirty"]) or "unknown"


def _client(name: str) -> str:
    if name == "own":
        return "benchmarks.grpc.load (own)"
    line = _first_line([name, "-v" if name == "wrk" else "--version"])
    return line.partition(" [")[0] or f"{name} (not installed)"


def busy() -> float:
    """Return the load average of the last minute for each core that may be used."""
    return os.getloadavg()[0] / len(os.sched_getaffinity(0))


def describe(clients: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return the machine and the software, as labels and text."""
    packages = ", ".join(f"{package} {_version(package)}" for package in _PACKAGES)
    return [
        ("processor", f"{_processor()}, {len(os.sched_getaffinity(0))} cores usable, {_memory()}"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("python", f"{platform.python_implementation()} {platform.python_version()}; {packages}"),
        ("load client", ", ".join(map(_client, clients)) or "none"),
        ("revision", _revision()),
        ("load before the run", f"{busy():.2f} a core"),
    ]
