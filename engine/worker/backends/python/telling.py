"""Tells the server of the changes of a model's metrics, at a bounded rate."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from engine.worker.forking import when_forked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from engine.worker.calls import Calls

CHANGE = "metric.change"
RELEASE = "metric.release"

_BURST = 64  # changes that are told at once, one by one
# Changes a second that may go on for ever; beyond that they are put together.
_RATE = 1000.0
_WEIGHT = 1000  # numbers in one message, which must stay within a frame


class PendingChange:
    """What was done to one series and is not told yet."""

    __slots__ = ("added", "counts", "put")

    def __init__(self) -> None:
        self.put: float | None = None  # set to this, and then
        self.added = 0.0
        self.counts: list[int] = []  # of a histogram, by bucket

    def weight(self) -> int:
        """How many numbers it takes to tell."""
        return 2 + len(self.counts)

    def told(self, series: int) -> list[Any]:
        """Return the change as it is told.

        These are the series, what is put, what is added or observed in all, and how often in each bucket.
        """
        return [series, self.put, self.added, self.counts]


class MetricChanges:
    """Tells the server of changes, at a bounded rate."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._begin()
        when_forked(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()  # of what is pending
        self._order = threading.Lock()  # of messages; taken before `_guard`
        self._pending: dict[int, PendingChange] = {}
        self._released: deque[int] = deque()
        self._allowance = float(_BURST)
        self._counted_at = time.monotonic()
        # A SimpleQueue's put may be called from a finalizer, whatever the thread is in the middle of.
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._closed = threading.Event()
        self.process = os.getpid()
        self._thread: threading.Thread | None = None

    def keep_telling(self) -> None:
        """See to it that what is not told at once is told soon."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_telling, name="model-metrics", daemon=True)
                self._thread.start()

    def forked(self) -> None:
        """This is a process that the model has forked: its parent tells what was pending; forget it here."""
        self._begin()

    def change(self, series: int, change: Any) -> None:
        """Have `change` applied to what is pending for a series, and tell of it now or soon."""
        with self._guard:
            change(self._pending.setdefault(series, PendingChange()))
            at_once = self._may_tell()
        if at_once:
            self.flush()
        else:
            self.keep_telling()
            self._wake.put(True)

    def release(self, series: int) -> None:
        """A reference to a series is gone. Called by finalizers: takes no lock."""
        self._released.append(series)
        self._wake.put(True)

    def flush(self) -> None:
        """Tell what is pending."""
        if not self._pending and not self._released:
            return
        with self._order:
            released = [self._released.popleft() for _ in range(len(self._released))]
            with self._guard:
                pending, self._pending = self._pending, {}
            for changes in _in_messages(pending):
                self._calls.tell(CHANGE, {"changes": changes})
            if released:
                self._calls.tell(RELEASE, {"series": released})

    def close(self) -> None:
        """Tell the rest, and end."""
        self.flush()
        self._closed.set()
        self._wake.put(False)

    def _may_tell(self) -> bool:
        now = time.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._counted_at) * _RATE)
        self._counted_at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _keep_telling(self) -> None:
        while self._wake.get():
            with contextlib.suppress(Empty):
                while self._wake.get_nowait():
                    pass
            self.flush()
            self._closed.wait(1 / _RATE)


def _in_messages(pending: Mapping[int, PendingChange]) -> Iterator[list[list[Any]]]:
    message: list[list[Any]] = []
    weight = 0
    for series, change in pending.items():
        if message and weight + change.weight() > _WEIGHT:
            yield message
            message, weight = [], 0
        message.append(change.told(series))
        weight += change.weight()
    if message:
        yield message
