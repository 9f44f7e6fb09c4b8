"""Runs the load clients, wrk and h2load, as child processes.

`benchmarks.parsers` reads what they print.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from benchmarks import parsers
from benchmarks.payloads import Request
from benchmarks.results import Load

_POST: Final = Path(__file__).parent / "post.lua"
_GRACE: Final = 10.0  # for a client to print its summary once its time is up


class ClientFailed(Exception):
    """A load client could not do its work, and said why."""


def _headers(request: Request) -> list[str]:
    return [f"{name}: {value}" for name, value in request.headers.items()]


def finish(child: subprocess.Popen[str], program: str, timeout: float) -> str:
    """Return what a client printed, once it has ended. Raises ClientFailed if it ended badly."""
    try:
        output, errors = child.communicate(timeout=timeout)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        raise ClientFailed(f"{program} ended with {child.returncode}: {(output + errors).strip()[-500:]}")
    return output


def _answered(load: Load, url: str) -> Load:
    # h2load reports no error if a server is gone: it ends well, with 0 requests.
    if not load.requests:
        raise ClientFailed(f"no answer from {url} in {load.seconds:.1f} s")
    return load


def start(command: Sequence[str], cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start a client."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)


def wrk(url: str, request: Request, *, concurrency: int, seconds: float) -> Load:
    """Load `url` with `concurrency` connections from one thread. Raises ClientFailed."""
    with tempfile.NamedTemporaryFile(prefix="tritium-body-") as body:
        body.write(request.body)
        body.flush()
        whole = math.ceil(seconds)
        command = ["wrk", "-t1", f"-c{concurrency}", f"-d{whole}s", "--latency", "-s", str(_POST), url]
        child = start([*command, "--", body.name, *_headers(request)])
        # wrk takes whole seconds only. If it is interrupted, it stops and prints what it has.
        if whole != seconds:
            try:
                child.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
        return _answered(parsers.wrk(finish(child, "wrk", whole + _GRACE)), url)


def h2load(url: str, request: Request, *, concurrency: int, seconds: float) -> Load:
    """Load `url` over HTTP/1.1 with `concurrency` connections from one thread. Raises ClientFailed."""
    with tempfile.TemporaryDirectory(prefix="tritium-h2load-") as directory:
        body, log = Path(directory, "body"), Path(directory, "log")
        body.write_bytes(request.body)
        command = [
            "h2load",
            "--h1",
            "-t1",
            f"-c{concurrency}",
            f"-D{round(seconds * 1000)}ms",
            f"--log-file={log}",
        ]
        headers = [argument for header in _headers(request) for argument in ("-H", header)]
        child = start([*command, "-d", str(body), *headers, url])
        output = finish(child, "h2load", seconds + _GRACE)
        return _answered(parsers.h2load(output, log.read_text()), url)


class Client(Protocol):
    """What `wrk` and `h2load` are: something that loads a URL for a while."""

    def __call__(self, url: str, request: Request, *, concurrency: int, seconds: float) -> Load:
        """Send `request` again and again. Raises ClientFailed."""


CLIENTS: Final[Mapping[str, Client]] = {"wrk": wrk, "h2load": h2load}


def missing(name: str) -> str | None:
    """Return why a client can't be used here, or None."""
    if shutil.which(name):
        return None
    package = {"h2load": "nghttp2-client"}.get(name, name)
    return f"{name} is not installed (Debian and Ubuntu: apt-get install {package})"
