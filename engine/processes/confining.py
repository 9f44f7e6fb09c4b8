"""The limits that a process running model code is told when it starts.

See `engine.worker.limits` and docs/worker_life.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from actors.values.confinement import Confinement, Sandbox
from engine.worker.limits import VARIABLE

_CEILING_ROOM: Final = 1024**3
"""Private memory beyond twice the limit that may be asked for, touched or not.

Stacks of threads and pools take some.
"""


def confining_environ(limits: Confinement, files: Iterable[Path], *, kind: str = "CPU") -> dict[str, str]:
    """Return the environment variable that confines a worker on a device of this kind.

    There is none if nothing is confined. `files` are what the worker may read in any sandbox: its model.
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
        if limits.imposed:
            document["given"] = [*limits.read, *limits.write]
    return {VARIABLE: json.dumps(document)}


def _ceiling(limits: Confinement, kind: str) -> int:
    """Return how many bytes of private memory a worker may ask for; 0 sets no limit.

    It is 0 if drivers ask for more memory than is ever used.
    """
    return 2 * limits.memory + _CEILING_ROOM if limits.memory and kind == "CPU" else 0
