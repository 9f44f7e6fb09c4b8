"""Lines of the log as a server writes them and as they are read; times are seconds after a fixed noon."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from engine.observability.reading.formats import Line, parse, stamp

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


def text(event: str = "server_ready", at: float = 0.0, level: str = "info", **keys: object) -> str:
    """A line as text, without its end."""
    return json.dumps({"timestamp": stamp(NOON + at), "level": level, "event": event, **keys})


def line(event: str = "server_ready", at: float = 0.0, level: str = "info", **keys: object) -> Line:
    """The same, read."""
    made = parse(text(event, at, level, **keys))
    assert made is not None
    return made
