"""How a process is started on the runtime of its model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from actors.values.specs import Runtime

_SERVERS_OWN: Final = frozenset(
    {
        "PYTHONPATH",
        "PYTHONPYCACHEPREFIX",
        "PYTHONHOME",
        "PYTHONPLATLIBDIR",
        "PYTHONEXECUTABLE",
        "PYTHONUSERBASE",
    }
    | {"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER"}
)
"""Variables that lead a Python to files that were made for another one, or that name that one.

The files are libraries, packages or compiled files.
"""


def interpreter(runtime: Runtime) -> str:
    """Return the path of the Python that a process of the model is started with.

    It is the server's own unless the model has another.
    """
    return runtime.interpreter or sys.executable


def variables(environ: Mapping[str, str], runtime: Runtime) -> dict[str, str]:
    """Return the environment variables of such a process.

    They are made from what a process of the server's own interpreter would get. In another interpreter
    nothing that was installed for the server's is found by way of PYTHONPATH or the user's own site-packages
    directory.
    """
    if not runtime.interpreter:
        return dict(environ)
    kept = {name: value for name, value in environ.items() if name not in _SERVERS_OWN}
    return {**kept, "PYTHONNOUSERSITE": "1", **dict(runtime.environ)}
