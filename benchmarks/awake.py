"""Keeps a core from sleeping while something is measured.

One call at a time, a server's cores sleep between any two steps, and how long each takes to wake differs from
hour to hour. So a process that any other process displaces at once (SCHED_IDLE, nice 19) spins on the last
core, the same for all that is compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ROUND: Final = 1_000_000


def spin(parent: int, core: int) -> None:
    """Spin until `parent` is no longer this process's parent."""
    os.sched_setaffinity(0, {core})
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(_ROUND):
            pass


@contextmanager
def kept_awake() -> Iterator[str]:
    """Keep the last core that may be used awake; yield a note for the report."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, __file__, str(os.getpid()), str(core)]
    with subprocess.Popen(command) as child:
        try:
            yield f"core {core}, by a spinning process (SCHED_IDLE, nice 19)"
        finally:
            child.kill()


if __name__ == "__main__":
    spin(int(sys.argv[1]), int(sys.argv[2]))
