"""Servers forked from a process that has imported the server already.

A start costs more than a second of CPU, nearly all of it imports, and the suite starts hundreds of servers. A
forked server runs the same `engine.__main__.main` with its own arguments, environment, folder and output. What
differs is the import alone. Tests of the start itself, and all tests where TRITIUM_TESTS_FRESH is set, start
a new interpreter.

Run as a program, this module is the process that is forked. It ends, and its servers with it, when the process
that started it ends, however that happens.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1
LONGEST = 1 << 18


class ForkedProcess:
    """What `subprocess.Popen` offers of a process, for one that was forked elsewhere."""

    def __init__(self, pid: int, source: ForkingProcess) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._source = source
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit status, -n for signal n; None while the process runs."""
        return self._take_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. Raises subprocess.TimeoutExpired."""
        status = self._take_status(None if timeout is None else timeout * 1000)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal; of no effect on a process that has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _take_status(self, milliseconds: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._ended, select.POLLIN)
            if poller.poll(milliseconds):
                self.returncode = self._source.ask({"reap": self.pid})["status"]
                os.close(self._ended)
        return self.returncode


class ForkingProcess:
    """The process that is forked, started when it is first needed."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        module: str = "engine",
    ) -> ForkedProcess:
        """Start `python -m module` with these arguments in a session of its own."""
        asked = {"module": module, "arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
        pid = self.ask(asked, [stdout.fileno(), stderr.fileno()])["pid"]
        return ForkedProcess(pid, self)

    def ask(self, question: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """Send one question and return its answer."""
        connection = self._connected()
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        connection.sendmsg([json.dumps(question).encode()], rights)
        return json.loads(connection.recv(LONGEST))

    def _connected(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())],
                    cwd=ROOT,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._socket = ours
            atexit.register(process.wait)
            # First, so that the process ends.
            atexit.register(ours.close)
        return self._socket


FORKING = ForkingProcess()
"""The one of this process. pytest-xdist's processes each have their own."""


def fresh() -> bool:
    """Whether servers are to be started in new interpreters."""
    return bool(os.environ.get("TRITIUM_TESTS_FRESH"))


def _of_interpreter(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what an interpreter reads as it starts: packages, encodings, libraries."""
    read = {name: text for name, text in environ.items() if name.startswith(("PYTHON", "LC_", "LANG", "LD_"))}
    if read.get("PYTHONPATH") == str(ROOT):
        del read["PYTHONPATH"]  # it is found there in any case
    return read


def start_module(
    module: str, arguments: Sequence[str], *, env: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Run `python -m module` in a session of its own: a server, or a variant of one.

    It is not forked where its environment asks for another interpreter than this process has.
    """
    if not fresh() and _of_interpreter(env) == _of_interpreter(os.environ):
        return FORKING.start(arguments, cwd=ROOT, env=env, stdout=stdout, stderr=stderr, module=module)
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def be_forked(connection: socket.socket) -> tuple[str, list[str]] | None:
    """Answer questions until the other end closes; in a forked process, return the module and arguments."""
    libc = ctypes.CDLL(None)
    while True:
        question, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 2)
        if not question:
            return None
        asked = json.loads(question)
        if "reap" in asked:
            _, status = os.waitpid(asked["reap"], 0)
            connection.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            connection.close()
            os.setsid()
            for number, descriptor in enumerate(descriptors, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(asked["cwd"])
            os.environ.clear()
            os.environ.update(asked["env"])
            return asked["module"], asked["arguments"]
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"pid": pid}).encode())


def main() -> None:
    """Import the server, then be forked."""
    import gc
    import runpy

    import engine.cli.serve
    import engine.server.run  # noqa: F401  imported for the servers that are forked
    from engine.__main__ import main as tritium

    gc.collect()
    gc.freeze()
    asked = be_forked(socket.socket(fileno=int(sys.argv[1])))
    if asked is None:
        return
    gc.unfreeze()
    module, arguments = asked
    sys.argv = ["tritium", *arguments]
    if module == "engine":
        sys.exit(tritium(arguments))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
