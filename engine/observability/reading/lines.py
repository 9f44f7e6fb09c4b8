"""From a line of text to a line of the log, or to nothing if it is none.

A line of the server's log is one JSON object with `timestamp`, `level` and `event`, as `--log-format=json`
writes it, or a line of one of the other formats (`engine.observability.reading.formats`), which tells the same with some
loss. Anything between the lines (a library's warning, a core dump's last words, a line that a full disk cut
in two) is no line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from engine.observability.reading.formats import parse_text

_HEAD: Final = frozenset({"timestamp", "level", "event"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """One line of the log."""

    time: float
    """When the server said it: seconds since 1970, by the server's wall clock, to the microsecond."""
    level: str
    """`debug`, `info`, `warning`, `error` or `critical`."""
    event: str
    """The name in `actors.values.events`, or what a newer server calls it."""
    keys: Mapping[str, Any]
    """Everything else that the line says, as JSON has it."""
    source: str = ""
    """The file that it was read from."""
    number: int = 0
    """Its place in that file, from 1; 0 if a live file was joined in the middle."""

    def matches(self, event: str, keys: Mapping[str, object]) -> bool:
        """Whether it tells of `event`, with at least these keys and values; every line has a `level`."""
        given = {"level": self.level, **self.keys}
        return self.event == event and all(
            name in given and given[name] == value for name, value in keys.items()
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as it was written, the time stamp first."""
        return {"timestamp": stamp(self.time), "level": self.level, "event": self.event, **self.keys}


def parse(
    text: str | bytes, *, source: str = "", number: int = 0, now: datetime | None = None
) -> Line | None:
    """Return the line that `text` is, or None if it is not a line of the log.

    `now` is the time by which a line of another format than JSON gets its year or day; by default it is the
    present.
    """
    if text[:1] not in ("{", b"{"):
        return _parse_text(text, source=source, number=number, now=now or datetime.now(UTC))
    try:
        given = json.loads(text)
        time = _seconds(datetime.fromisoformat(given["timestamp"]))
        level, event = given["level"], given["event"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not (isinstance(level, str) and isinstance(event, str) and time >= 0):
        return None
    return Line(
        time=time,
        level=level,
        event=event,
        keys={name: value for name, value in given.items() if name not in _HEAD},
        source=source,
        number=number,
    )


def _parse_text(text: str | bytes, *, source: str, number: int, now: datetime) -> Line | None:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    told = parse_text(words, now=now)
    if told is None or told.moment.timestamp() < 0:
        return None
    return Line(
        time=told.moment.timestamp(),
        level=told.level,
        event=told.event,
        keys=told.keys,
        source=source,
        number=number,
    )


def stamp(time: float) -> str:
    """Return seconds since 1970 as the server writes them: `2026-11-21T01:57:53.951989Z`."""
    return f"{datetime.fromtimestamp(round(time * 1e6) / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _seconds(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
