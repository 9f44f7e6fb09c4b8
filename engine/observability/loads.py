"""What a load is busy with, in words: for the start of a server, and for those who watch it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MIB: Final = 1 << 20

_SPOKEN: Final = {
    "starting": "starting worker",
    "reading": "reading the repository",
    "waiting": "waiting for its turn",
    "probing": "trying an inference",
}


def load_text(progress: Mapping[str, Any]) -> str:
    """Return the phase of a load: of `IndexEntry.progress`, or of `progress` in the repository's index."""
    phase = str(progress.get("phase") or "loading")
    words = _SPOKEN.get(phase, phase)
    nbytes = progress.get("bytes")
    if isinstance(nbytes, int):
        words = f"{words} {progress.get('bytes_done', 0) / _MIB:.1f} of {nbytes / _MIB:.1f} MiB"
    if step := progress.get("step"):
        words = f"{words}: {step}"
    attempt = progress.get("attempt", 1)
    return f"{words} (attempt {attempt})" if attempt != 1 else words


def load_seconds(progress: Mapping[str, Any]) -> float | None:
    """Return since how many seconds the load goes on, if it is known."""
    seconds = progress.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None
