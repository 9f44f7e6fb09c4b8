"""What a process that runs model code is told of its limits when it is started: see `engine.worker.limits` and docs/worker_life.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from actors.specs import Confinement, Sandbox
from engine.worker.limits import VARIABLE

_CEILING_ROOM: Final = 1024**3
"""Private memory beyond twice the limit that may be asked for, touched or not: stacks of threads and pools take some."""


def confining_environ(limits: Confinement, files: Iterable[Path], *, kind: str = "CPU") -> dict[str, str]:
    """Return the environment variable that confines a worker on a device of this kind; none where nothing does.

    `files` are what it may read in any sandbox: its model.
    """
    if limits == Confinement():
        return {}
    document: dict[str, object] = {
        "sandbox": limits.sandbox.value,
        "watched": limits.watched,
        "childless": limits.processes == 1,
        "ceiling": _ceiling(limits, kind),
    }
    if limits.sandbox is Sandbox.STRICT:
        document["read"] = [*map(str, files), *limits.read]
        document["write"] = list(limits.write)
    return {VARIABLE: json.dumps(document)}


def _ceiling(limits: Confinement, kind: str) -> int:
    """Return how many bytes of private memory may be asked for; 0 where drivers ask for more than anybody uses."""
    return 2 * limits.memory + _CEILING_ROOM if limits.memory and kind == "CPU" else 0
