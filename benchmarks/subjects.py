"""What is measured.

These are the yardstick, servers started here from a checkout or a revision, and servers already running.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks import processes
from benchmarks.payloads import HEADER_LENGTH, Request, WrongAnswer, decode
from benchmarks.scenarios import Tensors
from chaos.subject.ports import free_ports

CHECKOUT: Final = Path(__file__).parent.parent

READY_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 15.0
LEAVE_TIMEOUT: Final = 2.0
_REQUEST_TIMEOUT: Final = 30.0


class NotStarted(Exception):
    """A server did not come up; the message ends with the last lines it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something that answers HTTP on this host or another.

    `pid` is known only of what was started here. `grpc_port` is None if it is not known whether it answers
    gRPC.
    """

    label: str
    host: str
    port: int
    grpc_port: int | None = None
    pid: int | None = None
    is_yardstick: bool = False

    def url(self, model: str, answer_size: int) -> str:
        """Return where a load client posts.

        It is a model's infer endpoint, or the yardstick's path for so many bytes.
        """
        path = f"/{answer_size}" if self.is_yardstick else infer_path(model)
        return f"http://{self.host}:{self.port}{path}"

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection, opened by its first request; the caller closes it."""
        return http.client.HTTPConnection(self.host, self.port, timeout=_REQUEST_TIMEOUT)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET. Raises OSError or HTTPException without an answer."""
        connection = self.connect()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get_json(self, path: str) -> Any:
        """Return the JSON body of a GET. Raises WrongAnswer for another status than 200."""
        status, body = self.get(path)
        if status != 200:
            raise WrongAnswer(f"GET {path}: {status} {body[:200].decode(errors='replace')}")
        return json.loads(body)

    def infer(self, model: str, request: Request) -> tuple[Tensors, int]:
        """Send one request; return its outputs and the size of its body.

        Raises WrongAnswer, and OSError if there is no answer.
        """
        connection = self.connect()
        try:
            return infer(connection, model, request)
        finally:
            connection.close()


def infer_path(model: str) -> str:
    """Return the path of a model's infer endpoint."""
    return f"/v2/models/{model}/infer"


def infer(connection: http.client.HTTPConnection, model: str, request: Request) -> tuple[Tensors, int]:
    """Send one request on an open connection; see `Subject.infer`."""
    connection.request("POST", infer_path(model), request.body, dict(request.headers))
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise WrongAnswer(f"{model}: {response.status} {body[:300].decode(errors='replace')}")
    length = response.getheader(HEADER_LENGTH)
    return decode(body, None if length is None else int(length)), len(body)


