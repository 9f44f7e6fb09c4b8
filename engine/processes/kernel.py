"""What of a sandbox this kernel and this machine can't apply, told once when a server starts.

Each worker finds out for itself, and reports what it could not apply (`engine.worker.limits`). This is known
before there is a worker, and told for the operator's floor.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from actors.values.confinement import Sandbox
from actors.values.events import Event, Log
from engine.processes import users
from engine.processes.group_plan import NO_GROUP, why_none
from engine.processes.groups import find
from engine.settings.sandbox import SandboxSettings
from engine.worker.sandbox import landlock_version, unavailable
from engine.worker.syscalls import MACHINES

_PR_GET_SECCOMP: Final = 21
_ENTERED_WITHIN: Final = 60.0  # seconds
_ENTER: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from engine.worker import sandbox
sandbox.enter("guard")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What sandboxes are made of."""

    landlock: int  # its version; -1 if there is none
    filters: bool  # of system calls
    machine: str
    # Why workers get no user ids of their own; None: they do, "": the server is not root.
    no_users: str | None
    # A filter over this process, such as a service manager's, ends each process that asks for a sandbox.
    kills: bool = False
    no_groups: str = ""  # why workers get no control groups; "": they do


def this_kernel() -> Kernel:
    """Return what this process finds. It may start another, and wait for it."""
    filtered = ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)
    kills = filtered > 0 and _kills()
    return Kernel(
        landlock=-1 if kills else landlock_version(),
        filters=filtered >= 0,
        machine=os.uname().machine,
        no_users=users.unable(),
        kills=kills,
        no_groups=why_none(find()),
    )


def _kills() -> bool:
    """Whether a process that enters a sandbox is killed for it.

    One that does not come through in time tells nothing: models keep their sandbox then.
    """
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ENTER, str(Path(__file__).parents[2])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_ENTERED_WITHIN,
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode < 0


def applicable(settings: SandboxSettings, kernel: Kernel) -> SandboxSettings:
    """Return what models get: nothing by default where a worker would die of asking for it."""
    return replace(settings, level=Sandbox.OFF) if kernel.kills and not settings.asked else settings


def lacking(settings: SandboxSettings, kernel: Kernel) -> list[str]:
    """Return what this kernel can't apply of the sandbox that models get, in sentences for an operator."""
    level = settings.level
    if level is Sandbox.OFF:
        return []
    missing: list[str] = []
    if kernel.kills:
        missing.append(
            "everything: a filter of system calls over the server ends a process that asks for a sandbox."
            " Allow seccomp and Landlock there; a unit of systemd does by SystemCallFilter=@sandbox"
        )
    elif not kernel.filters:
        missing.append("the filter of system calls: this kernel has no seccomp")
    elif kernel.machine not in MACHINES:
        missing.append(f"the filter of system calls: it is known for {' and '.join(MACHINES)} only")
    if not kernel.kills:
        missing += unavailable(level.value, kernel.landlock)
    if level is Sandbox.STRICT and kernel.no_users:
        missing.append(f"a user of its own for each worker: {kernel.no_users}")
    if level is Sandbox.STRICT and kernel.no_groups:
        missing.append(f"{NO_GROUP}: {kernel.no_groups}")
    what = settings.flag if settings.asked else f"the default sandbox, {level.value},"
    return [f"{what} lacks {each}" for each in missing]


def tell_what_lacks(settings: SandboxSettings, kernel: Kernel, log: Log) -> None:
    """Log what this kernel can't apply: a warning where the operator has asked for it."""
    for each in lacking(settings, kernel):
        log(Event.SERVER_STARTING, level="warning" if settings.asked else "info", warning=each)
