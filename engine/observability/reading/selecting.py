"""Which lines are wanted: by model, instance, event, level, time, request and words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final

from actors.values.events import LEVELS
from engine.observability.reading.formats import Line

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_TIME_OF_DAY: Final = re.compile(r"\d{2}:\d{2}(:\d{2}(\.\d+)?)?")
_IN_MODELS: Final = re.compile(r"models/([^/]+)/(\d+)(?:@\d+)?(?:/|$)")
_NAMING: Final = ("requests", "executing", "waiting", "refused")
"""Keys with lists of requests, as `actors.serving.records.named` calls them."""


class NoTime(ValueError):
    """A text says no point or span of time, with a message that says what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a line must be to be wanted.

    Empty fields ask for nothing; of several values in one field any will do.

    `models`, `events` and `instances` take the wildcards of a shell. Times are seconds since 1970.
    """

    models: Sequence[str] = ()
    instances: Sequence[str] = ()
    events: Sequence[str] = ()
    level: str = ""
    since: float = -math.inf
    until: float = math.inf
    request: str = ""
    grep: re.Pattern[str] | None = None

    def wants(self, line: Line) -> bool:
        """Whether `line` is one of those."""
        return (
            self.since <= line.time <= self.until
            and (not self.events or any(fnmatchcase(line.event, each) for each in self.events))
            and (not self.level or _rank(line.level) >= _rank(self.level))
            and (not self.models or any(fnmatchcase(model_of(line), each) for each in self.models))
            and (not self.instances or any(_is_of(line, each) for each in self.instances))
            and (not self.request or concerns(line, self.request))
            and (self.grep is None or self.grep.search(_text(line)) is not None)
        )


def model_of(line: Line) -> str:
    """Return the model that a line is about, by its key or by the actor's place in the tree; or empty."""
    return model_in(line.keys)


def model_in(keys: Mapping[str, object]) -> str:
    """Return the model that an event with these keys is about (`model_of`)."""
    model = keys.get("model")
    if isinstance(model, str):
        return model
    actor = keys.get("actor")
    found = _IN_MODELS.match(actor) if isinstance(actor, str) else None
    return found[1] if found else ""


def version_of(line: Line) -> int:
    """Return the version of the model that a line is about; 0 for none."""
    version = line.keys.get("version")
    if isinstance(version, int):
        return version
    found = _IN_MODELS.match(actor_of(line))
    return int(found[2]) if found else 0


def actor_of(line: Line) -> str:
    """Return the place in the supervision tree that a line is about; empty for none."""
    actor = line.keys.get("actor")
    return actor if isinstance(actor, str) else ""


def concerns(line: Line, request: str) -> bool:
    """Whether a line is about a request, or names it among others. `#12` is the server's number for one."""
    keys = line.keys
    if request.startswith("#") and request[1:].isdecimal():
        number = int(request[1:])
        if number in (keys.get("serial"), keys.get("parent")):
            return True
    elif request in (keys.get("request_id"), keys.get("parent_id")):
        return True
    lists = [keys.get(name) for name in _NAMING]
    if isinstance(keys.get("halves"), list):
        lists += keys["halves"]
    return any(isinstance(each, list) and request in each for each in lists)


def _is_of(line: Line, instance: str) -> bool:
    actor = actor_of(line) or line.keys.get("instance", "")
    named = line.keys.get("instance")
    return (
        named == instance
        or (isinstance(named, str) and fnmatchcase(named, instance))
        or (isinstance(actor, str) and (fnmatchcase(actor, instance) or actor.startswith(f"{instance}/")))
    )


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else LEVELS.index("info")


def _text(line: Line) -> str:
    return " ".join((line.event, *(f"{name}={value}" for name, value in line.keys.items())))


def span(text: str) -> float:
    """Return the seconds that `text` says: `250ms`, `10s`, `1h30m`, or a number of seconds. Raises NoTime."""
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise NoTime(f"expected a time such as 30s, 5m, 1h30m or 2d, got {text!r}")
    return seconds


def moment(text: str, *, now: float) -> float:
    """Return the seconds since 1970 that `text` says: a time of day, a date, both, or how long before `now`.

    `2026-11-21T01:57:53.9Z` and `2026-11-21 01:57` are absolute, in UTC unless they say otherwise, as the log
    is. `01:57` is of the day of `now`, in UTC. `5m` is five minutes before `now`. Raises NoTime.
    """
    whole = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}T{text}" if _TIME_OF_DAY.fullmatch(text) else text
    try:
        if "-" in whole:
            given = datetime.fromisoformat(whole)
            return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
        return now - span(text)
    except ValueError:
        raise NoTime(
            f"expected a time such as 2026-11-21T01:57:53Z, 01:57, or 5m for five minutes ago, got {text!r}"
        ) from None
