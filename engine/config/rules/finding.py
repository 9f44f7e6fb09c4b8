"""Which of the things that a backend's name may stand for runs a model. Pure.

Contract: backends.md section 1.1. A name may stand for three things at once: a class that is installed as a
package, a library written for Triton's C API, and a `model.py` that serves all models of the backend. What is
installed goes first, which is Tritium's own rule; then they come in Triton's order. `runtime` names one of
them, whatever else there is.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from engine.worker.native.table import usual_library

SCRIPT: Final = "model.py"
"""The file of a backend written in Python, and the `runtime` that asks for it."""


class Runner(Enum):
    """What runs a model."""

    INSTALLED = auto()
    """A class that is installed, by its entry point."""

    LIBRARY = auto()
    """A shared library."""

    SCRIPT = auto()
    """The `model.py` in the backend's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What there is by the name of a backend.

    `own_script`: the class that is installed serves `runtime: "model.py"` itself. `python`: it is the python
    backend, whose library is not needed here. `library`: a file called as `library_of` says is in the
    version's directory, in the model's, or in the backend's folder. `script`: a `model.py` is in the
    backend's folder.
    """

    installed: bool = False
    own_script: bool = False
    python: bool = False
    library: bool = False
    script: bool = False


def library_of(backend: str, runtime: str) -> str:
    """Return which library is looked for: a path in its directory; nothing if it is to be none."""
    if runtime == SCRIPT or escapes(runtime):
        return ""
    return posixpath.normpath(runtime) if runtime else usual_library(backend)


def escapes(runtime: str) -> bool:
    """Whether `runtime` names a file outside of the directory that it is looked for in."""
    return f"{posixpath.normpath(runtime)}/".startswith(("/", "../")) if runtime else False


def find(backend: str, runtime: str, there: Candidates) -> Runner | None:
    """Return what runs a model of `backend`; None if what its `runtime` names is not there."""
    if runtime == SCRIPT:
        if there.script:
            return Runner.SCRIPT
        return Runner.INSTALLED if there.own_script else None
    usual = library_of(backend, runtime) == usual_library(backend)
    if there.installed and (not runtime or (usual and (there.python or not there.library))):
        # The class stands for the library that it replaces.
        return Runner.INSTALLED
    if there.library:
        return Runner.LIBRARY
    return Runner.SCRIPT if there.script and not runtime else None
