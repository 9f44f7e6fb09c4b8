"""The one thread that a model under test runs on, and a limit to how long a test waits for it."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ModelHung(Exception):
    """The model has not returned in time. The message shows where it stands."""


class ModelThread:
    """Runs one thing after the other, as a worker's main thread does.

    It is a daemon: if it hangs, it does not hold up the tests.
    """

    def __init__(self) -> None:
        self.hung = False  # it does not come back
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="model-under-test", daemon=True)
        self._thread.start()

    def run(self, function: Callable[[], T], *, what: str, within: float) -> T:
        """Return what `function` returns or raises.

        Raises ModelHung after `within` seconds; the thread is lost then.
        """
        done = threading.Event()
        result: list[T] = []
        raised: list[BaseException] = []

        def job() -> None:
            try:
                result.append(function())
            except BaseException as error:  # noqa: BLE001  # it is the caller's
                raised.append(error)
            done.set()

        self._jobs.put(job)
        if not done.wait(within):
            self.hung = True
            raise ModelHung(f"{what} has not returned within {within:g} s; it stands here:\n{self._stack()}")
        if raised:
            raise raised[0]
        return result[0]

    def end(self) -> None:
        """Let the thread end when it has done what it was given."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _stack(self) -> str:
        # This is the documented way to another thread's stack.
        frame: Any = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        lines = traceback.format_stack(frame) if frame is not None else []
        first = next(
            (at for at, line in enumerate(lines) if __file__ not in line and "threading.py" not in line), 0
        )
        return "".join(lines[first:])
