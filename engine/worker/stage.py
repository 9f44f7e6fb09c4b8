"""Enters a worker's sandbox before a Python that the model has brought runs its first line. Run by path.

The command is `python -I -S …/engine/worker/stage.py <interpreter> <program> <argument>…`, with the server's
own Python, and with the worker's environment variables behind a prefix. Such a Python runs code of the
model's at its start (`sitecustomize`, `.pth` files, the program itself), which must not come before the
limits. What the kernel has once taken away stays away when another program is run.
"""

from __future__ import annotations

import json
import os
import sys

PREFIX = "TRITIUM_STAGED_"


def main() -> None:
    """Enter the sandbox, and become the program."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, root)
    from engine.worker import limits

    environ = {name[len(PREFIX) :]: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    limits.enter(environ, root)
    if limits.unapplied:
        environ[limits.UNAPPLIED] = json.dumps(limits.unapplied)
    os.execve(sys.argv[1], sys.argv[1:], environ)


if __name__ == "__main__":
    main()
