"""What is logged, its form, and logging that fails without an effect.

The contract is observability.md section 4.
"""

import io
import json
import os
import re
import threading

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from actors.supervision.events import (
    ChildExited,
    ChildKillForced,
    ChildRestarted,
    ChildStarted,
    ChildStartFailed,
    Context,
    RestartsExhausted,
)
from actors.supervision.restart import Crashed, FailedToStart, Normal, Stopped
from actors.supervision.spec import ChildSpec
from actors.values.errors import InvalidArgument
from actors.values.events import Event
from actors.values.requests import InferRequest, InferResponse
from engine.observability.events import EventLog, supervision_observer
from engine.observability.logs import LogSink, configure_logging, open_sink, sentence
from engine.observability.requests import request_hook
from engine.settings.reporting import LogSettings
from engine.settings.settings import SettingsError
from tests.support.ports import NoPort

NOON = 1_738_326_896_123_456_789  # 2025-01-31T12:34:56.123456789Z


@pytest.fixture(autouse=True)
def _structlog():
    yield
    structlog.reset_defaults()


class Console:
    """What a process's stdout and stderr hold after `logged`."""

    def __init__(self):
        self.out = io.StringIO()
        self.err = io.StringIO()

    def logged(self, tell, *, environ=None, **settings):
        with LogSink(self.out, self.err) as sink:
            configure_logging(LogSettings(**settings), sink, wall_ns=lambda: NOON, environ=environ or {})
            tell(structlog.get_logger())
        return self.out.getvalue() + self.err.getvalue()


@pytest.fixture
def console():
    return Console()


# -- formats


@pytest.mark.parametrize(
    ("settings", "level", "event", "head", "words"),
    [
        ({}, "info", Event.MODEL_READY, r"I0131 12:34:56\.123456", "successfully loaded 'add'"),
        (
            {"format": "ISO8601"},  # whole seconds, and the letter behind them
            "error",
            Event.SERVER_STOPPED,
            "2025-01-31T12:34:56Z E",
            "server_stopped model=add",
        ),
    ],
)
def test_the_default_formats_are_tritons(console, settings, level, event, head, words):
    line = console.logged(lambda log: getattr(log, level)(event, model="add"), **settings)
    assert re.fullmatch(rf"{head} {os.getpid()} test_logs\.py:\d+\] \"{words}\"\n", line)


def test_json_is_an_object_a_line(console):
    line = console.logged(
        lambda log: log.warning(Event.MODEL_DEGRADED, model="add", version=1, odd={1, 2}), format="json"
    )
    record = json.loads(line)
    assert re.fullmatch(r"test_logs\.py", record.pop("filename"))
    assert isinstance(record.pop("lineno"), int)
    assert record == {
        "timestamp": "2025-01-31T12:34:56.123456Z",
        "level": "warning",
        "event": "model_degraded",
        "model": "add",
        "version": 1,
        "odd": "{1, 2}",
    }


def test_the_console_format_is_for_reading(console):
    line = console.logged(lambda log: log.info(Event.MODEL_READY, model="add"), format="console")
    assert "12:34:56.123" in line
    assert "model_ready" in line
    assert "model=add" in line


def test_a_message_is_escaped_like_a_json_string(console):
    line = console.logged(lambda log: log.info(Event.WORKER_OUTPUT, line='a "b"\nc'))
    assert json.loads(line.partition("] ")[2]) == "worker_output line='a \"b\"\\nc'"
    assert line.count("\n") == 1


