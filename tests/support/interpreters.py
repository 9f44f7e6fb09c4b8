"""A Python that users other than this one may run: workers in a strict sandbox have such users."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.processes import users

ROOT = Path(__file__).resolve().parents[2]
OTHERS = 65534


def shared_interpreter() -> str:
    """Return a Python of this one's version that any user may run; skip the test where there is none."""
    name = f"python3.{sys.version_info.minor}"
    for python in filter(None, (sys.executable, shutil.which(name, path="/usr/bin:/usr/local/bin"))):
        if os.geteuid() != 0 or _runs_for_others(python):
            return python
    pytest.skip(f"no user but root can run {sys.executable} or another {name} with this project's packages")


def with_these_packages(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which another interpreter finds this project, and this one's packages."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    if os.geteuid() == 0:
        # Where an environment for root alone is based on another, that other one may have all that is needed.
        packages = [path for path in packages if not users.barred([], searched=[path])]
    paths = ":".join([str(ROOT), str(ROOT / "engine/worker/authoring/public"), *packages])
    return {**environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}


def _runs_for_others(python: str) -> bool:
    probe = [python, "-c", "import sys, numpy, engine.worker; print(*sys.version_info[:2])"]
    try:
        told = subprocess.run(
            probe,
            user=OTHERS,
            group=OTHERS,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
            env=with_these_packages({}),
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return told.stdout.split() == [str(part) for part in sys.version_info[:2]]
