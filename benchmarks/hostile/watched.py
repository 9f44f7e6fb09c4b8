"""Serves as `tritium serve` does, and writes down how long the longest turn of its event loop was.

    python -m benchmarks.hostile.watched FILE [--languages] --model-repository=… --http-port=…

With `--languages` it has an engine of language models that needs no framework.

FILE holds numbers of eight bytes: nanoseconds of the loop thread's own CPU time, see `Word`. The measuring
process puts them back to 0.
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

import trio


class Word(IntEnum):
    """What FILE tells, in this order."""

    STEP = 0
    """The longest step: what one task does between two checkpoints, with collections of garbage."""
    TURN = 1
    """The longest turn of the loop: from one wait for sockets to the next, all tasks that run in between."""
    COLLECTION = 2
    """The longest collection of garbage."""
    USED = 3
    """All turns together."""


SIZE: Final = 8 * len(Word)
_TOLD: Final = 20_000_000  # nanoseconds; longer ones are named on standard error
_TASKS_TOLD: Final = 3


class LongestTurn(trio.abc.Instrument):
    """Times every step of every task, and the turns that they are part of."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = memoryview(page).cast("Q")
        self._began = 0
        self._turn_began = time.thread_time_ns()
        self._collection_began = 0
        self._steps: dict[str, list[int]] = {}  # of this turn, by the kind of task: how many, and how long

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        del task
        self._began = time.thread_time_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It has come to a checkpoint, or to its end."""
        took = time.thread_time_ns() - self._began
        name = task.name.rstrip("0123456789")
        steps = self._steps.get(name)
        if steps is None:
            self._steps[name] = steps = [0, 0]
        steps[0] += 1
        steps[1] += took
        if took > self._page[Word.STEP]:
            self._page[Word.STEP] = took
            if took > _TOLD:
                sys.stderr.write(f"a step of {took / 1e6:.1f} ms: {task.name}\n")

    def before_io_wait(self, timeout: float) -> None:
        """All tasks that could run have run."""
        del timeout
        now = time.thread_time_ns()
        took, self._turn_began = now - self._turn_began, now
        steps, self._steps = self._steps, {}
        self._page[Word.USED] += took
        if took > self._page[Word.TURN]:
            self._page[Word.TURN] = took
            if took > _TOLD:
                most = sorted(steps.items(), key=lambda item: -item[1][1])[:_TASKS_TOLD]
                what = ", ".join(f"{count} of {name} {ns / 1e6:.1f} ms" for name, (count, ns) in most)
                sys.stderr.write(f"a turn of {took / 1e6:.1f} ms: {what}\n")

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """A collection of garbage begins, or has ended."""
        now = time.thread_time_ns()
        if phase == "start":
            self._collection_began = now
            return
        took = now - self._collection_began
        if took > self._page[Word.COLLECTION]:
            self._page[Word.COLLECTION] = took
            if took > _TOLD:
                sys.stderr.write(f"a collection of {took / 1e6:.1f} ms: generation {info['generation']}\n")


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
    import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
    from engine.server.run import run
    from engine.settings.settings import Settings

    page = mapped(Path(argv[0]))

    async def watch(*_: object) -> None:
        instrument = LongestTurn(page)
        gc.callbacks.append(instrument.collecting)
        trio.lowlevel.add_instrument(instrument)

    options = list(argv[1:])
    machine = None
    if options[:1] == ["--languages"]:
        from tests.support.serving_languages import MachineWithLanguages

        del options[0]
        machine = MachineWithLanguages()
    return run(Settings.from_argv(options, os.environ), beside=watch, machine=machine)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
