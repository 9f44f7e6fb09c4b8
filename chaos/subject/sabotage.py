"""The harness's end of the saboteur's socket. See `chaos.saboteur` for the other one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trio

SOCKET_FLAG: Final = "--sabotage-socket="


class SabotageRefused(Exception):
    """The saboteur could not do what it was asked; the message says why, and what would have worked."""


class SabotageClient:
    """The harness's end of the socket.

    It opens a connection for each command.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def crash(self, path: str) -> None:
        """Kill an actor or a supervisor. Raises SabotageRefused."""
        await self._ask(do="crash", path=path)

    async def fail(self, point: str) -> None:
        """Have a fault point raise. Raises SabotageRefused."""
        await self._ask(do="raise", point=point)

    async def disarm(self, point: str) -> bool:
        """Have a fault point raise no more. Raises SabotageRefused."""
        return bool(await self._ask(do="disarm", point=point))

    async def jump(self, seconds: float) -> None:
        """Move the server's wall clock. Raises SabotageRefused."""
        await self._ask(do="jump", seconds=seconds)

    async def list(self) -> Sequence[str]:
        """Return the paths of the tree. Raises SabotageRefused."""
        return list(await self._ask(do="list"))

    async def _ask(self, **command: object) -> Any:
        async with await trio.open_unix_socket(os.fspath(self._path)) as stream:
            await stream.send_all(json.dumps(command).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                piece = await stream.receive_some()
                if not piece:
                    raise SabotageRefused(f"the server went away before it answered {command}")
                answer += piece
        given = json.loads(answer)
        if "error" in given:
            raise SabotageRefused(given["error"])
        return given["ok"]
