"""What the server writes in each format is read back: the same events, with the same keys."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from actors.values.events import Event
from engine.observability.logs import LogSink, configure_logging
from engine.observability.reading.formats import parse
from engine.settings.reporting import LogSettings

SAID_AT = 1_738_326_896_123_456_789  # 2025-01-31T12:34:56.123456789Z
NOW = datetime(2025, 1, 31, 13, tzinfo=UTC)
PLACE = {"filename", "lineno"}

OPENED = {
    "inference": "[::1]:8000 and 0.0.0.0:8001",
    "management": "127.0.0.1:8003",
    "metrics": "none",
    "credentials": "auth.toml",
    "uploads": "off",
    "sandbox": "guard by default",
    "tls": "http and grpc",
}
TOLD = [
    ("info", Event.MODEL_LOADING, {"model": "add", "version": 1, "attempt": 2}),
    ("info", Event.MODEL_READY, {"model": "add sub", "version": 1, "load_seconds": 0.266}),
    ("info", Event.MODEL_UNAVAILABLE, {"model": "add", "version": 3, "reason": "unloaded"}),
    ("info", Event.LISTENER_OPENED, {"service": "HTTPService", "address": "127.0.0.1:8000"}),
    ("info", Event.LISTENER_OPENED, {"service": "Metrics Service", "address": "[::1]:8002"}),
    ("info", Event.SERVER_OPENED, OPENED),
    ("info", Event.SERVER_OPENED, {**OPENED, "platforms": "[::]:8080", "audit_log": "/var/log/a b"}),
    ("info", Event.SERVER_STARTING, {"warning": "the filter of system calls: no such thing"}),
    (
        "warning",
        Event.WORKER_EXITED,
        {"actor": "models/m/1/instances/0", "pid": 7, "reason": "signal_9", "detail": 'it\'s "bad"'},
    ),
    (
        "warning",
        Event.READINESS_CHANGED,
        {"ready": False, "failed": ["model m: its 'own' check says no"], "parts_failed": 1},
    ),
    (
        "warning",
        Event.SERVER_STARTING,
        {"warning": "--http-thread-count=4 has no effect: one event loop serves all"},
    ),
    (
        "error",
        Event.MODEL_LOADING,
        {"model": "m", "error": "m/config.pbtxt:3:1: error: unknown field 'x=1' {"},
    ),
    (
        "error",
        Event.MODEL_UNAVAILABLE,
        {"model": "m", "version": 1, "reason": "Internal: ValueError: no\n\nAt:\n  /m/model.py(3): f\n"},
    ),
    (
        "info",
        Event.REQUEST_COMPLETED,
        {"request_id": "17", "model": "m", "queue_us": 586469, "outcome": "completed", "note": ""},
    ),
    ("info", Event.REQUEST_FAILED, {"request_id": "r 7", "message": "no such model=x, really", "model": "m"}),
]


def written(form, level, event, keys, **options):
    out = io.StringIO()
    with LogSink(out, out) as sink:
        configure_logging(LogSettings(format=form, **options), sink, wall_ns=lambda: SAID_AT, environ={})
        getattr(structlog.get_logger(), level)(event, **keys)
        structlog.reset_defaults()
    return out.getvalue()


@pytest.mark.parametrize("form", ["json", "default", "ISO8601", "console"])
@pytest.mark.parametrize(("level", "event", "keys"), TOLD)
def test_what_is_written_is_read_back(form, level, event, keys):
    line: Any = parse(written(form, level, event, keys), now=NOW)
    assert (line.level, line.event) == (level, event.value)
    assert {key: value for key, value in line.keys.items() if key not in PLACE} == keys
    exact = {"json": 0.123456, "default": 0.123456, "console": 0.123}
    assert line.time == pytest.approx(1_738_326_896 + exact.get(form, 0), abs=1e-6)


def test_a_traceback_is_told_apart_from_the_event(caplog):
    try:
        raise ValueError("no")
    except ValueError as error:
        text = written("default", "error", Event.CHILD_EXITED, {"actor": "models", "exc_info": error})
    line: Any = parse(text, now=NOW)
    assert (line.event, line.keys["actor"]) == ("child_exited", "models")
    assert line.keys["exception"].endswith("ValueError: no")


@pytest.mark.parametrize(
    ("now", "year"),
    [
        (datetime(2025, 1, 31, 13, tzinfo=UTC), 2025),
        (datetime(2025, 1, 30, 13, tzinfo=UTC), 2025),  # a clock that is fast
        (datetime(2025, 1, 1, tzinfo=UTC), 2024),
        (datetime(2026, 1, 2, tzinfo=UTC), 2025),
    ],
)
def test_a_line_without_a_year_is_of_the_latest_that_is_not_ahead(now, year):
    told: Any = parse('I0131 12:34:56.123456 7 a.py:1] "server_ready models=2"', now=now)
    assert datetime.fromtimestamp(told.time, UTC).year == year
    assert told.keys == {"models": 2, "filename": "a.py", "lineno": 1}


def test_a_leap_day_is_of_a_leap_year():
    told: Any = parse('I0229 00:00:00.000000 7 a.py:1] "server_ready"', now=NOW)
    assert datetime.fromtimestamp(told.time, UTC).year == 2024


def test_lines_of_the_console_after_midnight_are_yesterdays():
    told: Any = parse(
        "23:59:59.500 [info     ] server_ready  models=2", now=datetime(2025, 2, 1, 0, 5, tzinfo=UTC)
    )
    assert told.time == datetime(2025, 1, 31, 23, 59, 59, 500_000, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Model   Version  Status",
        "double  1        READY",
        "I9931 12:34:56.123456 7 a.py:1] server_ready",
        'I0131 12:34:56.123456 7 a.py:1] "server_re',
        "25:34:56.123 [info     ] server_ready",
    ],
)
def test_what_is_no_line_is_none(text):
    assert parse(text, now=NOW) is None


@given(st.text())
def test_any_words_are_read_or_passed_over(words):
    parse(words, now=NOW)
    line: Any = parse(f"I0131 12:34:56.123456 7 a.py:1] {words}", now=NOW)
    assert line is None or line.level == "info"
