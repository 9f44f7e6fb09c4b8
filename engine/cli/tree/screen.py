"""The live page on a terminal: asks the server in a thread, hears keys, draws what `page` makes of it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live

from engine.cli.client import ServerUnavailable
from engine.cli.tree.keys import Key, keys
from engine.cli.tree.page import Screen, View, chosen, page
from engine.cli.tree.reading import Reading
from engine.cli.tree.rows import rows
from engine.observability.terminals import Ability
from engine.observability.text import duration

_LOOK: Final = 0.5
"""Seconds after which the terminal's size, and how long the server has been away, are looked at again."""

_SPAN: Final = 2.0
"""Seconds that rates are reckoned over, at least."""


def show(url: str, ask: Callable[[], Reading], interval: float, ability: Ability) -> None:
    """Show the page, and the server as `ask` tells of it, until the viewer has seen enough."""
    with _Asking(ask, interval) as asking, _keyboard() as keyboard:
        console = Console(highlight=False, color_system="auto" if ability.colours else None)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            _show(url, asking, keyboard, console, live, ability)


def _show(
    url: str, asking: _Asking, keyboard: int | None, console: Console, live: Live, ability: Ability
) -> None:
    view = View()
    while True:
        before, reading, lost = asking.news()
        size = console.size
        screen = Screen(width=size.width, height=size.height, ability=ability, keys=keyboard is not None)
        live.update(Group(*page(url, before, reading, view, screen, lost=lost)), refresh=True)
        for key in _pressed(keyboard, asking.bell):
            if key is Key.QUIT:
                return
            shown = [] if reading is None else rows(before, reading, view.opened)
            view = chosen(view, key, shown)
            if view.selected and reading is None:
                view = replace(view, selected="")


def _pressed(keyboard: int | None, bell: int) -> list[Key]:
    """Wait for keys, for news or for a while."""
    heard = select.select([each for each in (keyboard, bell) if each is not None], [], [], _LOOK)[0]
    if bell in heard:
        os.read(bell, 4096)
    if keyboard is None or keyboard not in heard:
        return []
    pressed = os.read(keyboard, 4096)
    return list(keys(pressed)) if pressed else [Key.QUIT]  # the terminal has gone


class _Asking:
    """Asks the server over and over in a thread, so that a server that hangs holds no key up."""

    def __init__(self, ask: Callable[[], Reading], interval: float) -> None:
        self._ask = ask
        self._interval = max(0.1, interval)
        self.bell, self._ringing = os.pipe()
        self._lock = threading.Lock()
        self._readings: list[Reading] = []
        self._lost = ""
        self._lost_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tritium-tree", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()  # a request under way ends with the process

    def news(self) -> tuple[Reading | None, Reading | None, str]:
        """Return a reading to reckon rates from, the last reading, and why there is none now."""
        with self._lock:
            before, last = (self._readings[0], self._readings[-1]) if self._readings else (None, None)
            lost = self._lost
            if lost:
                away = duration(time.monotonic() - self._lost_at)
                lost = f"{lost}; away for {away}, waiting for it to come back"
        return (before if before is not last else None), last, lost

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                reading = self._ask()
            except ServerUnavailable as error:
                self._miss(str(error))
            else:
                self._take(reading)
            with contextlib.suppress(OSError):
                os.write(self._ringing, b"!")
            self._ended.wait(self._interval)

    def _miss(self, why: str) -> None:
        with self._lock:
            if not self._lost:
                self._lost_at = time.monotonic()
            self._lost = why

    def _take(self, reading: Reading) -> None:
        with self._lock:
            if self._lost:
                self._readings.clear()  # it may be another server now, whose counts begin at 0
            self._lost = ""
            self._readings.append(reading)
            while len(self._readings) > 2 and reading.at - self._readings[1].at >= _SPAN:
                del self._readings[0]


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Give the terminal's keys one by one, without an echo; None where there is no keyboard."""
    if not sys.stdin.isatty():
        yield None
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield number
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
