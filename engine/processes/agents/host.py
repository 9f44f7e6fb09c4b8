"""The program that runs one repository agent of one model; run by path, `python …/agents/host.py <fd>`.

The server orders actions over the socket `fd`, one JSON object on each line, and gets one back. While an
action runs, the program may ask for a folder, or give one back. When the socket ends, because the server has
died or no longer wants the agent, this process ends, whatever its agent does.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import queue
import resource
import shutil
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Final

_OPEN_FILES: Final = 4096
_METHODS: Final = {
    "LOAD": "load",
    "LOAD_COMPLETE": "load_complete",
    "LOAD_FAIL": "load_fail",
    "UNLOAD": "unload",
    "UNLOAD_COMPLETE": "unload_complete",
}


class _Line:
    """The server at the other end: orders come in, answers and questions go out."""

    def __init__(self, connection: socket.socket) -> None:
        self.given: set[str] = set()  # folders that the server made for this agent
        self._connection = connection
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                self._said.put(json.loads(line))
        # Where the server was killed, no other process removes what the agent has decrypted or fetched.
        for folder in list(self.given):
            shutil.rmtree(Path(folder).parent, ignore_errors=True)
        if os.getpgrp() == os.getpid():  # the server has started a session for this process
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def hear(self) -> dict[str, Any]:
        """Wait for the next thing that the server says."""
        return self._said.get()

    def say(self, **message: object) -> None:
        """Tell the server."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")


def main() -> None:
    """Serve one agent until the server ends it."""
    line = _Line(socket.socket(fileno=int(sys.argv[1])))
    order = line.hear()
    _limit(order["memory"])
    # The packages of the server, and above all `tritium`, wherever it was started from.
    sys.path[:1] = order["path"]
    first, agent = order, None
    while True:
        action = order["action"]
        try:
            if agent is None:
                agent = _made(line, first)
            agent.model.action = action
            getattr(agent, _METHODS[action])()
            sys.stdout.flush()
            line.say(done=action, location=str(agent.model.location))
        except Exception as error:  # noqa: BLE001  # whatever an operator's code raises
            traceback.print_exc()
            line.say(done=action, error=f"{type(error).__name__}: {error}")
        order = line.hear()


def _made(line: _Line, order: dict[str, Any]) -> Any:
    def acquire() -> Path:
        line.say(wants="folder")
        answer = line.hear()
        if "error" in answer:
            raise OSError(answer["error"])
        line.given.add(answer["folder"])
        return Path(answer["folder"])

    def release(folder: Path) -> None:
        line.say(releases=str(folder))
        answer = line.hear()
        if "error" in answer:
            raise ValueError(answer["error"])
        line.given.discard(str(folder))

    public = importlib.import_module("tritium.agents")
    model = public.AgentModel(
        name=order["model"],
        config=order["config"],
        parameters=order["parameters"],
        location=Path(order["location"]),
        acquire=acquire,
        release=release,
    )
    agent = _class(order["target"])(model)
    agent.model = model  # also where a class of its own does not keep it
    return agent


def _class(target: str) -> Any:
    """Return the agent's class: of `module:Class`, or `Agent` of a file."""
    if target.startswith("/"):
        spec = importlib.util.spec_from_file_location("agent", target)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["agent"] = module
        sys.path.insert(0, str(Path(target).parent))
        spec.loader.exec_module(module)
        return module.Agent
    name, _, attribute = target.partition(":")
    found: Any = importlib.import_module(name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    main()
