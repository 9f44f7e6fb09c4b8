"""Logging that changes while the server runs: its settings, and the file that others rotate."""

import io
import os

import pytest
import structlog

from actors.values.events import Event
from actors.values.interfaces import LogState
from engine.observability.announcing import Announcer
from engine.observability.log_file import LogFile
from engine.observability.logs import LogSink, configure_logging, open_sink
from engine.observability.running_logs import RunningLogs
from engine.server.models import recorder
from engine.server.ports import endings
from engine.settings.reporting import LogSettings
from tests.support.logged import Logged


@pytest.fixture(autouse=True)
def _structlog():
    yield
    structlog.reset_defaults()


def test_the_start_is_the_first_state():
    logs = RunningLogs(LogSettings(verbose=1, format="json", file="server.log", warning=False))
    assert logs.describe() == LogState(file="server.log", warning=False, verbose_level=1, format="json")
    assert logs.formats == ("default", "ISO8601", "json", "console")


def test_those_that_follow_are_told_at_once_and_after_each_change():
    logs, levels = RunningLogs(LogSettings()), []
    logs.follow(lambda settings: levels.append(settings.verbose))
    logs.change(LogState(verbose_level=2))
    logs.change(LogState(verbose_level=2))
    logs.change(LogState())
    assert levels == [0, 2, 0]


def test_the_file_and_what_is_logged_of_requests_stay_as_they_were():
    logs = RunningLogs(LogSettings(file="server.log", requests=True))
    logs.change(LogState(file="other.log", verbose_level=1))
    assert (logs.settings.file, logs.settings.requests, logs.settings.verbose) == ("server.log", True, 1)


def test_a_change_is_told_before_it_can_silence_the_line():
    log, order = Logged(), []
    logs = RunningLogs(LogSettings(), lambda settings: order.append(len(log)), log)
    logs.change(LogState(info=False, format="ISO8601"))
    assert order == [1]
    [told] = log.of(Event.LOG_SETTINGS_CHANGED)
    assert (told["info"], told["format"]) == ("True to False", "default to ISO8601")


def test_another_log_may_be_told_of_changes_from_some_time_on():
    first, second = Logged(), Logged()
    logs = RunningLogs(LogSettings(), log=first)
    logs.change(LogState(verbose_level=1))
    logs.tell(second)
    logs.change(LogState(verbose_level=2))
    assert [each["verbose_level"] for each in first.of(Event.LOG_SETTINGS_CHANGED)] == ["0 to 1"]
    assert [each["verbose_level"] for each in second.of(Event.LOG_SETTINGS_CHANGED)] == ["1 to 2"]


def test_lines_follow_the_levels_and_the_format():
    out = io.StringIO()
    with LogSink(out, out) as sink:
        logs = RunningLogs(
            LogSettings(), lambda settings: configure_logging(settings, sink, wall_ns=lambda: 0, environ={})
        )
        configure_logging(LogSettings(), sink, wall_ns=lambda: 0, environ={})
        log = structlog.get_logger()
        log.debug(Event.SERVER_READY, number=1)
        logs.change(LogState(verbose_level=1))
        log.debug(Event.SERVER_READY, number=2)
        log.debug(Event.SERVER_READY, verbose=2, number=3)
        logs.change(LogState(info=False, format="json"))
        log.info(Event.SERVER_READY, number=4)
        log.warning(Event.SERVER_READY, number=5)
        logs.change(LogState(info=False, warning=False, error=False, format="ISO8601"))
        log.error(Event.SERVER_READY, number=6)
    first, second = out.getvalue().splitlines()
    assert "number=2" in first
    assert '"number": 5' in second


# -- the file


def appended(path, *lines):
    file = LogFile(str(path), "kept: {}".format)
    for line in lines:
        file.write(line)
        file.flush()
    return file


