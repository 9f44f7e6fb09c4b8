"""Which C compiler there is, for what is compiled on the machine that serves."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def c_compiler(environ: Mapping[str, str]) -> str:
    """Return the C compiler: `CC` if it is set, else the first of cc, gcc and clang; empty without one."""
    named = environ.get("CC", "")
    for name in (named,) if named else ("cc", "gcc", "clang"):
        found = shutil.which(name, path=environ.get("PATH"))
        if found:
            return found
    return ""
