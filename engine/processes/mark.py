"""The mark by which a process is known as one that a worker, or a build, has started."""

from __future__ import annotations

from typing import Final

MARK: Final = "TRITIUM_WORKER"
"""The environment variable that tells whose a process is; its value is unique to one worker or build."""