def test_lines_go_to_the_file_that_has_the_name(tmp_path):
    path, moved = tmp_path / "server.log", tmp_path / "server.log.1"
    file = appended(path, "1\n")
    path.rename(moved)
    file.write("2\n")
    file.flush()
    assert (moved.read_text(), path.read_text()) == ("1\n", "2\n")
    path.rename(moved)
    path.write_text("made by logrotate\n")
    file.write("3\n")
    file.close()
    assert (moved.read_text(), path.read_text()) == ("2\n", "made by logrotate\n3\n")


def test_a_file_that_was_cut_goes_on_at_its_beginning(tmp_path):
    path = tmp_path / "server.log"
    file = appended(path, "1\n")
    os.truncate(path, 0)
    file.write("2\n")
    file.close()
    assert path.read_text() == "2\n"


def test_where_no_new_file_can_be_opened_the_old_one_goes_on_and_says_so_once(tmp_path):
    folder, moved = tmp_path / "logs", tmp_path / "moved"
    folder.mkdir()
    file = appended(folder / "server.log", "1\n")
    folder.rename(moved)
    for line in ("2\n", "3\n"):
        file.write(line)
    file.flush()
    assert (moved / "server.log").read_text() == "1\nkept: No such file or directory\n2\n3\n"
    folder.mkdir()
    file.write("4\n")
    file.close()
    assert (folder / "server.log").read_text() == "4\n"


def test_a_name_that_leads_to_no_regular_file_is_not_followed(tmp_path):
    path = tmp_path / "server.log"
    file = appended(path, "1\n")
    path.rename(tmp_path / "moved")
    os.mkfifo(path)
    file.write("2\n")
    file.close()
    assert (tmp_path / "moved").read_text().startswith("1\nkept: the name leads to something")


def test_a_pipe_is_written_to_whatever_has_its_name(tmp_path):
    reading, writing = os.pipe()
    link = tmp_path / "server.log"
    link.symlink_to(f"/proc/self/fd/{writing}")
    file = appended(link, "1\n")
    link.unlink()
    file.write("2\n")
    file.close()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "1\n2\n"
    assert not link.exists()


@pytest.mark.parametrize(("form", "start"), [("default", "(the log file was moved away"), ("json", "{")])
def test_a_sink_says_it_in_the_form_of_its_lines(tmp_path, form, start):
    folder, moved = tmp_path / "logs", tmp_path / "moved"
    folder.mkdir()
    with open_sink(LogSettings(file=str(folder / "server.log"), format=form)) as sink:
        folder.rename(moved)
        sink.write("line", severe=False)
    told, line = (moved / "server.log").read_text().splitlines()
    assert told.startswith(start)
    assert "No such file or directory" in told
    assert line == "line"


def test_stages_of_requests_are_told_while_requests_are_logged_and_the_log_is_verbose():
    logs = RunningLogs(LogSettings(requests=True))
    kept = recorder(logs, Logged())
    assert kept is not None
    levels = []
    for level in (0, 1, 2, 0):
        logs.change(LogState(verbose_level=level))
        levels.append(kept.stages)
    assert levels == [False, True, True, False]
    assert recorder(RunningLogs(LogSettings(verbose=2)), Logged()) is None


@pytest.mark.parametrize(("form", "event"), [("default", 0), ("json", 1)])
def test_a_failure_is_told_in_the_format_of_the_moment(form, event, capsys):
    log, out = Logged(), io.StringIO()
    logs = RunningLogs(LogSettings())
    with LogSink(out, out) as sink:
        announcer = Announcer(logs, sink, log)
        logs.change(LogState(format=form))
        announcer.failed("no such luck", hint="--luck=true has some")
    assert [failed["hint"] for failed in log.of(Event.SERVER_FAILED)] == ["--luck=true has some"] * event
    assert capsys.readouterr().err == "error: no such luck\n--luck=true has some\n" * (not event)


def test_requests_need_no_hook_while_nothing_is_logged_of_them():
    logs = RunningLogs(LogSettings())
    told = endings(logs, "http")
    assert told.hook is None
    logs.change(LogState(verbose_level=1))
    assert told.hook is not None
    logs.change(LogState())
    assert told.hook is None