def test_escaping_can_be_turned_off(console):
    environ = {"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}
    line = console.logged(lambda log: log.info(Event.SERVER_READY), environ=environ)
    assert line.endswith("] server_ready\n")


@pytest.mark.parametrize(
    ("event", "keys", "words"),
    [
        (Event.MODEL_LOADING, {"model": "add", "version": 1}, "loading: add:1"),
        (Event.MODEL_READY, {"model": "add", "version": 1}, "successfully loaded 'add' version=1"),
        (
            Event.MODEL_UNAVAILABLE,
            {"model": "add", "version": 1, "reason": "unloaded"},
            "successfully unloaded 'add' version 1 reason=unloaded",
        ),
        (
            Event.LISTENER_OPENED,
            {"service": "HTTPService", "address": "0.0.0.0:8000"},
            "Started HTTPService at 0.0.0.0:8000",
        ),
        (
            Event.REQUEST_FAILED,
            {"request_id": "", "message": "no"},
            "[request id: <id_unknown>] Infer failed: no",
        ),
        (Event.MODEL_LOADING, {"model": "add"}, "model_loading model=add"),
        (
            Event.MODEL_LOADING,
            {"model": "add", "error": "add/config.pbtxt:3:1: error: unknown field 'max_batch_sise' {"},
            "add/config.pbtxt:3:1: error: unknown field 'max_batch_sise' { model=add",
        ),
        (
            Event.SERVER_STARTING,
            {"warning": "--grpc-port has no effect"},
            "--grpc-port has no effect",
        ),
        (
            Event.SERVER_READY,
            {"models": 2, "note": "a b", "none": ""},
            "server_ready models=2 note='a b' none=''",
        ),
    ],
)
def test_events_are_told_in_tritons_words_where_it_has_any(event, keys, words):
    assert sentence(event.value, keys) == words


@pytest.mark.parametrize("form", ["default", "ISO8601", "json", "console"])
def test_every_format_shows_a_traceback(console, form):
    def crash(log):
        try:
            raise ValueError("on cue")
        except ValueError:
            log.exception(Event.CHILD_EXITED)

    line = console.logged(crash, format=form)
    assert "Traceback" in line
    assert "ValueError: on cue" in line
    assert form == "console" or line.count("\n") == 1


HOSTILE = (
    'x\n{"event": "server_stopped"}\r\x1b[2J\x1b]0;t\x07\x9b31m\u2028\u202eI0131 12:00:00.0 1 a.py:1] ok\x7f'
)


@pytest.mark.parametrize("form", ["default", "ISO8601", "json", "console"])
@pytest.mark.parametrize("event", [Event.REQUEST_FAILED, Event.ACCESS_REFUSED, Event.MODEL_READY])
def test_no_text_of_a_client_or_model_forges_a_line_or_obeys_a_terminal(console, form, event):
    keys = {"request_id": HOSTILE, "message": HOSTILE, "model": HOSTILE, "identity": HOSTILE, "version": 1}
    written = console.logged(lambda log: log.warning(event, **keys), format=form)
    line = written.removesuffix("\n")
    assert line.isprintable(), [each for each in line if not each.isprintable()]
    assert "31m" in line


# -- switches and destinations


def test_information_goes_to_stdout_and_trouble_to_stderr(console):
    def tell(log):
        log.info(Event.SERVER_READY)
        log.warning(Event.MODEL_DEGRADED)
        log.error(Event.MODEL_UNAVAILABLE)

    console.logged(tell)
    assert "server_ready" in console.out.getvalue()
    assert console.out.getvalue().count("\n") == 1
    assert [line[0] for line in console.err.getvalue().splitlines()] == ["W", "E"]


def every_level(log):
    log.debug(Event.REQUEST_FAILED, request_id="", message="deep")
    log.debug(Event.CHILD_STARTED, verbose=2)
    log.info(Event.SERVER_READY)
    log.warning(Event.MODEL_DEGRADED)
    log.error(Event.MODEL_UNAVAILABLE)


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, {"server_ready", "model_degraded", "model_unavailable"}),
        ({"info": False}, {"model_degraded", "model_unavailable"}),
        ({"warning": False}, {"server_ready", "model_unavailable"}),
        ({"error": False}, {"server_ready", "model_degraded"}),
        ({"info": False, "warning": False, "error": False}, set()),
        ({"verbose": 1}, {"request_failed", "server_ready", "model_degraded", "model_unavailable"}),
        ({"verbose": 1, "info": False}, {"request_failed", "model_degraded", "model_unavailable"}),
        (
            {"verbose": 2},
            {"request_failed", "child_started", "server_ready", "model_degraded", "model_unavailable"},
        ),
    ],
)
def test_each_level_has_a_switch_of_its_own(console, settings, seen):
    text = console.logged(every_level, format="json", **settings)
    assert {json.loads(line)["event"] for line in text.splitlines()} == seen


