"""What the server's process needs set, however it was started."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext

E = TypeVar("E", bound=BaseException)


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
    again doesn't count. While the server serves, `engine.processes.collecting` has full collections.
    """
    gc.unfreeze()  # what was imported, in which there is waste as well
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


def leaves(group: BaseExceptionGroup[E]) -> list[E]:
    """Return the exceptions in a group, however deep: each is one thing to tell the operator."""
    found: list[E] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


# -- memory that requests have left behind goes back to the system, now and then
#
# glibc gives free memory back only from the end of its heap, and puts large buffers there once it has seen
# some. One long-lived buffer would keep all memory in front of it with the process. `malloc_trim` gives back
# what is free in between.

PERIOD: Final = 10.0
_KEPT_AT_THE_END: Final = 1024 * 1024  # bytes that the next requests need not ask for again


async def trim_memory(ctx: ChildContext) -> None:
    """Give free memory back every `PERIOD` seconds, for ever; a child of the tree. No-op without glibc."""
    ctx.started()
    trim = trimmer()
    if trim is None:
        await ctx.stopping.wait()
        return
    while True:
        await trio.sleep(PERIOD)
        await in_thread(trim)  # milliseconds for a large heap, without the interpreter's lock


def trimmer() -> Callable[[], None] | None:
    """Return what gives free memory back; None if the C library can't."""
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is None:
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: function(_KEPT_AT_THE_END)


# -- what around the process will get in its way, told at the start and not when it does

FEW_FILES: Final = 1024
"""Open files below which a server is short of them.

A connection takes one, a worker some ten, the server itself some twenty.
"""


def in_the_way() -> list[str]:
    """Return a warning for each thing that this process lacks, after it has raised its own limits."""
    said = (_few_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), _file_names(), _no_room_for_files())
    return [warning for warning in said if warning]


def _few_files(limit: int) -> str:
    if limit == resource.RLIM_INFINITY or limit >= FEW_FILES:
        return ""
    return (
        f"only {limit} files may be open at once: a connection takes one and a worker some ten, so models"
        " may not load and clients"
        " may have to wait; raise it, by ulimit -n 65536, LimitNOFILE=65536 (systemd) or --ulimit"
        " nofile=65536 (docker)"
    )


def _file_names() -> str:
    encoding = sys.getfilesystemencoding().lower().replace("_", "-")
    if encoding in {"utf-8", "utf8"}:
        return ""
    return (
        f"file names are read as {encoding}, by the locale: models whose names are not plain ASCII are not"
        " found; set"
        " LC_ALL=C.UTF-8 or PYTHONUTF8=1"
    )


def _no_room_for_files() -> str:
    try:
        tempfile.gettempdir()
    except OSError:
        return (
            "no directory for temporary files can be written to: models that come with a load request,"
            " downloads and packed"
            " environments can't be unpacked; mount a tmpfs at /tmp, or set TMPDIR"
        )
    return ""
