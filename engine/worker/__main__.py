"""Entry point of a worker process; run by path, `python …/engine/worker/__main__.py <socket descriptor>`.

The worker's import closure is this list and one backend, and nothing else of ours: the standard library, numpy, and the
modules below. It runs on any Python from 3.9 with numpy. Once the backend class is imported, the names `engine`, `actors`,
`protocols` and `chaos` are given up: our modules keep their references to each other, and the user's model code may have
modules of its own by those names.
"""

from __future__ import annotations

import os
import sys

CLOSURE = (
    "actors.messages.datatypes",
    "actors.messages.errors",
    "actors.messages.tensors",
    "actors.frames",
    "actors.arena",
    "engine.backends.base",
    "engine.worker.parts",
    "engine.worker.execution",
    "engine.worker.feeds",
    "engine.worker.serve",
    "engine.worker.process",
)
OUR_NAMES = frozenset({"engine", "actors", "protocols", "chaos"})


def free_names(root: str) -> None:
    """Forget our top-level packages and the path they came from, unless that is a site-packages folder."""
    for name in list(sys.modules):
        if name.partition(".")[0] in OUR_NAMES:
            del sys.modules[name]
    if not root.endswith(("site-packages", "dist-packages")):
        sys.path[:] = [entry for entry in sys.path if entry != root]


def main() -> None:
    """Serve one model until the server says stop or goes away."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[0] = root  # in place of this file's own folder, whose modules are no top-level names
    from engine.worker import process

    process.run(descriptor, parent, lambda: free_names(root))


if __name__ == "__main__":
    main()