def test_a_log_file_takes_everything_and_is_appended_to(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("before\n")
    settings = LogSettings(file=str(path))
    with open_sink(settings) as sink:
        configure_logging(settings, sink)
        structlog.get_logger().info(Event.SERVER_READY)
        structlog.get_logger().error(Event.MODEL_UNAVAILABLE, model="\udcff")
    lines = path.read_text().splitlines()
    assert lines[0] == "before"
    assert [line[0] for line in lines[1:]] == ["I", "E"]
    assert "\\udcff" in lines[2]


def test_a_log_file_that_cannot_be_opened_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="Failed to open log file: No such file or directory"):
        open_sink(LogSettings(file=str(tmp_path / "no" / "where.log")))


# -- the closed list


@pytest.mark.parametrize("event", ["server_ready", "model_exploded"])
def test_an_event_may_be_spelt_as_text_and_an_unknown_one_is_logged_rather_than_lost(console, event):
    assert event in console.logged(lambda log: log.info(event))


# -- a sink that fails


class Failing(io.StringIO):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(28, "No space left"), ValueError("closed file")]
)
def test_a_sink_that_fails_costs_lines_and_nothing_else(error):
    out = Failing(error)
    with LogSink(out, out) as sink:
        sink.write("lost", severe=False)
    assert sink.dropped == 1


def test_what_was_lost_is_told_once_writing_works_again():
    out = Failing(OSError(28, "No space left"))
    err = io.StringIO()
    sink = LogSink(out, err)
    sink.write("lost", severe=False)
    sink.write("told", severe=True)
    sink.close()
    assert err.getvalue() == "(1 log lines were lost)\ntold\n"


class Filling(io.StringIO):
    """A disk with room for part of the first write only, and for every write after that."""

    def __init__(self, room):
        super().__init__()
        self.room = room
        self.full = threading.Event()

    def write(self, text):
        if not self.full.is_set():
            super().write(text[: self.room])
            self.full.set()
            raise OSError(28, "No space left")
        return super().write(text)


def test_what_follows_a_line_that_was_written_in_part_begins_a_line_of_its_own():
    out = Filling(room=4)
    sink = LogSink(out, out)
    sink.write("torn apart", severe=False)
    assert out.full.wait(10)
    sink.write("whole", severe=False)
    sink.close()
    assert out.getvalue() == "torn\n(1 log lines were lost)\nwhole\n"


class Stalled(io.StringIO):
    """A pipe whose reader is busy elsewhere."""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()
        self.entered = threading.Event()

    def write(self, text):
        self.entered.set()
        assert self.go_on.wait(10)
        return super().write(text)


def test_a_stalled_reader_stalls_nobody_and_the_queue_is_bounded():
    out = Stalled()
    sink = LogSink(out, out, most_waiting=10)
    sink.write("first", severe=False)
    assert out.entered.wait(10)
    for number in range(25):
        sink.write(str(number), severe=False)
    assert sink.dropped == 15
    out.go_on.set()
    sink.close()
    assert out.getvalue().startswith("first\n(15 log lines were lost)\n0\n1\n")
    assert out.getvalue().endswith("9\n")


def test_closing_gives_up_on_a_stalled_reader():
    out = Stalled()
    sink = LogSink(out, out)
    sink.write("first", severe=False)
    assert out.entered.wait(10)
    sink.close(timeout=0.01)
    out.go_on.set()
    sink.close()


def test_lines_keep_their_order():
    out = io.StringIO()
    with LogSink(out, out) as sink:
        for number in range(3000):
            sink.write(str(number), severe=False)
    assert out.getvalue() == "".join(f"{number}\n" for number in range(3000))


# -- supervision


async def nothing(_):
    return None


SPEC = ChildSpec("instance", nothing)
CRASH = ValueError("on cue")


