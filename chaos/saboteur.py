"""The same server as `tritium serve` runs, with a control socket through which parts of it are made to fail.

    python -m chaos.saboteur --sabotage-socket=PATH FLAG…

The flags are those of `tritium serve`. The socket is a Unix domain one that only this user may use. Each line
is a JSON object, answered by one, `{"ok": …}` or `{"error": "why not"}`:

    {"do": "crash", "path": "models/echo/1/scheduler"}
        an actor or a supervisor, by its path in GET /v2/tritium/tree
    {"do": "raise", "point": "batcher.turn", "times": 1, "within": "models/echo/1/scheduler"}
        see `actors.seams.faults`
    {"do": "disarm", "point": "batcher.turn"}    it will not raise any more: true if it would have
    {"do": "jump", "seconds": -3600}             the wall clock, as the server's code reads it
    {"do": "list"}                               the paths there are

Each command that does something logs `fault_injected`. `raise` logs when the exception comes out, and answers
at once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from actors.seams.faults import Points
from actors.seams.given import Seams
from actors.supervision.errors import SupervisionError
from actors.supervision.supervisor import Supervisor
from actors.values.events import Event
from chaos.languages.serving import MachineThatTells
from chaos.subject.sabotage import SOCKET_FLAG, SabotageRefused

if TYPE_CHECKING:
    from actors.values.events import Log
    from engine.server.running import RunningServer

LONGEST_LINE: Final = 65536  # bytes


class InjectedFault(Exception):
    """What an armed fault point raises. Nothing in the server expects it."""


class SabotagedMachine(MachineThatTells):
    """This machine, with a fake engine, fault points, and a wall clock that can be moved.

    Monotonic clocks are not touched, nor is the clock of the log: the checker of a run compares its time
    stamps with true time.
    """

    def __init__(self) -> None:
        self.points = Points()
        self._offset = 0  # milliseconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock on by so many seconds, or back if they are negative."""
        self._offset += round(seconds * 1e3)

    def wall_clock(self) -> int:
        """See `Machine`."""
        return super().wall_clock() + self._offset

    def seams(self) -> Seams:
        """See `Machine`."""
        return Seams(points=self.points)


class Saboteur:
    """Obeys commands against one tree."""

    def __init__(self, root: Supervisor, machine: SabotagedMachine, log: Log) -> None:
        self._root = root
        self._machine = machine
        self._log = log
        self._armed: dict[str, Callable[[], None]] = {}
        self._commands: Mapping[str, Callable[..., object]] = {
            "crash": self.crash,
            "raise": self.fail,
            "disarm": self.disarm,
            "jump": self.jump,
            "list": self.list,
        }

    def obey(self, line: bytes) -> bytes:
        """Carry out one line and return the answer to it, with its newline. Raises nothing."""
        try:
            given = json.loads(line)
            command = self._commands[given.pop("do")]
            answer = {"ok": command(**given)}
        except SabotageRefused as refused:
            answer = {"error": str(refused)}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            known = ", ".join(self._commands)
            answer = {
                "error": f"no command: {line!r} ({error!r}); `do` is one of {known}, see chaos.saboteur"
            }
        return json.dumps(answer).encode() + b"\n"

    def crash(self, path: str) -> None:
        """Kill the actor or supervisor at `path`. Raises SabotageRefused if there is none."""
        if path not in self.list():
            raise SabotageRefused(
                f"nothing at '{path}' that can be crashed; `list` names what can, now {len(self.list())} paths"
            )
        self._log(Event.FAULT_INJECTED, level="warning", fault="crash", target=path)
        try:
            self._root.kill(path)
        except SupervisionError as error:
            raise SabotageRefused(f"'{path}' can't be crashed just now: {error}") from error

    def fail(self, point: str, times: int = 1, within: str = "") -> None:
        """Have the next passes of a fault point raise.

        If `within` is given, only passes in the task of the actor at that path raise. Raises SabotageRefused
        for a point that is unknown or armed already.
        """
        if times < 1:
            raise SabotageRefused(f"'times' is {times}; it takes 1 at least to raise anything")
        left = times

        def strike() -> None:
            nonlocal left
            actor = trio.lowlevel.current_task().name
            if within not in ("", actor):
                return
            left -= 1
            if left == 0:
                self.disarm(point)
            self._log(Event.FAULT_INJECTED, level="warning", fault="raise", target=point, actor=actor)
            raise InjectedFault(f"fault point '{point}' was told to raise")

        try:
            self._armed[point] = self._machine.points.arm(point, strike)
        except (KeyError, ValueError) as error:
            raise SabotageRefused(str(error.args[0])) from error

    def disarm(self, point: str) -> bool:
        """Have a fault point raise no more; return whether it would have."""
        disarm = self._armed.pop(point, None)
        if disarm is None:
            return False
        disarm()
        return True

    def jump(self, seconds: float) -> None:
        """Move the wall clock."""
        self._machine.jump(seconds)
        self._log(Event.FAULT_INJECTED, level="warning", fault="jump", target="wall clock", seconds=seconds)

    def list(self) -> list[str]:
        """Return every path of the tree but the root's."""
        return [node.path for node in self._root.tree().walk() if node.path]


def open_socket(path: Path) -> socket.socket:
    """Return a listening socket at `path`, for this user alone.

    Raises OSError if there is a file already.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Set the rights before the socket has a name: its file is created with them.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(os.fspath(path))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


async def listen(listening: socket.socket, saboteur: Saboteur) -> None:
    """Obey every client that connects, until cancelled."""
    accepting = trio.socket.from_stdlib_socket(listening)
    async with trio.open_nursery() as nursery:
        while True:
            connection, _ = await accepting.accept()
            nursery.start_soon(_converse, trio.SocketStream(connection), saboteur)


async def _converse(stream: trio.SocketStream, saboteur: Saboteur) -> None:
    waiting = b""
    async with stream:
        try:
            async for piece in stream:
                *lines, waiting = (waiting + piece).split(b"\n")
                for line in lines:
                    await stream.send_all(saboteur.obey(line))
                if len(waiting) > LONGEST_LINE:
                    return
        except trio.BrokenResourceError:
            return  # it went away without waiting for the answer


def main(argv: Sequence[str] | None = None) -> int:
    """Serve as `tritium serve` does, with a control socket; return the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    sockets = [word.removeprefix(SOCKET_FLAG) for word in words if word.startswith(SOCKET_FLAG)]
    if len(sockets) != 1 or not sockets[0]:
        sys.stderr.write(
            f"usage: python -m chaos.saboteur {SOCKET_FLAG}PATH FLAG…, flags of `tritium serve`\n"
        )
        return 1
    return _serve([word for word in words if not word.startswith(SOCKET_FLAG)], Path(sockets[0]))


def _serve(flags: Sequence[str], path: Path) -> int:
    from engine.cli.serve import complaint
    from engine.server.run import run
    from engine.settings.settings import Settings, SettingsError

    try:
        settings = Settings.from_argv(flags, os.environ)
    except SettingsError as error:
        sys.stderr.write(complaint(error))
        return 1

    try:
        listening = open_socket(path)
    except OSError as error:
        sys.stderr.write(
            f"error: {SOCKET_FLAG}{path}: {error.strerror}; give a path at which nothing is yet\n"
        )
        return 1

    machine = SabotagedMachine()

    async def beside(running: RunningServer, log: Log) -> None:
        await listen(listening, Saboteur(running.root, machine, log))

    with listening:
        try:
            return run(settings, beside=beside, machine=machine)
        finally:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
