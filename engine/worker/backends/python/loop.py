"""The asyncio loop of a model's coroutines, on a thread of its own for as long as the model lives."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from engine.worker.backends.python.host import MOST_READERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class EventLoop:
    """Runs coroutines from any thread. Nothing is started, and asyncio not imported, before there is one."""

    def __init__(self, attach: Callable[[], None]) -> None:
        """`attach` is called on the loop's thread, when that begins."""
        self._attach = attach
        self._starting = threading.Lock()
        self._loop: Any = None
        self._thread: threading.Thread | None = None

    def start(self, coroutine: Any) -> Future[Any]:
        """Begin to run `coroutine`, in the caller's context; the future is a thread's to wait for."""
        # The user's coroutines are written for it. It costs 50 ms, so models without coroutines do not import
        # it.
        import asyncio  # noqa: TID251

        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="model-asyncio", daemon=True
                )
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Any) -> Any:
        """Return what `coroutine` returns, or raise what it raises.

        Do not call it on the loop's own thread.
        """
        return self.start(coroutine).result()

    def close(self) -> None:
        """End the loop and its thread, if there is one."""
        with self._starting:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _run(self, loop: Any) -> None:
        self._attach()
        while self._loop is loop:
            # What `sys.exit` raises in a task ends asyncio's loop before the waiters for that task are told.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()


_depth = threading.local()


def running_loop() -> Any:
    """Return the event loop whose callback this is, if it can `go_on` from within; else None."""
    if "asyncio" not in sys.modules or getattr(_depth, "value", 0) >= MOST_READERS:
        return None
    import asyncio  # noqa: TID251  # as above

    with contextlib.suppress(RuntimeError):
        loop: Any = asyncio.get_running_loop()
        if hasattr(loop, "_run_once") and hasattr(loop, "_ready"):  # asyncio's own, in any version so far
            return loop
    return None


def go_on(loop: Any, done: Callable[[], bool]) -> None:
    """Run other callbacks of the loop until `done`, from within one of its callbacks.

    A plain `for` in a coroutine can't give up its turn. The loop has counted the callbacks that it will run
    in its present turn. As many must be there when this returns.
    """
    import asyncio  # noqa: TID251  # as above

    task = asyncio.current_task(loop)
    counted = len(loop._ready)  # noqa: SLF001  # there is no public way
    _depth.value = getattr(_depth, "value", 0) + 1
    if task is not None:
        asyncio.tasks._leave_task(loop, task)  # noqa: SLF001  # for another one to be the current task
    try:
        while not done():
            loop._run_once()  # noqa: SLF001
    finally:
        if task is not None:
            asyncio.tasks._enter_task(loop, task)  # noqa: SLF001
        _depth.value -= 1
        while len(loop._ready) < counted:  # noqa: SLF001
            loop.call_soon(_nothing)


def _nothing() -> None:
    """Fill a turn."""