def observed(event):
    with capture_logs() as lines:
        supervision_observer(EventLog(), lambda: 2)(event)
    (line,) = lines
    return line


def test_a_crash_is_logged_with_its_traceback():
    line = observed(ChildExited("models", "models/add", SPEC, Crashed(CRASH), Context.CHILD_TERMINATED))
    assert line["event"] is Event.CHILD_EXITED
    assert (line["log_level"], line["actor"], line["context"]) == ("error", "models/add", "child_terminated")
    assert line["exc_info"] is CRASH


@pytest.mark.parametrize(
    ("event", "name", "level"),
    [
        (ChildStarted("s", "s/a", SPEC), Event.CHILD_STARTED, "debug"),
        (ChildRestarted("s", "s/a", SPEC, 3), Event.CHILD_RESTARTED, "info"),
        (ChildExited("s", "s/a", SPEC, Stopped(), None), Event.CHILD_EXITED, "debug"),
        (ChildExited("s", "s/a", SPEC, Normal(), Context.CHILD_TERMINATED), Event.CHILD_EXITED, "warning"),
        (ChildKillForced("s", "s/a", SPEC, 5.0), Event.CHILD_KILL_FORCED, "warning"),
        (
            RestartsExhausted("s", "s/a", SPEC, Crashed(CRASH), Context.SHUTDOWN),
            Event.RESTARTS_EXHAUSTED,
            "error",
        ),
        (RestartsExhausted("s", "s/a", SPEC, Crashed(CRASH), None), Event.RESTARTS_EXHAUSTED, "error"),
        (ChildStartFailed("s", "s/a", SPEC, FailedToStart(CRASH)), Event.CHILD_START_FAILED, "error"),
    ],
)
def test_each_supervision_event_has_its_level(event, name, level):
    line = observed(event)
    assert (line["event"], line["log_level"], line["actor"]) == (name, level, "s/a")
    assert line.get("exc_info") is (CRASH if isinstance(event, ChildStartFailed) else None)


def test_connections_coming_and_going_are_seen_at_the_second_verbose_level_only(console):
    def tell(verbose):
        return lambda _: supervision_observer(EventLog(), lambda: verbose)(ChildStarted("s", "s/a", SPEC))

    assert console.logged(tell(1), verbose=1) == ""
    assert "child_started" in console.logged(tell(2), verbose=2)


# -- requests


def request(**options):
    return InferRequest(model_name="add", reply=NoPort(), accepted_at=0.0, **options)


async def test_a_request_has_one_canonical_line_with_its_times_and_outcome(autojump_clock):
    await trio.sleep(0.003_000_999)
    with capture_logs() as lines:
        answer = InferResponse(model_name="add", model_version=2, timing=(1_500, 20_000, 2_000_000, 3_000))
        request_hook("http")(request(id="r1"), answer, "a client")
    assert lines == [
        {
            "event": Event.REQUEST_COMPLETED,
            "log_level": "info",
            "request_id": "r1",
            "model": "add",
            "version": 2,
            "rows": 1,
            "outcome": "completed",
            "queue_us": 1,
            "compute_input_us": 20,
            "compute_infer_us": 2000,
            "compute_output_us": 3,
            "total_us": 3000,
            "protocol": "http",
            "peer": "a client",
        }
    ]


async def test_a_retried_request_of_a_sequence_says_so():
    retried = request(correlation_id=7)
    retried.attempts = 2
    with capture_logs() as lines:
        request_hook()(retried, InvalidArgument("no"), "")
    assert (lines[0]["attempts"], lines[0]["correlation_id"], lines[0]["message"]) == (2, 7, "no")


def test_failures_are_told_alone_at_the_first_verbose_level(console):
    def tell(log):
        finished = request_hook("http", failures_only=True)
        finished(request(id="good"), InferResponse(model_name="add", model_version=1), "")
        finished(request(id="bad"), InvalidArgument("no"), "")

    assert console.logged(tell) == ""
    line = console.logged(tell, verbose=1)
    assert line.count("\n") == 1
    assert "[request id: bad] Infer failed: no model=add" in line
