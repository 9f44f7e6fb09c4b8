"""Serves as `tritium serve` does, and writes down how long the longest turn of its event loop was.

    python -m benchmarks.hostile.watched FILE --model-repository=… --http-port=…

FILE holds one number, eight bytes: nanoseconds of the loop thread's own CPU time. The measuring process puts
it back to 0. A turn is what a task does between two checkpoints; collections of garbage are in it.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import trio

SIZE = 8


class LongestTurn(trio.abc.Instrument):
    """Times every step of every task."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = memoryview(page).cast("Q")
        self._began = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        del task
        self._began = time.thread_time_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It has come to a checkpoint, or to its end."""
        took = time.thread_time_ns() - self._began
        if took > self._page[0]:
            self._page[0] = took
            if took > 20_000_000:
                sys.stderr.write(f"a turn of {took / 1e6:.1f} ms: {task.name}\n")


def mapped(path: Path) -> mmap.mmap:
    """Return the file's page, shared with every process that maps it too.

    The file is made if it is not there.
    """
    with path.open("a+b") as file:
        if file.tell() < SIZE:
            file.write(bytes(SIZE))
            file.flush()
        return mmap.mmap(file.fileno(), SIZE)


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the process's exit status."""
    from engine.server.run import run
    from engine.settings.settings import Settings

    page = mapped(Path(argv[0]))

    async def watch(*_: object) -> None:
        trio.lowlevel.add_instrument(LongestTurn(page))

    return run(Settings.from_argv(argv[1:], os.environ), beside=watch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
