"""Finds out how processes are started in an environment.

It finds the environment's Python, and the variables that its activation sets.

Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.environments.layout import ACTIVATE, EnvironmentFailed, Facts, bare_environ, missing_activate

OLDEST: Final = (3, 9)
_SECONDS: Final = 120.0  # for an activation script, and for importing numpy from a slow disk
_SEARCHED: Final = ("PATH", "LD_LIBRARY_PATH")
_OF_THE_SHELL: Final = frozenset({"_", "OLDPWD", "PS1", "PWD", "SHLVL", "PYTHONPATH", "PYTHONHOME"})
_MOST_VARIABLES: Final = 32 * 1024  # characters of all of them

_PROBE: Final = """
import json, sys
found = {"python": list(sys.version_info[:3])}
try:
    import numpy
    found["numpy"] = numpy.__version__
except BaseException as error:
    found["problem"] = "%s: %s" % (type(error).__name__, error)
sys.stdout.write("\\n" + json.dumps(found))
"""


def examine(directory: Path, source: Path) -> Facts:
    """Return how to start processes in the environment at `directory`, which was made from `source`.

    Runs its activation script and its Python. Raises EnvironmentFailed if it has none, or one that no worker
    runs on: older than 3.9, or without numpy.
    """
    if not os.path.lexists(directory / ACTIVATE):
        raise EnvironmentFailed(
            missing_activate(directory), hint="its bin/ must be at the top of what EXECUTION_ENV_PATH names"
        )
    python = _python(directory)
    environ, search = activation(directory)
    found = _probe(python, directory, source, _started_with(environ, search))
    version = tuple(found["python"])
    if version < OLDEST:
        raise EnvironmentFailed(
            f"the Python of environment '{source}' is {_dotted(version)}, and workers need {_dotted(OLDEST)} or newer"
        )
    if "numpy" not in found:
        raise EnvironmentFailed(
            f"environment '{source}' has no numpy that its Python can import: {found['problem']}",
            hint="workers need it; add numpy to the environment",
        )
    return Facts(
        interpreter=str(python),
        environ=environ,
        search=search,
        python=_dotted(version),
        numpy=str(found["numpy"]),
    )


def _python(directory: Path) -> Path:
    candidates = [directory / "bin" / name for name in ("python3", "python")]
    for path in candidates:
        if os.access(path, os.X_OK) and path.is_file():
            return path
    broken = next((path for path in candidates if path.is_symlink()), None)
    if broken is not None:
        raise EnvironmentFailed(
            f"'{broken}' is a link to '{os.readlink(broken)}', which can't be run here",
            hint="an environment that is moved must bring its Python along, as those of conda-pack do",
        )
    raise EnvironmentFailed(f"there is no Python at '{candidates[0]}'")


def activation(directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that the activation script sets, and what it puts before the search paths.

    The environment's own `bin` and `lib` directories lead, as the reference implementation has it. Without a
    bash nothing could run the script, and these directories are all.
    """
    before = bare_environ()
    after = _activated(directory, before)
    search = {"PATH": [str(directory / "bin")], "LD_LIBRARY_PATH": [str(directory / "lib")]}
    for name in _SEARCHED:
        known = [*before.get(name, "").split(os.pathsep), *search[name]]
        search[name] += [each for each in after.get(name, "").split(os.pathsep) if each and each not in known]
    environ = {
        name: value
        for name, value in sorted(after.items())
        if name not in _SEARCHED and name not in _OF_THE_SHELL and before.get(name) != value
    }
    if sum(len(name) + len(value) for name, value in environ.items()) > _MOST_VARIABLES:
        raise EnvironmentFailed(
            f"'{directory / ACTIVATE}' sets variables of more than {_MOST_VARIABLES} characters"
        )
    return environ, {name: os.pathsep.join(paths) for name, paths in search.items()}


def _activated(directory: Path, before: Mapping[str, str]) -> dict[str, str]:
    bash = shutil.which("bash")
    if bash is None:
        return dict(before)
    script = 'source "$1" >/dev/null && exec env -0'
    try:
        done = subprocess.run(
            [bash, "--noprofile", "--norc", "-c", script, "activate", str(directory / ACTIVATE)],
            env=before,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"'{directory / ACTIVATE}' did not end within {_SECONDS:g} s") from error
    if done.returncode:
        raise EnvironmentFailed(f"'{directory / ACTIVATE}' fails: {_last(done.stderr)}")
    pairs = (each.partition("=") for each in done.stdout.decode(errors="replace").split("\0") if each)
    return {name: value for name, _, value in pairs if not name.startswith("BASH_FUNC_")}


def _started_with(environ: Mapping[str, str], search: Mapping[str, str]) -> dict[str, str]:
    bare = bare_environ()
    path = os.pathsep.join((search["PATH"], bare["PATH"]))
    return {**bare, **environ, **search, "PATH": path, "PYTHONNOUSERSITE": "1"}


def _probe(python: Path, directory: Path, source: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(python), "-c", _PROBE],
            env=dict(environ),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"the Python of environment '{source}' does not start") from error
    except OSError as error:
        raise EnvironmentFailed(f"'{python}' can't be run: {error.strerror or error}") from error
    try:
        found: dict[str, Any] = json.loads(done.stdout.rpartition(b"\n")[2])
    except ValueError as error:
        raise EnvironmentFailed(
            f"the Python of environment '{source}' does not start: {_last(done.stderr) or done.returncode}"
        ) from error
    return found


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _last(output: bytes) -> str:
    return output[-2000:].decode(errors="replace").strip()
