"""Memory that requests have left behind goes back to the system, now and then.

glibc gives free memory back only from the end of its heap, and puts large buffers there once it has seen
some. One long-lived buffer would keep all memory in front of it with the process. `malloc_trim` gives back
what is free in between.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

import trio

from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext

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
