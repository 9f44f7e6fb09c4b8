"""Another package of the name `engine`, which Python found in place of Tritium's.

Tritium's packages are `engine`, `actors` and `protocols`. A folder of such a name in the current directory,
or on `PYTHONPATH`, comes before them. Models may have such folders: their processes don't search that way.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

_NAMES = ("engine", "actors", "protocols")


def refuse(error: ImportError) -> None:
    """Tell what was found in place of Tritium's packages, if something was.

    A command ends here, with a line; elsewhere it is an ImportError.
    """
    root = _root()
    for name in _NAMES:
        found = _found(name)
        if root is not None and found is not None and found != root / name:
            message = (
                f"Python finds another package '{name}', {found}, before Tritium's, {root / name}: start from"
                " another directory, or take it off PYTHONPATH"
            )
            ending = runpy.run_path(str(root / "engine/core/ending.py"))
            if sys.argv[:1] == ["-m"] or ending["under_hypercorn"]():
                ending["end"](message)
            raise ImportError(message) from error


def _root() -> Path | None:
    """Return where Tritium's packages lie: beside this one in an installation, above it in a checkout."""
    here = Path(__file__).resolve().parents
    for folder in here[1], *here[5:6]:
        if (folder / "engine/core/chosen.py").is_file():
            return folder
    return None


def _found(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    places = () if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    return next((Path(place).resolve() for place in places if place), None)
