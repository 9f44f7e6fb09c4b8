"""Where this user's caches are: the server's, and those of its workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_directory(environ: Mapping[str, str]) -> str:
    """Return the folder of all caches of Tritium (XDG Base Directory Specification)."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # unset, or one that the specification has us ignore
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(base, "tritium")
