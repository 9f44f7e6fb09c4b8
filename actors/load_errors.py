"""What a worker says of a model that could not be loaded, cut down to what its owner can use. Pure."""

from __future__ import annotations

import re
from typing import Final

_MODULE: Final = r"(?:<frozen importlib\.[^>\n]*>|[^\n\"]*/importlib/__init__\.py)"
# A frame as Triton's Python backend writes it, and as Python does, which may have the line of source and
# marks below it.
_IMPORTING: Final = re.compile(
    rf"^  (?:{_MODULE}\(\d+\): \S+\n|File \"{_MODULE}\", line \d+, in \S+\n(?:    .*\n)*)", re.MULTILINE
)


def without_importing(text: str) -> str:
    """Return a text without the frames of Python's import machinery, through which every module's code is reached."""
    return _IMPORTING.sub("", text)
