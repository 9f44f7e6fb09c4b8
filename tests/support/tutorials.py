"""A tutorial's page, done as a reader does it: its files are written, its commands run, its output compared.

Of the fenced blocks of a page, one with a `title` is a file of that path. One of `sh` holds commands; if it
begins with `tritium serve` or `tritium run`, it is a server in a terminal of its own, which runs until the
next one is started, or the page ends. `pip install` is left out. One of `text` is what the commands before it
print; `…` in it stands for anything, and alone on a line for any lines. One of `output` is the same, where
numbers, and the spaces around them, are the reader's own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.operators import clean_environ

_FENCE: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_OWN_PORT: Final = re.compile(r"(?<=-port=)\d+|(?<=127\.0\.0\.1:)8000")
_SERVER: Final = re.compile(r"(?:[A-Z_]+=\S+ +)*(?:tritium (?:serve|run|sagemaker)|hypercorn) ")
_ASKS_A_SERVER: Final = re.compile(r"\b(tritium (?:events|traffic|tree))\b(?!.* --url)")
_PORTS: Final = {
    "8000": "HTTPService",
    "8001": "GRPCInferenceService",
    "8002": "Metrics Service",
    "8003": "HTTPManagementService",
    "8004": "GRPCManagementService",
    "8080": "Sagemaker HTTPService",
    "9000": "OpenAI HTTPService",
}
"""The ports that a page names, and what the server's log calls the listeners. The kernel chooses others."""
_SECONDS: Final = 60


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    return [Block(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def matches(shown: str, printed: str, *, own_numbers: bool = False) -> bool:
    """Whether `printed` is what a page shows, where `…` stands for anything, and `own_numbers` for each other."""
    if own_numbers:
        shown, printed = (re.sub(r" *\d[\d.]* *", " 0 ", text) for text in (shown, printed))
    pattern = "\n".join(_line(line) for line in shown.strip().splitlines())
    return re.fullmatch(pattern, "\n".join(map(str.rstrip, printed.strip().splitlines()))) is not None


def _line(line: str) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*?.*"
    return ".*".join(map(re.escape, line.rstrip().split("…")))


class Reader:
    """One who follows a page in `folder`, with a server on ports that the kernel chooses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[bytes] | None = None
        self.printed = ""
        self._ports: dict[str, str] = {}
        self._log = folder / ".log"
        self._here = folder / ".here"
        self._here.write_text(str(folder))

    def follow(self, page: Path) -> None:
        """Do what the page says. Raises AssertionError where something else comes of it."""
        for block in blocks(page):
            if block.title:
                self._write(block)
            elif block.language == "sh" and _SERVER.match(block.text):
                self._serve(block.text)
            elif block.language == "sh":
                self._run(block.text)
            elif block.language in {"text", "output"}:
                shown = self._with_own_ports(block.text)
                self._compare(shown, own_numbers=block.language == "output")
            else:
                raise AssertionError(f"a block of {page.name} is nothing that a reader can do: {block}")

    def stop(self) -> None:
        """End the server as Ctrl-C does."""
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            try:
                assert self.server.wait(_SECONDS) == 0, self._log.read_text()
            finally:
                self.server.kill()
                self.server = None

    def _write(self, block: Block) -> None:
        path = Path(self._here.read_text().strip()) / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._with_own_ports(block.text), encoding="utf-8")

    def _run(self, commands: str) -> None:
        done = [line for line in commands.splitlines() if not line.startswith("pip install ")]
        told = _ASKS_A_SERVER.sub(r"\1 --url http://127.0.0.1:8000", "\n".join(done))
        script = f'set -e\n{self._with_own_ports(told)}\npwd >"$HERE"\n'
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=self._here.read_text().strip(),
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}"
        self.printed = ran.stdout

    def _serve(self, command: str) -> None:
        self.stop()
        with self._log.open("wb") as log:
            self.server = subprocess.Popen(
                ["bash", "-c", f"exec env {_OWN_PORT.sub('0', command)}"],
                cwd=self._here.read_text().strip(),
                env=self._environ() | ({"TRITIUM_OPENAI_PORT": "0"} if "--llm" in command else {}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        named = re.findall(r"--log-file=(\S+)", command)
        logs = [self._log, *(Path(self._here.read_text().strip()) / name for name in named)]
        for _ in range(_SECONDS * 20):
            assert self.server.poll() is None, self._log.read_text()
            said = "".join(log.read_text() for log in logs if log.exists())
            if "server_ready" in said or "readiness_changed ready=True" in said:
                break
            threading.Event().wait(0.05)
        else:
            raise AssertionError(said)
        said = re.sub(r'"service": "([^"]+)", "address": "([^"]+)"', r"Started \1 at \2", said)
        said = said.replace("Running on http://", "Started HTTPService at ")  # hypercorn's words
        found = {
            port: re.search(rf"Started {listener} at 127\.0\.0\.1:(\d+)", said)
            for port, listener in _PORTS.items()
        }
        self._ports = {port: at[1] for port, at in found.items() if at}
        if "8000" in self._ports and not re.search("-server-cert|--proxy-", command):
            ready = f"http://127.0.0.1:{self._ports['8000']}/v2/health/ready"
            with urllib.request.urlopen(ready) as answer:
                assert answer.status == 200

    def _compare(self, shown: str, *, own_numbers: bool) -> None:
        told = matches(shown, self.printed, own_numbers=own_numbers)
        assert told, f"the page shows\n{shown}\nbut this was printed:\n{self.printed}"

    def _with_own_ports(self, text: str) -> str:
        for port, own in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{own}")
        return text

    def _environ(self) -> dict[str, str]:
        return clean_environ(
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            HERE=str(self._here),
            COLUMNS="80",
            PYTEST_ADDOPTS="",
            TRITIUM_HTTP_ADDRESS="127.0.0.1",
            TRITIUM_GRPC_ADDRESS="127.0.0.1",
            TRITIUM_HTTP_PORT="0",
            TRITIUM_GRPC_PORT="0",
            TRITIUM_METRICS_PORT="0",
            TRITIUM_SAGEMAKER_PORT="0",
            SAGEMAKER_BIND_TO_PORT="0",
            TRITIUM_METRICS_ADDRESS="127.0.0.1",
            TRITIUM_MANAGEMENT_HTTP_PORT="0",
            TRITIUM_MANAGEMENT_GRPC_PORT="0",
        )


@contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    """Yield a reader; the server that they leave running is ended."""
    someone = Reader(folder)
    try:
        yield someone
    finally:
        someone.stop()
