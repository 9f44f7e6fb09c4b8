"""Serves as `tritium serve` does, and writes down each turn of its event loop.

    python -P …/benchmarks/wakeups/watched.py FILE --model-repository=… --http-port=…

It is run by its path, and so serves the code of any checkout that is on PYTHONPATH. FILE has a page of
numbers (`Page`), and FILE.names the names of tasks, one a line. What is written costs some microseconds a
turn: compare times of day with each other, and not with those of a server that is not watched.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, TextIO

import trio


class Mark(IntEnum):
    """What is noted. A number from `STEP` on is a step of the task whose name is in line `number - STEP`."""

    SLEEPS = 0
    """All tasks that could run have run, and the loop waits for sockets."""
    POLLS = 1
    """The same, but a task wants another turn: the loop looks at its sockets and goes on."""
    WOKEN = 2
    """A turn begins: the wait is over."""
    PAUSES = 3
    """A step has ended, at a checkpoint or at the task's end."""
    STEP = 16
    """A task goes on."""


RING: Final = 1 << 16
"""The last marks that the page holds."""
_WORDS: Final = 2 * RING + 1


class Page:
    """The page: how many marks there were, then the last of them, each a time and a number.

    Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
    """

    def __init__(self, path: Path) -> None:
        """The file is made if it is not there."""
        with path.open("a+b") as file:
            if file.tell() < 8 * _WORDS:
                file.truncate(8 * _WORDS)
            self._words = memoryview(mmap.mmap(file.fileno(), 8 * _WORDS)).cast("Q")

    def note(self, at: int, what: int) -> None:
        """Write a mark."""
        words = self._words
        count = words[0]
        place = 2 * (count % RING) + 1
        words[place] = at
        words[place + 1] = what
        words[0] = count + 1

    @property
    def count(self) -> int:
        """How many marks there were so far."""
        return self._words[0]

    def since(self, count: int) -> list[tuple[int, int]]:
        """Return the marks after the first `count`: the time and the number of each.

        Raises ValueError where the page holds no longer all of them.
        """
        words, end = self._words, self._words[0]
        if end - count > RING:
            raise ValueError(f"{end - count} marks are more than the page's {RING}: watch for a shorter time")
        places = (2 * (number % RING) + 1 for number in range(count, end))
        return [(words[place], words[place + 1]) for place in places]


class LoopWatch(trio.abc.Instrument):
    """Notes each wait of the loop, and each step of each task."""

    def __init__(self, page: Page, names: TextIO) -> None:
        self._note = page.note
        self._names = names
        self._numbers: dict[str, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        name = task.name
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            self._names.write(name.replace("\n", " ") + "\n")
            self._names.flush()
        self._note(time.perf_counter_ns(), Mark.STEP + number)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It has come to a checkpoint, or to its end."""
        del task
        self._note(time.perf_counter_ns(), Mark.PAUSES)

    def before_io_wait(self, timeout: float) -> None:
        """All tasks that could run have run."""
        self._note(time.perf_counter_ns(), Mark.SLEEPS if timeout > 0 else Mark.POLLS)

    def after_io_wait(self, timeout: float) -> None:
        """A turn begins."""
        del timeout
        self._note(time.perf_counter_ns(), Mark.WOKEN)


def names_of(path: Path) -> Path:
    """Return the file with the names of tasks."""
    return path.with_name(path.name + ".names")


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the process's exit status."""
    with suppress(ModuleNotFoundError):  # a checkout from before there was a choice
        import engine.core.chosen  # noqa: F401  # before anything that it chooses
    from engine.server.run import run
    from engine.settings.settings import Settings

    page = Page(Path(argv[0]))
    with names_of(Path(argv[0])).open("w") as names:

        async def watch(*_: object) -> None:
            trio.lowlevel.add_instrument(LoopWatch(page, names))

        return run(Settings.from_argv(argv[1:], os.environ), beside=watch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
