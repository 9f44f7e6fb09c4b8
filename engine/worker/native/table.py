"""The functions of Triton's C API, and what each does here: read from `c/functions.def`, the one table."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "c")

PROVIDED = "provided"
ACCEPTED = "accepted"
REFUSED = "refused"

_LINE = re.compile(r"^(PROVIDED|ACCEPTED|REFUSED)\((\w+)\)$", re.MULTILINE)

ENTRY_POINTS = tuple(
    f"TRITONBACKEND_{name}"
    for name in (
        "Initialize",
        "Finalize",
        "GetBackendAttribute",
        "ModelInitialize",
        "ModelFinalize",
        "ModelInstanceInitialize",
        "ModelInstanceFinalize",
        "ModelInstanceExecute",
        "ModelInstanceReady",
    )
)
"""What a library has for the server to call. Only `ModelInstanceExecute` must be there."""

EXECUTE = "TRITONBACKEND_ModelInstanceExecute"
SET_CONFIG = "TRITONBACKEND_ModelSetConfig"
"""What a library imports that completes configurations."""


def usual_library(backend: str) -> str:
    """Return what the library of a backend is called."""
    return f"libtriton_{backend}.so"


def parse(text: str) -> dict[str, str]:
    """Return what each function does, by its name, of the text of a table."""
    return {name: kind.lower() for kind, name in _LINE.findall(text)}


def functions() -> dict[str, str]:
    """Return what each function does, by its name."""
    with open(os.path.join(SOURCES, "functions.def"), encoding="utf-8") as file:
        return parse(file.read())


def shortcomings(imported: Iterable[str], table: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return which of a library's imports are not there at all, and which are refused once called."""
    api = [name for name in imported if name.startswith(("TRITONBACKEND_", "TRITONSERVER_"))]
    missing = sorted(name for name in api if name not in table)
    refused = sorted(name for name in api if table.get(name) == REFUSED)
    return missing, refused
