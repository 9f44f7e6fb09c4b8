"""Optional packages: which of them is missing, and how it is installed, in one sentence."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]


def is_missing(package: str) -> bool:
    """Whether a top-level package can't be imported; it is not imported."""
    try:
        return find_spec(package) is None
    except (ImportError, ValueError):  # a broken finder, or a module that was taken out by hand
        return True


def how_to_install(extra: str) -> str:
    """Return the command that installs what `extra` of Tritium's optional dependencies brings."""
    checkout = _checkout()
    return f"pip install -e '{checkout}[{extra}]'" if checkout else f"pip install 'tritium[{extra}]'"


@cache
def _checkout() -> str:
    """Return where the source tree is that this runs from; nothing if Tritium was installed as a package."""
    try:
        installed = distribution("tritium")
    except PackageNotFoundError:
        return str(_ROOT)
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return ""
    editable = isinstance(origin, dict) and origin.get("dir_info", {}).get("editable", False)
    return str(_ROOT) if editable else ""
