"""Long work on the loop, in slices: no work holds the loop for longer than a moment, as all tasks share it.

Work is a generator that yields wherever it may be interrupted, some tenths of a millisecond apart, and
returns its result. All such work of a process shares one turn. So however many clients give the server long
work at once, the loop does one slice between two looks at its other tasks. Tasks that want a slice wait in
line, so all make equal progress.

Long work makes way for short work. After each short batch that was dispatched, it rests for a millisecond. A
turn of the loop would not be enough: the worker that has been given the batch, and the client that waits for
its answer, may need the core that the slices take. Where all requests are long, no work rests. Work of a few
slices in all does not rest either, such as a copy of one mebibyte, which takes no longer than the rest would.

A thread would be no substitute where the work holds the GIL: a loop that wants the GIL back gets it after 5
ms at best. A function that releases the GIL (zlib, numpy's sorting) may be yielded: it runs in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import trio

from actors.seams.steps import Steps
from actors.seams.threads import in_thread

T = TypeVar("T")
REST_SECONDS: Final = 0.001
"""How long all long work of the process rests for a short batch.

It is the shortest time that the kernel's timer for sockets can do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long work of a run may go on, in seconds."""

    # Before it rests for the first time.
    unrested: float = 0.002
    # In one slice. A slice ends with the first step that ends after this, so it is longer by up to one step.
    slice: float = 0.0004


# The threads that yielded functions run in. They are few: such work is processor time, and the workers need
# that too.
_THREADS: Final = 2


class Passing:
    """Counts the short work that comes while there is long work."""

    def __init__(self) -> None:
        self.batches = 0  # short batches; the code that dispatches one counts it


passing: Final = Passing()
"""The process's own. Counting must cost nothing, so it needs no look-up of the current run."""


class _Turn:
    """The turn that all long work of a run shares."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.made_way = passing.batches  # the count at the last rest


_turn: trio.lowlevel.RunVar[_Turn] = trio.lowlevel.RunVar("slices_turn")
_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("slices_threads")
_pace: trio.lowlevel.RunVar[Pace] = trio.lowlevel.RunVar("slices_pace", Pace())


def give(pace: Pace) -> None:
    """Have all work of this run of trio that begins from now on go at another pace."""
    _pace.set(pace)


async def in_slices(steps: Steps[T]) -> T:
    """Return what `steps` returns. Gives other tasks a turn after every slice.

    Raises what `steps` raises. Where the caller is cancelled, `steps` is closed. A caller that gets a result
    is not cancelled, and other tasks have not run since the last step.
    """
    turn, pace = _shared(_turn, _Turn), _pace.get()
    try:
        answer: Any = None
        worked = 0.0
        while True:
            # Taking the turn gives all other tasks theirs.
            async with turn.lock:
                # Taking it ends in a wait that can't be cancelled. Without this look, work whose caller was
                # cancelled in that wait could return as if nothing had happened.
                await trio.lowlevel.checkpoint_if_cancelled()
                if turn.made_way != passing.batches and worked >= pace.unrested:
                    turn.made_way = passing.batches
                    await trio.sleep(REST_SECONDS)
                began = time.perf_counter()
                until = began + pace.slice
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
                answer = await in_thread(wanted, limiter=threads)
            worked += time.perf_counter() - began
    finally:
        steps.close()


def in_threads(steps: Generator[None, None, T]) -> Steps[T]:
    """Do the same work with each step in a thread: for steps that release the GIL.

    Other work makes way between two steps.
    """

    def step() -> tuple[T] | None:
        try:
            next(steps)
        except StopIteration as end:
            return (end.value,)
        return None

    done: tuple[T] | None = None
    while done is None:
        done = yield step
    return done[0]


S = TypeVar("S")


def _shared(variable: trio.lowlevel.RunVar[S], make: Callable[[], S]) -> S:
    try:
        return variable.get()
    except LookupError:
        variable.set(make())
        return variable.get()
