"""What of a sandbox this kernel and this machine can't apply, told once when a server starts.

Each worker finds out for itself, and reports what it could not apply (`engine.worker.limits`). This is known
before there is a worker, and told for the operator's floor.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Final

from actors.values.confinement import Sandbox
from actors.values.events import Event, Log
from engine.processes import users
from engine.settings.sandbox import SandboxSettings
from engine.worker.sandbox import landlock_version, unavailable
from engine.worker.syscalls import MACHINES

_PR_GET_SECCOMP: Final = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What sandboxes are made of."""

    landlock: int  # its version; -1 if there is none
    filters: bool  # of system calls
    machine: str
    # Why workers get no user ids of their own; None: they do, "": the server is not root.
    no_users: str | None


def this_kernel() -> Kernel:
    """Return what this process finds."""
    return Kernel(
        landlock=landlock_version(),
        filters=ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0,
        machine=os.uname().machine,
        no_users=users.unable(),
    )


def lacking(settings: SandboxSettings, kernel: Kernel) -> list[str]:
    """Return what this kernel can't apply of the sandbox that models get, in sentences for an operator."""
    level = settings.level
    if level is Sandbox.OFF:
        return []
    missing: list[str] = []
    if not kernel.filters:
        missing.append("the filter of system calls: this kernel has no seccomp")
    elif kernel.machine not in MACHINES:
        missing.append(f"the filter of system calls: it is known for {' and '.join(MACHINES)} only")
    missing += unavailable(level.value, kernel.landlock)
    if level is Sandbox.STRICT and kernel.no_users:
        missing.append(f"a user of its own for each worker: {kernel.no_users}")
    what = settings.flag if settings.asked else f"the default sandbox, {level.value},"
    return [f"{what} lacks {each}" for each in missing]


def tell_what_lacks(settings: SandboxSettings, kernel: Kernel, log: Log) -> None:
    """Log what this kernel can't apply: a warning where the operator has asked for it."""
    for each in lacking(settings, kernel):
        log(Event.SERVER_STARTING, level="warning" if settings.asked else "info", warning=each)
