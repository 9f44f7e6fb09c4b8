"""One repository agent of one model, in a process of its own, as a thread of the server sees it.

Everything here waits; call it on threads only. `kill` may be called on any thread: it ends an action that
runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from engine.processes import users
from engine.processes.agents.declared import Wanted
from engine.processes.family import Family
from engine.processes.programs import start

PROGRAM: Final = Path(__file__).parent / "host.py"
_LARGEST: Final = 4 * 1024 * 1024  # of one thing that an agent's process says
# A process whose socket has ended is about to end.
_DYING_SECONDS: Final = 2.0
_LARGEST_OUTPUT: Final = 64 * 1024  # of what an agent prints during one action; the rest is counted
_LONGEST_LINE: Final = 16 * 1024
_LINE: Final = 32  # bytes that a line counts beside its text

Printed = Callable[[str, str], None]
"""Told the agent's name and a line that it printed."""


class AgentFailed(Exception):
    """An agent has failed, or has not answered; the message says which and why."""


class AgentProcess:
    """The process of one agent of one model, which is started by its first action."""

    def __init__(
        self,
        wanted: Wanted,
        target: str,
        *,
        model: str,
        config: Mapping[str, Any],
        environ: Mapping[str, str],
        memory: int,
        printed: Printed,
    ) -> None:
        """`memory` is how many bytes of address space it may take, 0 without a limit."""
        self.name = wanted.name
        self._first = {
            "target": target,
            "model": model,
            "config": config,
            "parameters": dict(wanted.parameters),
            "memory": memory,
            "path": [str(Path(__file__).parents[3]), *_own_packages()],
        }
        self._environ = environ
        self._printed = printed
        self._folders: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._family: Family | None = None
        self._line: socket.socket | None = None
        self._heard = b""
        self._told = b""
        self._output_left = _LARGEST_OUTPUT  # of the action that runs
        self._passed_over = 0  # lines
        self.killed = False  # or has ended: it does nothing any more

    def act(self, action: str, location: Path, within: float) -> Path:
        """Have the agent do `action`; return where the model lies after that.

        Raises AgentFailed if it fails, ends, or takes longer than `within` seconds: then it is ended.
        """
        if self.killed:
            raise AgentFailed(f"repository agent '{self.name}' has ended")
        order: dict[str, Any] = {"action": action, "location": str(location)}
        if self._process is None:
            order |= self._first
            self._start()
        self._output_left = _LARGEST_OUTPUT
        try:
            self._say(order)
            answer = self._answer(action, time.monotonic() + within, within)
        except AgentFailed:
            self.kill()
            raise
        except OSError as error:
            words = self._last_words()
            self.kill()
            raise AgentFailed(f"repository agent '{self.name}' ended during {action}{words}") from error
        finally:
            self._tell_passed_over()
        if "error" in answer:
            raise AgentFailed(f"repository agent '{self.name}' failed in {action}: {answer['error']}")
        return Path(str(answer["location"]))

    def kill(self) -> None:
        """End the process, and all that it has started, at once."""
        self.killed = True
        if self._family is not None:
            self._family.kill()

    def end(self) -> None:
        """End the process, and remove the folders that it was given. Idempotent."""
        self.killed = True
        if self._process is not None and self._family is not None:
            self._family.kill()
            self._process.wait()
            self._family.end()
        if self._line is not None:
            self._line.close()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        for folder in self._folders:
            shutil.rmtree(folder.parent, ignore_errors=True)
        self._folders.clear()

    def _start(self) -> None:
        try:
            self._process, self._family, self._line = start(
                PROGRAM, environ=self._environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise AgentFailed(
                f"no process could be started for repository agent '{self.name}': {error.strerror or error}"
            ) from error
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        if self.killed:  # by another thread, which saw no process yet
            self._family.kill()

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._line is not None
        self._line.settimeout(30.0)
        self._line.sendall(json.dumps(message).encode() + b"\n")

    def _answer(self, action: str, until: float, within: float) -> dict[str, Any]:
        """Wait for the end of an action, giving out folders meanwhile."""
        while True:
            said = self._next(action, until, within)
            if "wants" in said:
                self._say(self._folder())
            elif "releases" in said:
                self._say(self._taken_back(str(said["releases"])))
            elif said.get("done") == action and ("error" in said or "location" in said):
                return said
            else:
                raise AgentFailed(f"repository agent '{self.name}' said {str(said)[:80]} in {action}")

    def _next(self, action: str, until: float, within: float) -> dict[str, Any]:
        assert self._line is not None
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._line, selectors.EVENT_READ)
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                left = until - time.monotonic()
                ready = selector.select(left) if left > 0 else ()  # it may print without a pause
                if not ready:
                    raise AgentFailed(
                        f"repository agent '{self.name}' did not end {action} within {within:g} s and was"
                        " ended (--repoagent-timeout)"
                    )
                for key, _ in ready:
                    if key.fileobj is self._process.stdout:
                        if not self._hear_output():
                            selector.unregister(self._process.stdout)
                    else:
                        self._hear()
        self._hear_output()
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise AgentFailed(f"repository agent '{self.name}' wrote to the server's socket in {action}")
        return said

    def _hear(self) -> None:
        assert self._line is not None
        piece = self._line.recv(65536)
        if not piece or len(self._heard) > _LARGEST:
            raise OSError("the socket has ended")
        self._heard += piece

    def _hear_output(self) -> bool:
        """Take in what it has printed; False if that has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            piece = os.read(self._process.stdout.fileno(), 65536)
        except BlockingIOError:
            return True
        *lines, rest = (self._told + piece).split(b"\n")
        self._told = rest[-_LONGEST_LINE:]
        for line in lines:
            self._tell(line[-_LONGEST_LINE:])
        return bool(piece)

    def _tell(self, line: bytes) -> None:
        size = len(line) + _LINE
        if size > self._output_left:
            self._output_left = 0  # what follows is passed over, whatever its size
            self._passed_over += 1
            return
        self._output_left -= size
        self._printed(self.name, line.decode(errors="replace"))

    def _tell_passed_over(self) -> None:
        count, self._passed_over = self._passed_over, 0
        if count:
            self._printed(self.name, f"({count} more lines were printed and are not in the log)")

    def _last_words(self) -> str:
        if self._process is None or self._process.stdout is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self._hear_output()
        try:
            status = self._process.wait(_DYING_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        return f" (signal {-status})" if status < 0 else f" (exit status {status})"

    def _folder(self) -> dict[str, str]:
        try:
            parent = Path(tempfile.mkdtemp(prefix="tritium-agent-"))
            users.share(parent)
            # Named as its model: some code looks at the name of the folder that it was loaded from.
            folder = parent / str(self._first["model"])
            folder.mkdir(mode=0o755)
        except OSError as error:
            return {"error": f"no folder could be made: {error.strerror or error}"}
        self._folders.append(folder)
        return {"folder": str(folder)}

    def _taken_back(self, folder: str) -> dict[str, str]:
        path = Path(folder)
        if path not in self._folders:
            return {"error": f"'{folder}' was not given to this agent"}
        self._folders.remove(path)
        shutil.rmtree(path.parent, ignore_errors=True)
        return {"released": folder}


def _own_packages() -> list[str]:
    """Return the folder of `tritium` in a checkout; an installed one is found without it."""
    public = Path(__file__).parents[2] / "worker" / "authoring" / "public"
    return [str(public)] if public.is_dir() else []
