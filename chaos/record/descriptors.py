"""What this process has open, so that what is left open can be named."""

from __future__ import annotations

import os
from contextlib import suppress


def open_descriptors() -> set[tuple[str, str]]:
    """The number and the target of each descriptor of this process.

    A descriptor that is here and was not before was left open. A count would not tell: anything else in the
    process may close a descriptor of its own meanwhile, when the garbage collector runs.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def left_open(before: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What is open now and was not before.

    It looks twice, because another thread may have something open for a moment.
    """
    return (open_descriptors() - before) & open_descriptors()
