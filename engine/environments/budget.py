"""What building an environment may take.

An archive comes from an untrusted source; unpacking it must not cost more than its size suggests. Packages of
a requirements file may be compiled, which takes what it takes. Such a build is limited by its time alone
(`engine.environments.builder`).
Standard library only.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Of address space. A tar file with two million members takes half of it.
UNPACKING_MEMORY: Final = 2 * 1024**3
_CPU_AT_LEAST: Final = 60
_CPU_FOR_A_MIB: Final = 1  # the slowest honest case, bzip2, takes a third of that
_FREE_BYTES: Final = 1024**3
_LARGEST_RATIO: Final = 100  # of unfolded to packed bytes; packed environments have some 3, at most 20


def cpu_seconds(kind: str, source: Path) -> int:
    """Return how much CPU, in seconds, each process of a build may take; 0 if there is no limit.

    Raises nothing if `source` can't be looked at: the build says so itself.
    """
    if kind != "archive":
        return 0
    try:
        size = source.stat().st_size
    except OSError:
        size = 0
    return _CPU_AT_LEAST + _CPU_FOR_A_MIB * (size >> 20)


def unfolded_bytes(packed: int) -> int:
    """Return to how many bytes an archive of `packed` bytes may unfold.

    A gigabyte is free; beyond it the ratio counts.
    """
    return max(_FREE_BYTES, _LARGEST_RATIO * packed)


def limit_cpu(seconds: int) -> None:
    """Have the kernel end this process, and any that it starts, after `seconds` of CPU. 0: no limit."""
    if seconds:
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        # A hard limit a little above: at the soft one SIGXCPU says why.
        resource.setrlimit(resource.RLIMIT_CPU, (_within(seconds, hard), _within(seconds + 5, hard)))


@contextmanager
def limited_memory(most: int = UNPACKING_MEMORY) -> Iterator[None]:
    """Limit the address space of this process for the block; what is beyond raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_within(most, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _within(wanted: int, limit: int) -> int:
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, limit)
