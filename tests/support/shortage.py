"""A system that has no more memory to give."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

SAID = "File too large"
"""What the kernel says then."""


@contextmanager
def no_memory() -> Iterator[None]:
    """Have the kernel refuse every piece of shared memory around the block: no file may grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
