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
from engine.processes import users
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


def lacking(level: Sandbox, kernel: Kernel) -> list[str]:
    """Return what can't be applied of a floor of this level, as warnings for an operator."""
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
    return [f"--sandbox={level.value} lacks {each}" for each in missing]
