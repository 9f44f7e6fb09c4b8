"""Long work on the loop, in slices: the loop belongs to everybody, so nobody holds it for longer than a moment.

Work is a generator that yields wherever it may be interrupted, some tenths of a millisecond apart, and returns its
result. All such work of a process shares one turn: however many clients give the server long work at once, the
loop does one slice between two looks at its other tasks. Who waits for a slice waits in line, so all get on equally.

A thread would not do instead where the work holds the GIL: a loop that wants the GIL back gets it after 5 ms at best.
What lets go of the GIL (zlib, numpy's sorting) may be yielded as a function: it runs in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")
Steps = Generator[Callable[[], Any] | None, Any, T]
"""Work that stops by `yield`, or by `yield function` to have that called in a thread and be sent what it returned."""

# How long a slice may be. A slice ends with the first step that ends after this, so it is longer by up to one step.
SLICE_SECONDS: Final = 0.0004
# The threads that yielded functions run in. They are few: such work is processor time, and the workers need that too.
_THREADS: Final = 2

_turn: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("slices_turn")
_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("slices_threads")


async def in_slices(steps: Steps[T]) -> T:
    """Return what `steps` returns. Gives other tasks a turn after every slice.

    Raises what `steps` raises. Where the caller is cancelled, `steps` is closed.
    """
    turn = _shared(_turn, trio.Lock)
    try:
        answer: Any = None
        while True:
            # Taking the turn gives all other tasks theirs.
            async with turn:
                until = time.perf_counter() + SLICE_SECONDS
                while True:
                    try:
                        wanted = steps.send(answer)
                    except StopIteration as end:
                        result: T = end.value
                        return result
                    answer = None
                    if wanted is not None or time.perf_counter() >= until:
                        break
            if wanted is not None:
                threads = _shared(_threads, lambda: trio.CapacityLimiter(_THREADS))
                answer = await trio.to_thread.run_sync(wanted, limiter=threads)
    finally:
        steps.close()


def at_once(steps: Steps[T]) -> T:
    """Return what `steps` returns, in one piece: for work that is known to be short, and where no loop runs."""
    answer: Any = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = None if wanted is None else wanted()


S = TypeVar("S")


def _shared(variable: trio.lowlevel.RunVar[S], make: Callable[[], S]) -> S:
    try:
        return variable.get()
    except LookupError:
        variable.set(make())
        return variable.get()
