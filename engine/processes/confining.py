"""The limits that a process running model code is told when it starts, and how it is started with them.

See `engine.worker.limits` and docs/worker_life.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from actors.values.confinement import Confinement, Sandbox
from actors.values.specs import Runtime
from engine.processes import users
from engine.processes.imports import imports_of
from engine.processes.mark import MARK
from engine.processes.runtime import interpreter
from engine.worker.limits import VARIABLE
from engine.worker.stage import PREFIX

_STAGE: Final = Path(__file__).parents[1] / "worker" / "stage.py"

_CEILING_ROOM: Final = 1024**3
"""Private memory beyond twice the limit that may be asked for, touched or not.

Stacks of threads and pools take some.
"""


def confining_environ(
    limits: Confinement,
    files: Iterable[Path],
    *,
    kind: str = "CPU",
    runtime: Runtime = Runtime(),  # noqa: B008  # it is frozen
    own_user: bool = False,
    unapplied: Sequence[str] = (),
) -> dict[str, str]:
    """Return the environment variable that confines a worker on a device of this kind.

    There is none if nothing is confined. `files` are what the worker may read in any sandbox: its model.
    `own_user`: it is started with a user id of its own. `unapplied` is what can't be applied, for its report.
    """
    if limits == Confinement():
        return {}
    document: dict[str, object] = {
        "sandbox": limits.sandbox.value,
        "watched": limits.watched,
        "childless": limits.processes == 1,
        "ceiling": _ceiling(limits, kind),
    }
    if limits.sandbox is Sandbox.STRICT:
        document["read"] = [*map(str, files), *_of_runtime(runtime), *limits.read]
        document["write"] = list(limits.write)
        document["own_user"] = own_user
        if limits.imposed:
            document["given"] = [*limits.read, *limits.write]
    if unapplied:
        document["unapplied"] = list(unapplied)
    return {VARIABLE: json.dumps(document)}


def _ceiling(limits: Confinement, kind: str) -> int:
    """Return how many bytes of private memory a worker may ask for; 0 sets no limit.

    It is 0 if drivers ask for more memory than is ever used.
    """
    return 2 * limits.memory + _CEILING_ROOM if limits.memory and kind == "CPU" else 0


def _of_runtime(runtime: Runtime) -> list[str]:
    """Return where the files of a Python lie that the model has brought."""
    if not runtime.interpreter:
        return []
    given = dict(runtime.environ)
    searched = [given.get("PYTHONPATH", ""), given.get("LD_LIBRARY_PATH", "")]
    places = {
        str(Path(path).parents[1]) for path in (runtime.interpreter, os.path.realpath(runtime.interpreter))
    }
    return [*sorted(places), *(path for each in searched for path in each.split(":") if path.startswith("/"))]


def own_user(
    limits: Confinement, files: Sequence[Path], runtime: Runtime, environ: Mapping[str, str]
) -> tuple[bool, list[str]]:
    """Return whether a process of these limits gets a user id of its own, and what is to be said if not.

    `environ` is what it is started with. Reads directories; call it on a thread. Raises OSError if the
    operator has asked for a strict sandbox, and what it must read is not for another user to read: the
    model's files, its Python, and what that imports.
    """
    if limits.sandbox is not Sandbox.STRICT:
        return False, []
    why_not = users.unable()
    if why_not is not None:
        return False, [f"a user of its own: {why_not}"] if why_not else []
    imports = imports_of(runtime, environ)
    said = users.barred(
        [*files, *limits.read, *imports.packages],
        [interpreter(runtime)],
        searched=[*imports.folders, *imports.libraries],
    )
    if said:
        if limits.imposed:
            raise OSError(f"a strict sandbox that the server imposes has a user of its own, and {said}")
        return False, [f"a user of its own: {said}"]
    return True, []


def command(
    program: Path, arguments: Sequence[str], environ: Mapping[str, str], runtime_interpreter: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment of a process that is confined as `environ` says.

    A Python that the model has brought runs code before ours, so the server's own enters the sandbox for it.
    """
    confined = VARIABLE in environ and json.loads(environ[VARIABLE])["sandbox"] != Sandbox.OFF.value
    if not confined or runtime_interpreter == sys.executable:
        return [runtime_interpreter, str(program), *arguments], dict(environ)
    handed_on = {PREFIX + name: value for name, value in environ.items()}
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    if MARK in environ:
        kept[MARK] = environ[MARK]
    staged = [sys.executable, "-I", "-S", str(_STAGE), runtime_interpreter, str(program), *arguments]
    return staged, {**handed_on, **kept}


def identity(user: int | None) -> dict[str, Any]:
    """Return the arguments that start a process of `subprocess` with a user id of its own, if it has one."""
    return {} if user is None else {"user": user, "group": users.GROUP, "extra_groups": ()}
