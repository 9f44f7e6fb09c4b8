"""What is told beside events: the tables at start, fatal errors, and what Python itself has to say.

With `--log-format=json` all of it is events, so that nothing but JSON lines leaves the process. In the other
formats the tables are text for people, as Triton prints them, and a failure is a line `error: …` on stderr.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Collection, Sequence
from typing import TextIO

from actors.values.events import Event, Log
from actors.values.interfaces import IndexEntry
from actors.values.specs import ModelKey
from engine.observability.logs import LogSink
from engine.observability.running_logs import RunningLogs
from engine.observability.starting.progress import ON_DEMAND, READY, first_line, standing
from engine.observability.starting.showing import StartDisplay
from engine.observability.starting.summary import Loaded
from engine.observability.terminals import ability_of
from engine.observability.text import aligned


class Announcer:
    """Tells the operator in the form that the settings ask for."""

    def __init__(self, logs: RunningLogs, sink: LogSink, log: Log) -> None:
        self._logs = logs
        self._file = logs.settings.file
        self._sink = sink
        self._log = log

    @property
    def _json(self) -> bool:
        return self._logs.settings.format == "json"

    def display(self) -> StartDisplay | None:
        """Return what shows the loads on the terminal; None where lines of the log do. In a trio loop."""
        settings = self._logs.settings
        if self._json or self._file or settings.split_streams or not (settings.progress and settings.info):
            return None
        ability = ability_of(sys.stdout, os.environ)
        return StartDisplay(self._sink, ability) if ability.draws else None

    def tables(self, loaded: Loaded) -> None:
        """Show the models with their states, and the options.

        Models that were never asked to load are only counted.
        """
        if not self._json:
            text = startup_text(loaded.entries, loaded.options, loaded.on_demand)
            self._sink.write(text.removesuffix("\n"), severe=False)
            return
        attempted = [entry for entry in loaded.entries if entry.state or entry.reason]
        self._log(Event.SERVER_CONFIGURED, options=dict(loaded.options))
        self._log(
            Event.SERVER_LOADED,
            models=[
                {"model": entry.name, "version": entry.version, "state": entry.state or "UNAVAILABLE"}
                for entry in attempted
            ],
            not_loaded=len(loaded.entries) - len(attempted),
        )

    def failed(self, why: str, bug: BaseException | None = None, *, hint: str = "") -> None:
        """Say why the server can't start, or can't go on; `bug` brings its traceback.

        `hint` says what would have worked.
        """
        if self._json or self._file or bug is not None:
            told = {"hint": hint} if hint else {}
            self._log(Event.SERVER_FAILED, level="error", error=why, exc_info=bug, **told)
        if not self._json or self._file:
            sys.stderr.write(f"error: {why}\n" + (f"{hint}\n" if hint else ""))

    def last_words(self, text: str) -> None:
        """Say why the process ends at once, where Triton has a sentence for it."""
        if self._json:
            self._log(Event.SERVER_FAILED, level="error", error=text)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def hear_python(log: Log) -> None:
    """Have Python's warnings, and the errors that no caller can be told of, become lines of the log."""

    def warned(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del file, line
        where = f"{filename}:{lineno}"
        log(
            Event.PYTHON_WARNING,
            level="warning",
            warning=str(message),
            category=category.__name__,
            where=where,
        )

    def ignored(unraisable: sys.UnraisableHookArgs) -> None:
        about = f"{unraisable.err_msg or 'an exception was ignored'}: {unraisable.object!r}"
        log(Event.PYTHON_ERROR, level="error", error=about, exc_info=unraisable.exc_value)

    def thread_died(given: threading.ExceptHookArgs) -> None:
        name = "?" if given.thread is None else given.thread.name
        log(Event.PYTHON_ERROR, level="error", error=f"thread {name} died", exc_info=given.exc_value)

    warnings.showwarning = warned
    sys.unraisablehook = ignored
    threading.excepthook = thread_died


# -- the tables a server prints when its models have been loaded (contract, repository.md section 12)


def startup_text(
    models: Sequence[IndexEntry],
    options: Sequence[tuple[str, str]],
    on_demand: Collection[ModelKey] = (),
) -> str:
    """Return the models with their states, and the options, as Triton has them.

    Models that were never asked to load are counted, not listed: there may be thousands.
    """
    attempted = [entry for entry in models if entry.state or entry.reason]
    rows = [(entry.name, str(entry.version or "-"), _status(entry, on_demand)) for entry in attempted]
    rest = _not_loaded(len(models) - len(attempted))
    table = aligned([("Model", "Version", "Status"), *rows])
    return f"{table}{rest}\n{aligned([('Option', 'Value'), *options])}"


def _status(entry: IndexEntry, on_demand: Collection[ModelKey]) -> str:
    state = standing(entry, on_demand)
    if state == ON_DEMAND:
        return f"{ON_DEMAND}: loaded by its first request"
    # What follows its first line, such as the frames of a model's exception, is in the log.
    return f"{state}: {first_line(entry.reason)}" if entry.reason and state != READY else state


def _not_loaded(count: int) -> str:
    if not count:
        return ""
    return f"{count} more {'model is' if count == 1 else 'models are'} in the repositories, not loaded\n"
