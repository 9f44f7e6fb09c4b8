"""From the lines that people read back to events and keys, as far as the lines tell them.

These are Triton's two forms and the console's. They say less than JSON does: the default form has no year and
the console's no date. The latest date that is not ahead of now is taken for it. A number and a text that
looks like one are the same. Each scan is linear in the line.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from actors.values.events import Event

_LEVELS: Final = {"I": "info", "W": "warning", "E": "error"}
_AHEAD: Final = timedelta(days=1)  # by which a clock elsewhere may be fast
_YEARS_BACK: Final = 9  # of which one has a 29th of February

_DEFAULT: Final = re.compile(
    r"(?P<letter>[IWE])(?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d\.\d{6}) \d+ (?P<source>[^\]\s]+)\] (?P<said>.*)",
    re.DOTALL,
)
_ISO: Final = re.compile(
    r"(?P<moment>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z (?P<letter>[IWE]) \d+ (?P<source>[^\]\s]+)\] (?P<said>.*)",
    re.DOTALL,
)
_CONSOLE: Final = re.compile(
    r"(?P<clock>\d\d:\d\d:\d\d\.\d{3}) \[(?P<level>debug|info|warning|error|critical) *\] (?P<said>.*)",
    re.DOTALL,
)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
# The console writes lists as they are; how far one is looked for is bounded.
_PAIR: Final = re.compile(
    r"\s*(?P<key>[A-Za-z_]\w*)=(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\[{(].{0,4000}?[\]})](?=\s+\w+=|\s*$)"
    r"|[^\s'\"]\S*|(?=\s|$))"
)
_WORD: Final = re.compile(r"[a-z_]+")
_NUMBER: Final = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")
_EVENTS: Final = frozenset(event.value for event in Event)
_TEXTS: Final = frozenset(
    {"request_id", "parent_id", "model", "instance", "actor", "reason", "message", "detail"}
)

# What `engine.observability.logs` says in Triton's words.
_SENTENCES: Final = (
    (Event.MODEL_READY, re.compile(r"successfully loaded '(?P<model>[^']*)'")),
    (
        Event.MODEL_UNAVAILABLE,
        re.compile(r"successfully unloaded '(?P<model>[^']*)' version (?P<version>\d+)"),
    ),
    (Event.MODEL_LOADING, re.compile(r"loading: (?P<model>[^:\s]*):(?P<version>\d+)")),
    (Event.LISTENER_OPENED, re.compile(r"Started (?P<service>\w+(?: \w+)?) at (?P<address>\S+)")),
    (
        Event.SERVER_OPENED,
        re.compile(
            r"open: inference on (?P<inference>[^;]*); management on (?P<management>[^;]*);"
            r" metrics on (?P<metrics>[^;]*); credentials: (?P<credentials>[^;]*);"
            r" uploads: (?P<uploads>[^;]*); sandbox: (?P<sandbox>[^;]*); TLS: (?P<tls>[^;=]*?)(?= \w+=|$)"
        ),
    ),
)
_FAILED: Final = re.compile(r"\[request id: (?P<request_id>[^\]]*)\] Infer failed: ")


Told = tuple[datetime, str, str, Mapping[str, Any]]
"""What one line says: when, its level, its event and its keys."""


def _of_text(text: str | bytes, now: datetime) -> Told | None:
    """Return what a line in one of the forms for people says, or None. `now` gives the year or day."""
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    line = _COLOURS.sub("", words).rstrip("\r\n")
    try:
        if found := _DEFAULT.fullmatch(line):
            moment = _in_the_latest_year(found["month"], found["day"], found["clock"], now)
            return None if moment is None else _of_triton(found, moment)
        if found := _ISO.fullmatch(line):
            return _of_triton(found, datetime.fromisoformat(found["moment"]).replace(tzinfo=UTC))
        if found := _CONSOLE.fullmatch(line):
            level = found["level"]
            return _on_the_latest_day(found["clock"], now), level, *_event_of(found["said"], level)
    except ValueError:  # the 31st of February, 25 o'clock
        return None
    return None


def _of_triton(found: re.Match[str], moment: datetime) -> Told:
    said = found["said"]
    if said.startswith('"'):
        unescaped = json.loads(said)  # ValueError if it was cut in two
        said = unescaped if isinstance(unescaped, str) else said
    level = _LEVELS[found["letter"]]
    event, keys = _event_of(said, level)
    filename, _, number = found["source"].rpartition(":")
    if number.isdecimal():
        keys |= {"lineno": int(number), "filename": filename}
    return moment, level, event, keys


def _in_the_latest_year(month: str, day: str, clock: str, now: datetime) -> datetime | None:
    for year in range(now.year + 1, now.year - _YEARS_BACK, -1):
        try:
            moment = datetime.fromisoformat(f"{year}-{month}-{day}T{clock}+00:00")
        except ValueError:  # no leap year
            continue
        if moment <= now + _AHEAD:
            return moment
    return None


def _on_the_latest_day(clock: str, now: datetime) -> datetime:
    moment = datetime.fromisoformat(f"{now:%Y-%m-%d}T{clock}+00:00")
    return moment if moment <= now + timedelta(minutes=1) else moment - timedelta(days=1)


def _event_of(said: str, level: str) -> tuple[str, dict[str, Any]]:
    """Return the event and the keys that a message was made of."""
    said, _, exception = said.partition("\n")
    event, keys = _of_first_line(said, level)
    if exception:
        keys["exception"] = exception
    return event, keys


def _of_first_line(said: str, level: str) -> tuple[str, dict[str, Any]]:
    for event, sentence in _SENTENCES:
        if found := sentence.match(said):
            pairs = _pairs(said, found.end())
            if pairs is not None:
                named = {key: _value(key, value) for key, value in found.groupdict().items()}
                return event.value, {**named, **pairs}
    if found := _FAILED.match(said):
        message, keys = _sentence(said[found.end() :])
        return Event.REQUEST_FAILED.value, {"request_id": found["request_id"], "message": message, **keys}
    word = _WORD.match(said)
    if word and word[0] in _EVENTS:
        pairs = _pairs(said, word.end())
        return word[0], {"message": said[word.end() :].strip()} if pairs is None else pairs
    message, keys = _sentence(said)
    return _sayer(level, keys), {"error" if level == "error" else "warning": message, **keys}


def _sayer(level: str, keys: Mapping[str, Any]) -> str:
    """Return the event whose sentence is free text."""
    if "category" in keys:
        return Event.PYTHON_WARNING.value
    if "model" in keys:
        return Event.MODEL_LOADING.value
    return Event.SERVER_FAILED.value if level == "error" else Event.SERVER_STARTING.value


def _sentence(said: str) -> tuple[str, dict[str, Any]]:
    """Return a sentence and the keys behind it, of which `model` or `category` is the first."""
    for key in (" model=", " category="):
        at = said.rfind(key)
        pairs = _pairs(said, at) if at >= 0 else None
        if pairs is not None:
            return said[:at], pairs
    return said, {}


def _pairs(said: str, at: int) -> dict[str, Any] | None:
    """Return the keys and values from `at` to the end; None if something else stands there."""
    keys: dict[str, Any] = {}
    while at < len(said):
        found = _PAIR.match(said, at)
        if found is None:
            return None if said[at:].strip() else keys
        keys[found["key"]] = _value(found["key"], found["value"])
        at = found.end()
    return keys


def _value(key: str, text: str) -> Any:
    quoted = text[:1] in {"'", '"'}
    if quoted:
        text = _literal(text, text)
    if key in _TEXTS or not isinstance(text, str):
        return text
    if quoted or text[:1] in {"[", "{", "("}:
        return _literal(text, text) if text[:1] in {"[", "{", "("} else text
    if text in {"True", "False", "None"} or _NUMBER.fullmatch(text):
        return _literal(text, text)
    return text


def _literal(text: str, otherwise: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return otherwise


# -- from a line of text to a line of the log, or to nothing if it is none
#
# A line of the server's log is one JSON object with `timestamp`, `level` and `event`, as `--log-format=json`
# writes it, or a line of one of the other formats, which tells the same with some loss. Anything between the
# lines (a library's warning, a core dump's last words, a line that a full disk cut in two) is no line.

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
    is_json = text[:1] in ("{", b"{")
    told = _of_json(text) if is_json else _of_text(text, now or datetime.now(UTC))
    if told is None or told[0].timestamp() < 0:
        return None
    moment, level, event, keys = told
    return Line(time=moment.timestamp(), level=level, event=event, keys=keys, source=source, number=number)


def _of_json(text: str | bytes) -> Told | None:
    try:
        given = json.loads(text)
        moment = datetime.fromisoformat(given["timestamp"])
        level, event = given["level"], given["event"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not (isinstance(level, str) and isinstance(event, str)):
        return None
    keys = {name: value for name, value in given.items() if name not in _HEAD}
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC), level, event, keys


def stamp(time: float) -> str:
    """Return seconds since 1970 as the server writes them: `2026-11-21T01:57:53.951989Z`."""
    return f"{datetime.fromtimestamp(round(time * 1e6) / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
