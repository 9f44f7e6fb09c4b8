"""Events to those that follow the stream, beside the log: the same records, with the same keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

from actors.values.events import LOGGED_ONLY, Event, Log, ToldEvent
from engine.observability.logs import traceback_text
from engine.observability.reading.selecting import model_in

_MOST_TEXT: Final = 32 * 1024
"""Bytes of one event's record. Longer texts in it are cut."""

_CUT_TO: Final = 2048
"""Characters that are left of a text, where a record is too long."""


class Teller(Protocol):
    """What takes the events of the stream."""

    def tell(self, told: ToldEvent) -> None:
        """Take an event. From any thread; never waits, never raises."""


class StreamedLog:
    """Events to `log`, and to the stream as well unless they are the log's alone (`LOGGED_ONLY`).

    The stream has each event from level info on, whatever the log leaves out, and `debug` as far as the
    verbosity of the log goes. `wall_ms` tells the time in milliseconds since the epoch.
    """

    def __init__(
        self, log: Log, stream: Teller, *, wall_ms: Callable[[], int], verbose: Callable[[], int]
    ) -> None:
        self._log = log
        self._stream = stream
        self._wall_ms = wall_ms
        self._verbose = verbose

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Tell one event."""
        self._log(event, level=level, **keys)
        depth = keys.pop("verbose", 1)
        if event in LOGGED_ONLY or (level == "debug" and self._verbose() < int(str(depth))):
            return
        text = record(event, level, keys, self._wall_ms())
        self._stream.tell(ToldEvent(event=event.value, level=level, model=model_in(keys), text=text))


def record(event: Event, level: str, keys: Mapping[str, object], wall_ms: int) -> bytes:
    """Return an event as a JSON object, with the names and values that the log's JSON has.

    One that is too long has its longest texts cut, and says so.
    """
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    head = {"timestamp": f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z", "level": level, "event": event.value}
    said = dict(keys)
    trace = traceback_text(said.pop("exc_info", None), whole=False)
    if trace:
        said["exception"] = trace
    text = json.dumps(head | said, default=repr).encode()
    if len(text) <= _MOST_TEXT:
        return text
    cut = {name: _cut(value) for name, value in said.items()}
    text = json.dumps(head | cut | {"cut": True}).encode()
    return text if len(text) <= _MOST_TEXT else json.dumps(head | {"cut": True}).encode()


def _cut(value: object) -> object:
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return value if len(text) <= _CUT_TO else f"{text[:_CUT_TO]}…"
