"""Where built environments are, and how one is known to be whole.

The server and the program that builds share this. `<cache>/<kind>-<digest>/` is an environment, whose marker
is written last. Without the marker it is what an interrupted build has left, and nothing runs in it. The
process that builds it locks `<cache>/<kind>-<digest>.lock`.
Standard library only.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from engine.processes.mark import MARK

MARKER: Final = "tritium-environment.json"
LOG: Final = "build.log"
ACTIVATE: Final = Path("bin", "activate")

FORMAT: Final = 1
"""Increased when what a build does changes, so that builds of earlier versions are not taken for the same."""


class EnvironmentFailed(Exception):
    """A model can't have the environment that it asks for.

    The message is its reason; `hint` says what would have worked.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found out about an environment when it was built.

    `search` are directories that go before those that the server has in variables such as PATH. `environ` are
    the other variables that its activation sets.
    """

    interpreter: str
    environ: dict[str, str]
    search: dict[str, str]
    python: str  # its version
    numpy: str


def bare_environ() -> dict[str, str]:
    """Return the variables that an environment's own programs are run with.

    Of the server's variables only those that say where things are go along. The mark is that of the build,
    which identifies the processes that these programs leave behind.
    """
    mark = {MARK: os.environ[MARK]} if MARK in os.environ else {}
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), **mark}


def missing_activate(directory: Path) -> str:
    """Return the contract's text for a directory that is no environment (python_backend.md section 12)."""
    return f"Path {directory / ACTIVATE} does not exist. The Python environment should contain an 'activate' script."


def read_marker(directory: Path) -> Facts | None:
    """Return what the marker of an environment says.

    None if it is not whole, was moved to where it is, or has lost its interpreter since.
    """
    try:
        marked = json.loads((directory / MARKER).read_bytes())
        if marked.pop("format") != FORMAT:
            return None
        facts = Facts(**marked)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    stays = Path(facts.interpreter).parent.parent == directory
    return facts if stays and os.access(facts.interpreter, os.X_OK) else None


def write_marker(directory: Path, facts: Facts) -> None:
    """Declare an environment whole."""
    aside = directory / f"{MARKER}.new"
    with aside.open("w") as file:
        json.dump({"format": FORMAT, **asdict(facts)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(directory / MARKER)


def lock_path(directory: Path) -> Path:
    """Return the file that is locked while the environment is built."""
    return directory.with_name(directory.name + ".lock")
