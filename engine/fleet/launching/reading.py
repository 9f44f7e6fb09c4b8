"""Where a group's servers are, by the registry of the Ray cluster. Nothing is changed there.

A child process asks the registry (`engine.fleet.launching.asking`): Ray's client ends its process when the
head of the cluster is away for a minute, and the process that reads here must outlive that.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, Self

from engine.fleet.launching.registry import LaunchedServer, Phase

_PATIENCE: Final = 20.0  # seconds for one answer; the first one has Ray imported


class NoRegistry(Exception):
    """The registry could not be asked; the message says why, and what would work."""


class Registry:
    """The registry of one cluster, for one thread at a time. Close it at the end.

    `address` is host:port of the cluster's GCS (what `ray start --head` prints), or `auto` on one of its
    nodes. This process need not run on a node. `python` has Ray, and runs with `environ`.
    """

    def __init__(
        self, address: str, python: str = sys.executable, environ: Mapping[str, str] | None = None
    ) -> None:
        self._address = address
        self._python = python
        self._environ = environ
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def replicas(self, group: str) -> list[LaunchedServer]:
        """Return a group's servers by name, but those that stop or have no ports yet. Raises NoRegistry.

        A server whose node has died is among them, as it was, until Ray has started it on another node.
        """
        if self._child is None:
            self._child = subprocess.Popen(
                [self._python, "-m", "engine.fleet.launching.asking", self._address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environ,
            )
        answer = self._ask(self._child, group)
        if "error" in answer:
            raise NoRegistry(answer["error"])
        found = [LaunchedServer.read(each) for each in answer["servers"]]
        return [each for each in found if each.phase is not Phase.STOPPING and each.http_port]

    def close(self) -> None:
        """End the child process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _ask(self, child: subprocess.Popen[str], group: str) -> dict[str, str]:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(f"{group}\n")
            child.stdin.flush()
            ready, _, _ = select.select([child.stdout], [], [], _PATIENCE)
            line = child.stdout.readline() if ready else ""
        except OSError:
            line = ""
        if not line:
            self.close()
            raise NoRegistry(
                f"the Ray cluster at {self._address} did not answer; where it asks for a token, RAY_AUTH_MODE"
                " and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH must be set here, too"
            )
        answer: dict[str, str] = json.loads(line)
        return answer
