"""The end of a process in which the tree failed, under a server that does not pass that on.

hypercorn 0.18 ends with status 0 where its worker process failed, so that systemd and containers see
success. Its worker, which knows better, ends it by a signal that hypercorn leaves alone. The kernel keeps
such a signal from process 1 of a container. There the worker takes the right to open files from hypercorn,
which then fails by itself as it starts the next worker.

`tritium` loads this file where the name `engine` is another package's. It imports nothing of ours.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.synchronize import SemLock
from pathlib import PurePath
from typing import Final, NoReturn

_COMMAND: Final = "hypercorn"
# It makes status 138 for a shell, and `status=10/USR1` for systemd.
_SIGNAL: Final = signal.SIGUSR1

_FAILS: Final = (
    "hypercorn would end with status 0, as process 1. So that it ends with 1, Tritium keeps it from opening"
    " files: the OSError below tells of that alone\n"
)
_NO_STATUS: Final = (
    "warning: as process 1, hypercorn ends with status 0 though it failed. With --workers 0, or under an"
    " init process (docker run --init), its status tells the failure\n"
)


def under_hypercorn() -> bool:
    """Whether the command `hypercorn` is this process, or started it."""
    with suppress(OSError):
        with open(f"/proc/{_master()}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        # `hypercorn`, `python …/bin/hypercorn`, or `python -O -m hypercorn`
        names = [os.fsdecode(word) for word in words if not word.startswith(b"-")]
        return any(PurePath(name).name == _COMMAND for name in names[:2])
    return False


def end(message: str = "", *, alone: bool = True) -> NoReturn:
    """Say in a line why nothing is served, and end this process with status 1, and hypercorn with it.

    Where this worker process is not `alone`, hypercorn ends the others itself, and may end with status 0. If
    process 1 can't be made to fail, what helps is told.
    """
    sys.stdout.flush()
    if message:
        sys.stderr.write(f"error: {message}\n")
    status = 1
    if alone and _master() != os.getpid() and under_hypercorn():
        if _master() != 1:
            _remove_semaphores()
            with suppress(OSError):
                os.kill(_master(), _SIGNAL)
        elif _opens_no_more(1):
            # Only after a worker that ended well does hypercorn start another.
            status = 0
            sys.stderr.write(_FAILS)
        else:
            sys.stderr.write(_NO_STATUS)
    sys.stderr.flush()
    os._exit(status)


def _opens_no_more(process: int) -> bool:
    """Keep a process from opening files, and so from starting another; return whether that could be done."""
    # One descriptor may be waited for: the kernel refuses to wait for more than the limit. A pipe takes two.
    try:
        resource.prlimit(process, resource.RLIMIT_NOFILE, (1, 1))
    except (OSError, ValueError):
        return False
    return True


def _master() -> int:
    master = parent_process()
    return os.getpid() if master is None or master.pid is None else master.pid


def _remove_semaphores() -> None:
    """Remove what hypercorn shares with this process, about which Python would write warnings at its end."""
    gc.unfreeze()  # the collector does not list what is frozen
    for each in gc.get_objects():
        if isinstance(each, SemLock):
            with suppress(AttributeError, OSError):
                SemLock._cleanup(each._semlock.name)  # type: ignore[attr-defined]  # noqa: SLF001
