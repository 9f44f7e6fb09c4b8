"""A worker's message about a model that could not be loaded, cut down to its useful part. Pure."""

from __future__ import annotations

import re
from typing import Final

_MODULE: Final = r"(?:<frozen importlib\.[^>\n]*>|[^\n\"]*/importlib/__init__\.py)"
# A frame as Triton's Python backend writes it, and as Python does. Python's may be followed by the source
# line and marks.
_IMPORTING: Final = re.compile(
    rf"^  (?:{_MODULE}\(\d+\): \S+\n|File \"{_MODULE}\", line \d+, in \S+\n(?:    .*\n)*)", re.MULTILINE
)


def without_importing(text: str) -> str:
    """Return a text without the frames of Python's import machinery, which lead to every module's code."""
    return _IMPORTING.sub("", text)
