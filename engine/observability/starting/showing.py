"""The terminal of a server whose models load: keeps lines about that below the log, and draws them anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from typing import Final

import trio

from actors.values.interfaces import IndexEntry
from actors.values.specs import ModelKey
from engine.observability.loads import load_seconds
from engine.observability.logs import LogSink
from engine.observability.starting.drawing import Line, painted
from engine.observability.starting.progress import Canvas, block
from engine.observability.starting.summary import Loaded, failures, summary
from engine.observability.terminals import Ability

_PACE: Final = 0.25
"""Seconds between two drawings."""

_LOOK: Final = 1.0
"""Seconds between two looks for loads after the start; shorter ones are not worth a drawing."""

Known = Callable[[], tuple[Sequence[IndexEntry], Collection[ModelKey]]]
"""Returns the versions that are known now, and the models that are loaded on demand. It does not wait."""


class StartDisplay:
    """Shows loads on a terminal, from the start until `run` is cancelled.

    At the start it takes the place of the log's lines about them (see `LogSink.tells_loads`).
    """

    def __init__(self, sink: LogSink, ability: Ability) -> None:
        self._sink = sink
        self._ability = ability
        self._began = trio.current_time()
        self._summed_up = False
        self._last: tuple[Sequence[IndexEntry], Collection[ModelKey]] = ((), ())
        sink.tells_loads = True

    async def run(self, known: Known, loading: Callable[[], bool]) -> None:
        """Draw what is being loaded. Cancelled before the summary, it tells of failures so far.

        After the summary, what is known is asked for only while something is `loading`.
        """
        try:
            while True:
                if self._summed_up and not loading():
                    self._sink.below(())
                    await trio.sleep(_LOOK)
                else:
                    self._draw(*known())
                    await trio.sleep(_PACE)
        finally:
            self._sink.below(())
            if not self._summed_up:
                self._write(list(failures(*self._last, self.canvas())))

    def _draw(self, entries: Sequence[IndexEntry], on_demand: Collection[ModelKey]) -> None:
        self._last = entries, on_demand
        seconds = self.took
        if self._summed_up:
            entries = [entry for entry in entries if entry.progress is not None]
            seconds = max((load_seconds(entry.progress or {}) or 0.0 for entry in entries), default=0.0)
        canvas = self.canvas()
        lines = block(entries, on_demand, canvas, seconds=seconds)
        self._sink.below([painted(line, self._ability) for line in lines])

    def canvas(self) -> Canvas:
        """Return the terminal as large as it is now."""
        size = shutil.get_terminal_size()
        return Canvas(width=size.columns, height=size.lines, ability=self._ability)

    @property
    def took(self) -> float:
        """Seconds since the start."""
        return trio.current_time() - self._began

    def sum_up(self, loaded: Loaded) -> None:
        """Show what came of it, once. The log tells of later loads itself."""
        self._summed_up = True
        self._sink.below(())
        self._write(list(summary(loaded, self.canvas())))

    def _write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._sink.write(painted(line, self._ability), severe=False)

    def end_start(self) -> None:
        """Have the log tell of loads from now on."""
        self._sink.tells_loads = False
