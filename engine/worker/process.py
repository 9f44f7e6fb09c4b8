"""What a worker does because it is a process of its own.

It dies with the server, knows its limits, and reports its crash.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING

from engine.worker import limits
from engine.worker.serve import Serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_PR_SET_PDEATHSIG = 1
_EXIT_ORPHANED = 79


def run(descriptor: int, parent: int, free_names: Callable[[], None], expected: str = "") -> None:
    """Serve over the inherited socket, then end the process without running exit handlers twice.

    `expected` is the backend, `module:Class`, that a spare is kept for.
    """
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    faulthandler.enable()  # a fatal signal leaves a Python traceback on stderr, which the server logs
    if expected:
        _import_beforehand(expected)
    sock = socket.socket(fileno=descriptor)
    serving = Serving(
        sock,
        on_disconnect=_orphaned,
        before_load=lambda body: _prepare(body, free_names),
        unapplied=limits.unapplied,
    )
    serving.run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # frameworks' threads need not be waited for; what mattered was unloaded


def _import_beforehand(backend: str) -> None:
    module, _, name = backend.partition(":")
    try:
        getattr(importlib.import_module(module), name).prepare()
    except Exception:  # noqa: BLE001
        # The code that loads a model with this backend is told.
        return


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was in place
        _orphaned()


def _orphaned() -> None:
    os._exit(_EXIT_ORPHANED)


def _prepare(body: Mapping[str, Any], free_names: Callable[[], None]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core of a framework takes seconds to write
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(body["limits"]["open_files"], soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, min(wanted, hard)))
    free_names()
