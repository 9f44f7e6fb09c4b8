"""Entry point of a process that completes one configuration, run by path.

The command is `python …/engine/worker/completion.py <pipe> <parent>`. The request is JSON on standard input,
the answer JSON on the pipe. The server collects whatever model code prints. The process is thrown away
afterwards, with everything that model code has imported or broken in it. Its import closure is this list and
one backend, as for a worker, and it runs on any Python from 3.9.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOSURE = (
    "engine.worker.backends.base",
    "engine.worker.__main__",
    "engine.worker.limits",
    "engine.worker.sandbox",
    "engine.worker.filtering",
    "engine.worker.syscalls",
)

_TEXT_LIMIT = 12 * 1024  # characters of a reason
_LINES_LIMIT = 200  # lines that a model may log
_PR_SET_PDEATHSIG = 1
_EXIT_ORPHANED = 79


def main() -> None:
    """Answer one request and end the process, whatever threads model code has left in it."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[0] = root  # in place of this file's own folder, whose modules are no top-level names
    from engine.worker.__main__ import find_ours, take_arguments

    find_ours(root)
    pipe, parent = map(int, take_arguments())
    from engine.worker import limits

    _die_with(parent)
    limits.enter(os.environ, root)
    answer = json.dumps(_answer(json.load(sys.stdin), root)).encode()
    with open(pipe, "wb") as file:
        file.write(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with(parent: int) -> None:
    """Ask to be killed when the thread that started this process ends: it waits for the answer."""
    import ctypes
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was in place
        os._exit(_EXIT_ORPHANED)


def _answer(request: Mapping[str, Any], root: str) -> dict[str, Any]:
    """Return the completed configuration under `config`, or the `error` that kept it.

    A `config` of None means that there is nothing to add.
    """
    import importlib

    from engine.worker.__main__ import free_names
    from engine.worker.backends.base import LoadError, ModelInfo

    lines: list[tuple[str, str]] = []

    def log(level: str, message: str) -> None:
        if len(lines) < _LINES_LIMIT:
            lines.append((level, message[:_TEXT_LIMIT]))

    try:
        module, _, name = request["backend"].partition(":")
        backend: Any = importlib.import_module(module)
        for part in name.split("."):
            backend = getattr(backend, part)
        model = ModelInfo(**request["model"], log=log)
        free_names(root)
        completed = backend.complete_config(model)
        # What can't be sent is the model's mistake as well.
        plain = json.loads(json.dumps(completed, default=_plain))
    except LoadError as error:
        return {"error": str(error)[:_TEXT_LIMIT], "log": lines}
    except BaseException as error:  # noqa: BLE001  # `sys.exit` in a model is a failure like any other
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:_TEXT_LIMIT], "log": lines}
    return {"config": plain, "log": lines}


def _plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as Python's, for JSON."""
    for method in ("tolist", "item"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"a value of {type(value)} is no part of a configuration")


if __name__ == "__main__":
    main()
