"""A trio run in virtual time that plain functions drive step by step, for Hypothesis state machines.

Trio's guest mode hands every turn of its loop to a host. Here the host is a deque which only `do` and
`advance` empty, so between two rules nothing moves. All of it happens in one thread. After each step,
everything that can run without the clock has run.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import trio
import trio.testing


class Task:
    """Something asynchronous that a rule has begun. `error` is what it raised, if that was an `Exception`."""

    def __init__(self):
        self.scope = trio.CancelScope()
        self.done = False
        self.cancelled = False
        self.value = None
        self.error = None

    async def _run(self, function):
        try:
            with self.scope:
                self.value = await function()
            self.cancelled = self.scope.cancelled_caught
        # The caller that began the task reads `error`.
        except Exception as error:  # noqa: BLE001
            self.error = error
        finally:
            self.done = True

    def __repr__(self):
        return (
            f"<done: {self.done}, cancelled: {self.cancelled}, value: {self.value!r}, error: {self.error!r}>"
        )


class SteppedTrio:
    """One trio run. `close` cancels and ends it.

    An exception that a background task lets through is raised by the next step.
    """

    def __init__(self):
        self._clock = trio.testing.MockClock()
        self._turns: deque[Callable[[], object]] = deque()
        self._jobs: deque[Callable[[], Awaitable[None]] | None] = deque()
        self._outcome = None
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._turns.append,
            run_sync_soon_not_threadsafe=self._turns.append,
            done_callback=self._ended,
            host_uses_signal_set_wakeup_fd=True,
            clock=self._clock,
        )
        self.do(lambda: None)

    def do(self, function, *args):
        """Call `function` inside the run, let everything settle, and return or raise what it did."""
        job = Task()

        async def call():
            return function(*args)

        self._jobs.append(partial(job._run, call))
        self._pump()
        if job.error is not None:
            raise job.error
        return job.value

    def begin(self, function, *args):
        """Start an asynchronous function, let everything settle, and return its `Task`.

        The task may or may not be done.
        """
        return self.begin_all(partial(function, *args))[0]

    def begin_all(self, *functions):
        """The same with several at once: none is ahead of the others by more than its place."""
        tasks = self.do(lambda: [Task() for _ in functions])
        self._jobs.extend(
            partial(self._start, task, each) for task, each in zip(tasks, functions, strict=True)
        )
        self._pump()
        return tasks

    def cancel(self, task):
        """Cancel a task and let everything settle."""
        self.do(task.scope.cancel)

    @property
    def now(self):
        """The time inside the run, in seconds."""
        return self._clock.current_time()

    def advance(self, seconds):
        """Let time pass from each deadline to the next, so that only what was meant to coincide does."""
        end = self.now + seconds
        while (left := self._to_next_deadline()) <= end - self.now:
            self._clock.jump(max(0.0, left))
            self.do(lambda: None)
        self._clock.jump(end - self.now)
        self.do(lambda: None)

    def close(self):
        """Cancel everything, and see the run to its end."""
        self._jobs.append(None)
        while self._outcome is None:
            self._turns.popleft()()
        self._outcome.unwrap()

    def _to_next_deadline(self):
        return self.do(lambda: trio.lowlevel.current_statistics().seconds_to_next_deadline)

    def _ended(self, outcome):
        self._outcome = outcome

    async def _start(self, task, function):
        self._nursery.start_soon(task._run, function)

    def _pump(self):
        self._idle = False
        while not self._idle:
            if self._outcome is not None:
                self._outcome.unwrap()
                raise RuntimeError("the run has ended")
            self._turns.popleft()()

    async def _main(self):
        async with trio.open_nursery() as self._nursery:
            while True:
                while self._jobs:
                    job = self._jobs.popleft()
                    if job is None:
                        self._nursery.cancel_scope.cancel()
                        return
                    await job()
                await trio.testing.wait_all_tasks_blocked()
                self._idle = True
                await trio.lowlevel.checkpoint()
