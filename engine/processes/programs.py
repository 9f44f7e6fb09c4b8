"""Programs of ours that run beside the server, each with a socket to it. Starting one waits: on threads."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.processes.family import Family
from engine.processes.mark import MARK


def start(
    program: Path,
    *arguments: str,
    environ: Mapping[str, str],
    kind: socket.SocketKind = socket.SOCK_STREAM,
    **output: Any,
) -> tuple[subprocess.Popen[bytes], Family, socket.socket]:
    """Start `program` in a session of its own; return it, its family, and our end of its socket.

    Its first argument is the number of its end, and `arguments` follow. `output` is as `Popen` takes it.
    Raises OSError, and then nothing was started.
    """
    mark = secrets.token_hex(16)
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, str(program), str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**environ, MARK: mark},
                start_new_session=True,
                **output,
            )
    except BaseException:
        ours.close()
        raise
    return process, Family(process.pid, mark), ours
