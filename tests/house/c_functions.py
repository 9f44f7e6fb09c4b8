"""The list of C functions in docs/backends/c_libraries.md, from the one table."""

from __future__ import annotations

import textwrap
from typing import Final

from engine.worker.native.table import ACCEPTED, PROVIDED, REFUSED, functions
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "backends" / "c_libraries.md"
_HEAD: Final = "from `engine/worker/native/c/functions.def`.\n\n"
_MEANING: Final = {
    PROVIDED: "do what Triton's do",
    ACCEPTED: "succeed, and have no effect on what the server does",
    REFUSED: "return UNSUPPORTED: `<name> is not provided by this server`",
}


def page() -> str:
    """Return the page as it is now, with the list of functions that the table has."""
    before, _, _ = PAGE.read_text(encoding="utf-8").partition(_HEAD)
    table = functions()
    parts = []
    for kind, meaning in _MEANING.items():
        names = sorted(name for name, what in table.items() if what == kind)
        parts.append(f"### {len(names)} {kind}: they {meaning}\n\n")
        for prefix in ("TRITONBACKEND_", "TRITONSERVER_"):
            own = ", ".join(name.removeprefix(prefix) for name in names if name.startswith(prefix))
            parts.append(textwrap.fill(f"`{prefix}`: {own}.", 110) + "\n\n" if own else "")
    return before + _HEAD + "".join(parts).rstrip("\n") + "\n"
