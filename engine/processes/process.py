"""What the server's process needs set, however it was started."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import threading


def allow_many_files() -> None:
    """Raise the soft limit on open files to the hard one: connections, workers and arenas all take some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_garbage_collection() -> None:
    """Leave what start-up made out of future collections.

    A full collection would stop the loop for tens of milliseconds. A collection also stops the loop by some
    two microseconds for each object that it frees. Requests make no cycles, but gRPC connections, crashes and
    loads do. So the collection runs often enough to be short, and no oftener. What is allocated and freed
    again doesn't count.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 50)


def end_where_threads_are_stuck(status: int) -> None:
    """End the process now if the interpreter would wait for threads.

    Those are threads of a storage read that nothing can interrupt.
    """
    if any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions in a group, however deep: each is one thing to tell the operator."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