@contextmanager
def running(
    command: Sequence[str], *, cwd: Path, log: Path, grace: float = LEAVE_TIMEOUT
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that writes to `log`; on the way out stop it and everything it started, by pid.

    What outlives the child by `grace` seconds is killed, and named on standard error.
    The child gets a session of its own, so that an interrupt typed at the terminal reaches the harness only.
    """
    environment = dict(os.environ, PYTHONPATH=str(cwd), PYTHONUNBUFFERED="1")
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        descendants = processes.family(child.pid)[1:]
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for stat in processes.wait_gone(descendants, timeout=grace):
            print(f"benchmarks: process {stat.pid} outlived its server; killed", file=sys.stderr)
            os.kill(stat.pid, signal.SIGKILL)


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-15:]
    return "\n".join(lines) or "(it wrote nothing)"


def _check_alive(child: subprocess.Popen[bytes], what: str, log: Path) -> None:
    if child.poll() is not None:
        raise NotStarted(f"{what} ended with {child.returncode} before it was ready:\n{_last_lines(log)}")


@contextmanager
def printing_port(label: str, module: Sequence[str], scratch: Path) -> Iterator[tuple[int, int]]:
    """Run a module of this checkout, with arguments, that prints the port it serves.

    Yields its pid and the port. Raises NotStarted.
    """
    log = scratch / f"{label}.log"
    with running([sys.executable, "-m", *module], cwd=CHECKOUT, log=log) as child:
        deadline = time.monotonic() + READY_TIMEOUT
        while not (text := log.read_text()).endswith("\n"):
            _check_alive(child, f"the {label}", log)
            if time.monotonic() > deadline:
                raise NotStarted(f"the {label} printed no port in {READY_TIMEOUT:.0f} s")
            time.sleep(0.01)
        yield child.pid, int(text)


@contextmanager
def yardstick(scratch: Path) -> Iterator[Subject]:
    """Run `benchmarks.yardstick` in a process of its own."""
    with printing_port("yardstick", ["benchmarks.yardstick", "--port=0"], scratch) as (pid, port):
        yield Subject(label="yardstick", host="127.0.0.1", port=port, pid=pid, is_yardstick=True)


@contextmanager
def server(
    label: str, checkout: Path, repository: Path, scratch: Path, options: Sequence[str] = ()
) -> Iterator[Subject]:
    """Run `engine serve` from `checkout` on free ports of 127.0.0.1; yield once it is ready.

    `options` are passed on to it, after those of the addresses.
    Raises NotStarted.
    """
    http_port, metrics_port, grpc_port = free_ports(3)
    command = [
        sys.executable,
        "-m",
        "engine",
        "serve",
        f"--model-repository={repository}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
    ]
    command += [f"--http-port={http_port}", f"--metrics-port={metrics_port}", f"--grpc-port={grpc_port}"]
    if (repository / "cached").exists():
        command.append("--cache-config=local,size=67108864")
    if (repository / "rate_limited").exists():
        command.append("--rate-limit=execution_count")
    command += options
    with tempfile.NamedTemporaryFile(dir=scratch, prefix="server-", suffix=".log", delete=False) as created:
        log = Path(created.name)
    with running(command, cwd=checkout, log=log) as child:
        subject = Subject(label=label, host="127.0.0.1", port=http_port, grpc_port=grpc_port, pid=child.pid)
        wait_ready(subject, child, log)
        yield subject


def wait_ready(subject: Subject, child: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server that was started here is ready. Raises NotStarted, with its last lines."""
    deadline = time.monotonic() + READY_TIMEOUT
    seen = "no answer"
    while True:
        _check_alive(child, f"the server ({subject.label})", log)
        try:
            status, _ = subject.get("/v2/health/ready")
            seen = f"status {status}"
            if status == 200:
                return
        except (OSError, http.client.HTTPException) as error:
            seen = repr(error)
        if time.monotonic() > deadline:
            raise NotStarted(
                f"the server ({subject.label}) was not ready after {READY_TIMEOUT:.0f} s (last: {seen}):\n{_last_lines(log)}"
            )
        time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was not started here: `http://host:port`, `?grpc=port` if it answers gRPC too."""

    label: str
    host: str
    port: int
    grpc_port: int | None = None


@dataclass(frozen=True, slots=True)
class Checkout:
    """A directory that holds Tritium's source."""

    label: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit of this repository, by any name git knows."""

    label: str


Target = Running | Checkout | Revision


def parse_target(text: str) -> Target:
    """Read what `--compare` takes: an http URL, a directory with an `engine` package, or a git revision.

    Raises ValueError for a URL that is not http://host:port, or that with ?grpc=port.
    """
    if "://" in text:
        parts = urlsplit(text)
        asked = re.fullmatch(r"(?:grpc=(\d+))?", parts.query)
        if (
            parts.scheme != "http"
            or not parts.hostname
            or not parts.port
            or parts.path.strip("/")
            or asked is None
        ):
            raise ValueError(f"{text!r} is no http://host:port or http://host:port?grpc=port")
        return Running(text, parts.hostname, parts.port, int(asked[1]) if asked[1] else None)
    if Path(text, "engine").is_dir():
        return Checkout(text, Path(text).resolve())
    return Revision(text)


@contextmanager
def worktree(revision: str, scratch: Path, repository: Path = CHECKOUT) -> Iterator[Path]:
    """Check `revision` out into a temporary git worktree. Raises NotStarted if git can't."""
    directory = Path(tempfile.mkdtemp(dir=scratch, prefix="worktree-"))

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=False
        )

    added = git("worktree", "add", "--quiet", "--detach", str(directory), revision)
    if added.returncode != 0:
        raise NotStarted(f"{revision!r} is no URL, no checkout, and git says: {added.stderr.strip()}")
    try:
        yield directory
    finally:
        git("worktree", "remove", "--force", str(directory))


@dataclass(frozen=True, slots=True)
class Source:
    """A target made ready to start: a directory with the source, or None for what already runs."""

    target: Target
    directory: Path | None

    @property
    def label(self) -> str:
        """How reports name it."""
        return self.target.label

    @contextmanager
    def serve(self, repository: Path, scratch: Path) -> Iterator[Subject]:
        """Serve `repository`, or pass on the server that runs already. Raises NotStarted."""
        match self.target, self.directory:
            case Running(label=label, host=host, port=port, grpc_port=grpc_port), _:
                yield Subject(label=label, host=host, port=port, grpc_port=grpc_port)
            case _, Path() as directory:
                with server(self.label, directory, repository, scratch) as subject:
                    yield subject
            case _:
                raise NotStarted(f"{self.label}: no source to start it from")


@contextmanager
def prepared(target: Target, scratch: Path) -> Iterator[Source]:
    """Make a target's source available for as long as the context lasts."""
    match target:
        case Running():
            yield Source(target, None)
        case Checkout(directory=directory):
            yield Source(target, directory)
        case Revision(label=revision):
            with worktree(revision, scratch) as directory:
                yield Source(target, directory)


def tree(subject: Subject) -> Mapping[str, Any]:
    """Return the snapshot of a server's supervision tree. Raises WrongAnswer."""
    snapshot = subject.get_json("/v2/tritium/tree")
    if not isinstance(snapshot, dict):
        raise WrongAnswer("GET /v2/tritium/tree: no JSON object")
    return snapshot
