"""Makes a virtual environment of the server's Python from a requirements file.

Its numpy is the one that the requirements lead to. If they lead to none it is a copy of the server's, which
the worker needs and for which nothing has to be fetched.
Standard library and pip only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final

from engine.environments.layout import LOG, EnvironmentFailed

_TEXT_SHOWN: Final = 2000  # characters of what pip says
_STEP_SHOWN: Final = 200
_LINES_KEPT: Final = 400
_STEPS: Final = re.compile(r"\s*(Collecting|Processing|Downloading|Building|Installing|Using cached)\b.*")
_NOTICE: Final = re.compile(r"\s*(?:\[notice\]|WARNING)")

_ELSEWHERE: Final = frozenset(
    {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_REQUIREMENT"}
    | {"PYTHONPATH", "PYTHONHOME"}
)
"""Variables by which pip would install somewhere else, or something else.

By some, it would also take packages for installed that the environment won't have.
"""


def make(directory: Path, requirements: Path, progress: Callable[[str], None]) -> None:
    """Make the environment `directory`, which does not exist, and install `requirements` into it.

    `progress` is told what pip is doing. What pip says is kept in `build.log`. Raises EnvironmentFailed.
    """
    own_pip = importlib.util.find_spec("pip") is not None
    try:
        venv.EnvBuilder(symlinks=True, with_pip=not own_pip).create(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentFailed(
            f"no virtual environment can be made for '{requirements}': {error}",
            hint="the server's Python needs the modules venv and pip",
        ) from error
    python = directory / "bin" / "python"
    pip = (
        [sys.executable, "-P", "-m", "pip", "--python", str(python)]
        if own_pip
        else [str(python), "-P", "-m", "pip"]
    )
    _install(pip, directory, requirements, progress)
    packages = Path(
        sysconfig.get_path("platlib", "venv", {"base": str(directory), "platbase": str(directory)})
    )
    if not (packages / "numpy").is_dir():
        _copy_numpy(packages)


def _install(pip: list[str], directory: Path, requirements: Path, progress: Callable[[str], None]) -> None:
    command = [
        *pip,
        *("--disable-pip-version-check", "--no-input", "--no-color"),
        *("install", "--no-user", "--progress-bar=off", "--no-warn-script-location", "-r", str(requirements)),
    ]
    said: list[str] = []
    with (
        (directory / LOG).open("w") as log,
        subprocess.Popen(
            command,
            cwd=requirements.parent,  # paths in it are relative to it
            env={name: value for name, value in os.environ.items() if name not in _ELSEWHERE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            said.append(line[:_TEXT_SHOWN])
            del said[:-_LINES_KEPT]
            if _STEPS.match(line):
                progress(line.strip()[:_STEP_SHOWN])
    if process.returncode:
        raise EnvironmentFailed(f"installing '{requirements}' failed: {complaint(said)}")


def complaint(said: list[str]) -> str:
    """Return what pip has to say for itself: from its first error on, or else the end of its output."""
    first = next((at for at, line in enumerate(said) if line.lstrip().startswith(("ERROR:", "error:"))), None)
    lines = said[-10:] if first is None else [line for line in said[first:] if not _NOTICE.match(line)]
    return "".join(lines).strip()[:_TEXT_SHOWN] or "pip says nothing"


def _copy_numpy(packages: Path) -> None:
    """Copy the files of the server's numpy, or link them if the file system can.

    They are never written again.
    """
    distribution = metadata.distribution("numpy")
    for file in distribution.files or ():
        if ".." in file.parts:
            continue  # scripts, whose first line names the server's Python
        source, target = Path(str(distribution.locate_file(file))), packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileNotFoundError:
            continue  # a compiled module that was cleaned away
        except OSError:
            shutil.copy2(source, target)
