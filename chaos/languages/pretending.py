"""What engines without a model have in common: streams that wait, and those that there is room for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from engine.worker.backends.language.engine import Gauges, StepEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

S = TypeVar("S")


class Pretending(StepEngine, Generic[S]):
    """Keeps for each stream what a subclass has prepared. At most `room` of them run at once."""

    sleeps: Sequence[int] = (1, 2)

    def __init__(self, room: int) -> None:
        self._room = room
        self._running: dict[int, S] = {}
        self._waiting: deque[tuple[int, S]] = deque()
        self._level = 0  # at which it sleeps

    def sleep(self, level: int) -> None:
        """See `StepEngine`. It does not do so twice, and not while it has streams."""
        if self._level or self.busy:
            raise RuntimeError(f"an engine of level {self._level} with {self.gauges()} is put to sleep")
        self._level = level

    def wake(self) -> None:
        """See `StepEngine`. It does so once."""
        if not self._level:
            raise RuntimeError("an engine that is awake is woken")
        self._level = 0

    def add(self, stream: int, prepared: S) -> None:
        """See `StepEngine`."""
        self._waiting.append((stream, prepared))

    def abort(self, streams: Sequence[int]) -> None:
        """See `StepEngine`."""
        for stream in streams:
            self._running.pop(stream, None)
        self._waiting = deque(each for each in self._waiting if each[0] not in streams)

    def _admit(self) -> None:
        """Have those run that there is room for. A step begins with it, and no engine steps asleep."""
        if self._level:
            raise RuntimeError("an engine steps asleep")
        while self._waiting and len(self._running) < self._room:
            stream, prepared = self._waiting.popleft()
            self._running[stream] = prepared

    @property
    def busy(self) -> bool:
        """See `StepEngine`."""
        return bool(self._running or self._waiting)

    def gauges(self) -> Gauges:
        """See `StepEngine`."""
        return Gauges(len(self._running), len(self._waiting))
