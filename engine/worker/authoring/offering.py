"""The import name `tritium`, in the processes that run models."""

from __future__ import annotations

import sys

from engine.worker.authoring import api


def offer() -> None:
    """Let model files `import tritium`, whatever interpreter this is and whatever is installed there.

    If the package itself is imported already, as in a test, it stays: its names are the same objects.
    """
    if getattr(sys.modules.get("tritium"), "model", None) is not api.model:
        sys.modules["tritium"] = api
