"""One trio run in virtual time, whose every choice follows from a seed.

Five things would make two runs of the same program differ, and each is taken away:

- *Time*: `VirtualClock` jumps to the next deadline once nothing can run, and stands still otherwise.
- *Order*: trio shuffles the tasks of each turn. It does so with a generator, and in an order of its own
  making, that are private names. `Scheduler` is the one place that knows them, and says what to do when they
  are gone.
- *Threads*: `InlineThreads` does their work in the loop's own thread, and takes virtual time for it. The code
  gets it through `actors.seams.threads`.
- *Slices*: how much of long work goes on at once follows from the machine's own clock, so here each step of
  it is a slice, and none rests.
- *Alarms*: they ring on the machine's own clock, so they are off. Code that sets one has a timer of trio's
  for the same moment.

The order of a set of objects follows from their addresses in memory. So the server keeps objects whose order
matters in dictionaries. Strings need PYTHONHASHSEED, which must be set before the interpreter starts:
`fixed_hash_seed`.

The garbage collector is switched off meanwhile, because when it runs depends on everything that ran before.

Descriptors are real: both ends of each socket are in this process and in this thread. The kernel makes the
one end readable before a write to the other one returns. So what epoll says depends on nothing but what was
written.
"""

from __future__ import annotations

import gc
import math
import os
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio

from actors.seams import slices
from actors.seams.faults import Points
from actors.seams.given import Seams, giving
from actors.seams.slices import Pace

T = TypeVar("T")

# Seconds on the virtual clock; not 0, so that no moment is mistaken for none.
BEGIN: Final = 1000.0
LONGEST: Final = 1500.0  # seconds of virtual time after which a run counts as stuck
LONGEST_WORK: Final = 0.02  # seconds that a piece of work on a thread takes

_PACE: Final = Pace(unrested=math.inf, slice=0.0)

# Turns without a deadline, as long as only descriptors have something to say.
_IDLE_TURNS: Final = 1000


class Stuck(Exception):
    """A run did not end. The message lists its tasks, and where each of them is."""


class SchedulerChanged(Exception):
    """This version of trio keeps its order elsewhere."""


class Scheduler:
    """Trio's order of tasks: the private names `trio._core._run._r` and `_ALLOW_DETERMINISTIC_SCHEDULING`.

    With the second one true, the tasks of a turn are first sorted by when they were started, and then
    shuffled by the first one. Trio has this for Hypothesis, and pytest-trio uses it too.
    """

    def __init__(self, module: Any = None) -> None:
        """Raise SchedulerChanged if trio's module for a run has no such names."""
        module = module or getattr(getattr(trio, "_core", None), "_run", None)
        self._module: Any = module
        missing = [name for name in ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING") if not hasattr(module, name)]
        if missing or not isinstance(module._r, random.Random):  # noqa: SLF001  # see the class
            raise SchedulerChanged(
                f"trio {trio.__version__} has no {' and no '.join(missing) or 'generator'} in trio._core._run. Look at how"
                " that module orders the tasks of a turn (where `runner.runq` becomes a batch) and at what its Hypothesis plugin"
                " does (`_hypothesis_plugin_setup`), and have chaos.simulation.world.virtual.Scheduler do the same"
            )

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Have the order follow from `seed` around the block."""
        # The class explains these private names.
        module, before = self._module, self._module._ALLOW_DETERMINISTIC_SCHEDULING  # noqa: SLF001
        state = module._r.getstate()  # noqa: SLF001
        module._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
        module._r.seed(seed)  # noqa: SLF001
        try:
            yield
        finally:
            module._ALLOW_DETERMINISTIC_SCHEDULING = before  # noqa: SLF001
            module._r.setstate(state)  # noqa: SLF001


class VirtualClock(trio.abc.Clock, trio.abc.Instrument):
    """Stands still while tasks run, and jumps to the next deadline as soon as none can.

    It is also an instrument of its run, so that it knows when tasks have run.
    """

    def __init__(self) -> None:
        self._now = BEGIN
        self._ran = True
        self._idle = 0

    def start_clock(self) -> None:
        """See `Clock`."""

    def current_time(self) -> float:
        """See `Clock`."""
        return self._now

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See `Instrument`."""
        self._ran = True

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return 0: the loop never sleeps.

        The loop asks when no task can run, and then looks at its descriptors. If it asks again and no task
        has run in between, nothing but time can wake a task.

        Raises Stuck where a run would never end. Nothing within the run could end it: a waiting task may be
        shielded, and without a deadline there is nothing to jump to.
        """
        self._idle = self._idle + 1 if deadline == math.inf else 0
        if self._idle > _IDLE_TURNS or self._now > BEGIN + LONGEST:
            root = trio.lowlevel.current_root_task()
            why = "every task waits for another" if self._idle else f"it takes over {LONGEST:g} s"
            raise Stuck("\n".join((why, *(_told(root) if root is not None else ()))))
        if not self._ran and self._now < deadline < math.inf:
            self._now = deadline
        self._ran = False
        return 0


def run(main: Callable[[], Awaitable[T]], *, seed: int) -> T:
    """Run `main` in virtual time, which begins at `BEGIN`, and return what it does.

    The same seed gives the same run. Raises trio.TrioInternalError from `Stuck` if the run does not end.
    """
    clock = VirtualClock()

    async def call() -> T:
        slices.give(_PACE)
        with giving(seams(seed)):
            return await main()

    with Scheduler().seeded(seed), _without_collector():
        return trio.run(call, clock=clock, instruments=[clock])


def seams(seed: int, points: Points | None = None) -> Seams:
    """Return what a virtual machine gives to the server."""
    return Seams(threads=InlineThreads(seed), alarms=False, points=points)


def _told(task: trio.lowlevel.Task, depth: int = 0) -> Iterator[str]:
    names = []
    waits: Any = task.coro
    while getattr(waits, "cr_frame", None) is not None:
        names.append(f"{waits.cr_code.co_qualname}:{waits.cr_frame.f_lineno}")
        waits = waits.cr_await
    yield f"{'  ' * depth}{task.name}: {' > '.join(names[-4:])}"
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda each: each.name):
            yield from _told(child, depth + 1)


class InlineThreads:
    """Work that threads would do, done in the loop's thread.

    It takes virtual time before or after it is done.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"threads {seed}")

    async def run_sync(
        self,
        function: Callable[..., T],
        *args: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """See `Threads`. Abandoned work goes on to its end, as a thread would."""
        borrower = object()
        if limiter is not None:
            await limiter.acquire_on_behalf_of(borrower)
        before, after = self._random.random() * LONGEST_WORK, self._random.random() * LONGEST_WORK
        done = False
        try:
            with trio.CancelScope(shield=not abandon_on_cancel):
                await trio.sleep(before)
                done = True
                result = function(*args)
                await trio.sleep(after)
        except trio.Cancelled:
            if not done:
                function(*args)
            raise
        else:
            return result
        finally:
            if limiter is not None:
                limiter.release_on_behalf_of(borrower)


@contextmanager
def _without_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def fixed_hash_seed(arguments: Sequence[str]) -> None:
    """Start this interpreter anew, with `arguments`, unless strings hash alike in every process.

    Does not return if it starts anew.
    """
    if sys.flags.hash_randomization:
        os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, "PYTHONHASHSEED": "0"})
