"""Entry point of a worker process, run by path.

The command is `python …/engine/worker/__main__.py <socket> <parent> [<backend>]`.

The arguments are the descriptor of the socket, the server's process id and, in a spare, the backend to import
beforehand.

The worker's import closure is this list and one backend, and nothing else of ours: the standard library,
numpy, and the modules below. A backend with `device_tensors` brings those of the second list. It runs on any
Python from 3.9 with numpy. Once the backend class is imported, the names `engine`, `actors`, `protocols` and
`chaos` are given up. Our modules keep their references to each other, and the user's model code may have
modules of its own by those names.
"""

from __future__ import annotations

import os
import sys

CLOSURE = (
    "actors.values.datatypes",
    "actors.values.errors",
    "actors.values.padding",
    "actors.values.tensors",
    "actors.values.native",
    "actors.values.regions",
    "actors.wire.frames",
    "actors.wire.batch_frames",
    "actors.wire.region_spans",
    "actors.wire.call_frames",
    "actors.wire.call_segments",
    "actors.wire.arena",
    "engine.worker.backends.base",
    "engine.worker.backends.raw",
    "engine.worker.parts",
    "engine.worker.call_line",
    "engine.worker.forking",
    "engine.worker.calls",
    "engine.worker.slots",
    "engine.worker.joining",
    "engine.worker.regions",
    "engine.worker.execution",
    "engine.worker.feeds",
    "engine.worker.pointers",
    "engine.worker.serve",
    "engine.worker.process",
    "engine.worker.limits",
    "engine.worker.sandbox",
    "engine.worker.filtering",
    "engine.worker.syscalls",
)
WITH_DEVICES = (
    "actors.wire.device_spans",
    "engine.worker.devices.arrays",
    "engine.worker.devices.batches",
    "engine.worker.devices.cuda",
    "engine.worker.devices.exports",
    "engine.worker.devices.imports",
)
OUR_NAMES = frozenset({"engine", "actors", "protocols", "chaos"})


def take_arguments() -> list[str]:
    """Return this process's arguments, and leave a model the `sys.argv` that it has in Triton.

    That is the one of a program without a name or arguments.
    """
    arguments = sys.argv[1:]
    sys.argv[:] = [""]
    return arguments


def find_ours(root: str) -> None:
    """Make our packages importable from `root`, and nothing else that lies there.

    Another interpreter than the server's must not find what is installed for the server's. `sys.path` begins
    with the directory of the script that is run. The modules there are no top-level names, so that entry is
    removed too.
    """
    sys.path[0] = root
    import actors  # noqa: F401  # from now on their modules are found by their own `__path__`
    import engine  # noqa: F401

    del sys.path[0]


def free_names(root: str) -> None:
    """Forget our top-level packages and the path they came from, unless that is a site-packages folder."""
    for name in list(sys.modules):
        if name.partition(".")[0] in OUR_NAMES:
            del sys.modules[name]
    if not root.endswith(("site-packages", "dist-packages")):
        sys.path[:] = [entry for entry in sys.path if entry != root]


def main() -> None:
    """Serve one model until the server says stop or goes away."""
    descriptor, parent, *spare_for = take_arguments()
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    find_ours(root)
    from engine.worker import limits

    limits.enter(os.environ, root)
    from engine.worker import process  # imports numpy, which starts threads

    process.run(int(descriptor), int(parent), lambda: free_names(root), *spare_for)


if __name__ == "__main__":
    main()
