"""The program of a text worker: `python …/engine/worker/text/__main__.py <socket> <parent>`.

The first frame on the socket, `["load", folder, choices, memory]`, is the server's; see
`actors.wire.text_frames` for those that follow. It runs on the server's Python, or on any from 3.9 that has
`tokenizers` and `jinja2`. It ends when the socket does, or the server.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

_OPEN_FILES = 1024


def main() -> None:
    """Serve one model until the server goes away."""
    descriptor = int(sys.argv[1])
    _find_ours(str(Path(__file__).parents[3]))
    # There are no other threads: helpers are forked, and what runs beside an engine leaves it the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RUST_BACKTRACE"] = "0"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from actors.wire.text_frames import decode_head
    from engine.worker import limits
    from engine.worker.text.lines import Line
    from engine.worker.text.preparing import Choices
    from engine.worker.text.serving import serve

    limits.volunteer_for_the_oom_killer()
    line = Line(socket.socket(fileno=descriptor))
    _, folder, choices, memory = decode_head(line.receive()[0])
    _limit(memory)
    serve(line, folder, Choices(**choices))


def _find_ours(root: str) -> None:
    """Make our packages importable from `root`, and nothing else that lies there; see `engine.worker`."""
    sys.path[0] = root
    import actors  # noqa: F401
    import engine  # noqa: F401

    del sys.path[0]


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    main()
