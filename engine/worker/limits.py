"""What a worker imposes on itself before it has any thread and any of its model's code.

See docs/worker_life.md.

The limits come in an environment variable, so that they hold from the first line on. A sandbox that a thread
enters does not hold for threads that are there already, and importing numpy starts some. Children inherit all
of it.

Nothing here fails: what the system refuses is told to the server, which tells the operator.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import Any

VARIABLE = "TRITIUM_WORKER_LIMITS"
"""A JSON object.

Its keys are `ceiling` of private memory in bytes, `watched`, `childless`, `sandbox`, `own_user`, the paths to
`read` and to `write`, those of them that are `given` by the operator's leave, and what the server knows to be
`unapplied`.
"""

UNAPPLIED = "TRITIUM_WORKER_UNAPPLIED"
"""What an earlier program of this process could not apply (`engine.worker.stage`): a JSON array of texts."""

GATE = "TRITIUM_WORKER_GATE"
"""A descriptor on which the server writes what else could not be applied, as a JSON array, and closes it.

It does so once this process is in a control group of its own. Nothing of the model's may start before.
"""

unapplied: list[str] = []
"""What was asked for and could not be applied, each with its reason, for an operator to read."""

_PR_SET_CHILD_SUBREAPER = 36
_LEAVING_ORPHANS = ("off", "guard")
"""Sandboxes of models that may have no idea of one.

Orphans that the worker took over would stay until it ends, because no such model waits for them.
"""


def enter(environ: MutableMapping[str, str], root: str) -> None:
    """Impose what `environ` asks for, and take it out of there. `root` is where our own modules lie."""
    volunteer_for_the_oom_killer()
    unapplied.extend(_wait_at_the_gate(environ.pop(GATE, "")))
    unapplied.extend(json.loads(environ.pop(UNAPPLIED, "[]")))
    text = environ.pop(VARIABLE, "")
    if not text:
        return
    wanted = json.loads(text)
    unapplied.extend(wanted.get("unapplied", ()))
    if wanted.get("ceiling"):
        unapplied.extend(_bound_memory(wanted["ceiling"]))
    if wanted.get("watched") or wanted.get("sandbox", "off") not in _LEAVING_ORPHANS:
        _stay_the_parent()
    if wanted.get("watched") and not os.path.exists("/proc/thread-self/children"):
        unapplied.append(
            "limits of what the worker starts: this kernel does not list children (PROC_CHILDREN)"
        )
    unapplied.extend(_confine(wanted, root))


def _wait_at_the_gate(descriptor: str) -> list[str]:
    if not descriptor:
        return []
    with open(int(descriptor), encoding="utf-8") as file:
        text = file.read()
    # A server that dies before it has written says nothing.
    return list(json.loads(text)) if text else []


def _confine(wanted: Mapping[str, Any], root: str) -> list[str]:
    level = wanted.get("sandbox", "off")
    if level == "off" and not wanted.get("childless"):
        return []
    from engine.worker import sandbox

    return sandbox.enter(
        level,
        childless=wanted.get("childless", False),
        own_user=wanted.get("own_user", False),
        read=sandbox.own_paths(root) + wanted.get("read", []),
        write=wanted.get("write", []),
        given=wanted.get("given", []),
    )


def _bound_memory(ceiling: int) -> list[str]:
    """Make an unreasonable allocation fail at once.

    One allocation could fill the machine between two measurements.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (ceiling, ceiling))
    except (OSError, ValueError) as error:
        return [f"the ceiling of {ceiling} bytes of private memory: {error}"]
    return []


def _stay_the_parent() -> None:
    """Take over what our children leave behind, so that everything we have started is found below us."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def volunteer_for_the_oom_killer() -> None:
    """Ask the kernel to kill this process rather than the server if the machine's memory is used up."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        # Some sandboxes mount /proc read-only. The server is then as likely a victim as this process.
        return
