"""`tritium logs`: filters, reports, both forms, and errors for unreadable or unsuitable files."""

import gzip
import json
import os
import pty
import subprocess
import sys
from typing import TextIO, cast

import pytest

from engine.__main__ import main
from tests.engine.observability.reading.written import text

WHERE = "models/m/1/instances/0"


@pytest.fixture
def log(tmp_path):
    """A log with a death in it."""
    rows = [
        text("server_ready", 0, models=1),
        text("worker_started", 1, actor=WHERE, model="m", instance="m_0", pid=7),
        text("worker_ready", 2, actor=WHERE, model="m", instance="m_0", pid=7),
        text("request_completed", 3, model="m", request_id="r1", total_us=2_000, serial=1, queue_us=500),
        text(
            "worker_exited",
            4,
            "warning",
            actor=WHERE,
            model="m",
            instance="m_0",
            pid=7,
            reason="oom",
            executing=["r2"],
        ),
        text(
            "request_failed",
            4,
            model="m",
            request_id="r2",
            total_us=9_000,
            serial=2,
            code="UNAVAILABLE",
            message="no, it\ndied",
        ),
        text("worker_ready", 5.5, actor=WHERE, model="m", instance="m_0", pid=8),
        text("model_ready", 6, model="other", version=1, filename="x.py", lineno=7),
    ]
    path = tmp_path / "server.log"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def logs(capsys):
    """Run the command; return its status, and what it wrote to standard output and error."""

    def run(*words):
        status = main(["logs", *map(str, words)])
        written = capsys.readouterr()
        return status, written.out, written.err

    return run


def test_lines_are_shown_in_columns_without_the_place_in_the_source(logs, log):
    status, out, err = logs(log, "--model", "other")
    assert (status, err) == (0, "")
    assert out == "2026-11-21T12:00:06.000000Z  info    model_ready           model=other version=1\n"


def test_values_that_a_terminal_might_obey_or_a_reader_might_mistake_are_quoted(logs, log):
    _, out, _ = logs(log, "--event", "request_failed")
    assert out.count("\n") == 1
    assert r'message="no, it\ndied"' in out


def test_a_traceback_stands_below_its_line(logs, tmp_path):
    path = tmp_path / "log"
    path.write_text(
        text("child_exited", 0, "error", actor="telemetry", exception="Traceback:\n  boom\x1b[0m") + "\n"
    )
    _, out, _ = logs(path)
    assert out.splitlines()[1:] == ["    Traceback:", "      boom\\x1b[0m"]


def test_lines_as_json_are_what_was_written(logs, log):
    _, out, _ = logs(log, "--json")
    assert out == log.read_text()


@pytest.mark.parametrize(
    ("filters", "events"),
    [
        (["--level", "warning"], ["worker_exited"]),
        (["--event", "worker_*", "--until", "2026-11-21T12:00:02Z"], ["worker_started", "worker_ready"]),
        (["--request", "r2"], ["worker_exited", "request_failed"]),
        (["--request", "#1"], ["request_completed"]),
        (["--instance", "m_0", "--since", "2026-11-21 12:00:05"], ["worker_ready"]),
        (["--actor", "models/m", "--grep", "reason=(oom|hang)"], ["worker_exited"]),
        (["--model", "nobody"], []),
    ],
)
def test_filters_hold_together(logs, log, filters, events):
    _, out, _ = logs(log, "--json", *filters)
    assert [json.loads(row)["event"] for row in out.splitlines()] == events


def test_a_request_is_traced(logs, log):
    _, out, _ = logs(log, "--trace", "r2")
    assert "request r2, from 2026-11-21T12:00:03.991000Z" in out
    assert "worker_exited" in out
    assert "after 9.0 ms, UNAVAILABLE no, it" in out
    assert "~ has no line" in out


@pytest.mark.parametrize("words", [["--trace", "r9"], ["--slowest", "--model", "other"]])
def test_a_report_without_requests_says_how_to_have_them(logs, log, words):
    status, out, _ = logs(log, *words)
    assert status == 0
    assert "--log-requests=true" in out


def test_a_timeline_ends_with_the_outages(logs, log):
    _, out, _ = logs(log, "--timeline", "--model", "m")
    below = out.partition("outages\n")[2].splitlines()
    assert below[1].split() == ["2026-11-21T12:00:04.000000Z", "1.5s", WHERE, "7", "1", "oom"]
    document = json.loads(logs(log, "--timeline", "--json")[1])
    assert [each["seconds"] for each in document["outages"]] == [1.5]


def test_rates_are_by_model_and_interval(logs, log):
    _, out, _ = logs(log, "--rates", "--interval", "1m")
    assert out.splitlines()[2].split() == [
        "2026-11-21T12:00:00Z",
        "m",
        "2",
        "0.0",
        "1",
        "0",
        "2.0",
        "2.0",
        "1",
        "UNAVAILABLE",
    ]
    [first] = json.loads(logs(log, "--rates", "--json")[1])
    assert (first["requests"], first["rate"], first["errors"]) == (2, 0.2, {"UNAVAILABLE": 1})


def test_the_slowest_are_as_many_as_asked_for(logs, log):
    _, out, _ = logs(log, "--slowest", "--top", "1")
    assert [row.split()[1] for row in out.splitlines()[2:]] == ["r2"]
    assert json.loads(logs(log, "--slowest", "--json")[1])[1]["spent_ms"]["queue"] == 0.5


def test_a_summary_is_one_page(logs, log):
    _, out, _ = logs(log, "--summary")
    assert "8 lines over 6.0s" in out
    assert "deaths of workers" in out
    assert json.loads(logs(log, "--summary", "--json")[1])["models"]["m"]["requests"] == 2


def test_archives_and_files_are_read_together(logs, log, tmp_path):
    archive = tmp_path / "server.log.1.gz"
    archive.write_bytes(gzip.compress(f"{text('server_starting', -5)}\n".encode()))
    _, out, _ = logs(log, archive, "--json")
    assert json.loads(out.splitlines()[0])["event"] == "server_starting"


@pytest.mark.system
def test_standard_input_is_read(log):
    run = [sys.executable, "-m", "engine", "logs", "-", "--event", "server_ready", "--json"]
    done = subprocess.run(run, input=log.read_bytes(), capture_output=True, check=True)
    assert json.loads(done.stdout)["models"] == 1


@pytest.mark.system
def test_a_terminal_gets_colours():
    ours, theirs = pty.openpty()
    run = [sys.executable, "-m", "engine", "logs", "-"]
    environ = {**os.environ, "TERM": "xterm-256color"}
    rows = text("worker_exited", 0, "warning", reason="oom").encode()
    subprocess.run(run, input=rows, stdout=theirs, env=environ, check=True)
    os.close(theirs)
    assert b"\x1b[" in os.read(ours, 4096)
    os.close(ours)


@pytest.mark.system
@pytest.mark.slow
def test_following_shows_what_is_written_from_now_on(tmp_path):
    path = tmp_path / "log"
    path.write_text(text("server_starting") + "\n")
    run = [sys.executable, "-m", "engine", "logs", path, "--follow", "--since", "2026-11-21"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as following:
        said = cast("TextIO", following.stdout)
        try:
            assert "server_starting" in said.readline()
            path.rename(tmp_path / "log.1")
            path.write_text(text("server_ready", 1) + "\n")
            assert "server_ready" in said.readline()
        finally:
            following.kill()


# -- what is wrong


def test_lines_that_are_none_are_counted_on_the_error_output(logs, log, tmp_path):
    path = tmp_path / "stdout"
    path.write_text("Model  Version\nm  1\n" + text() + "\n")
    status, _, err = logs(path)
    assert (status, err) == (0, f"skipped lines that are not log records: 2 in {path}\n")


def test_a_log_in_tritons_format_is_read(logs, tmp_path):
    path = tmp_path / "log"
    path.write_text(
        'I1121 01:56:38.175055 31668 subtree.py:76] "server_ready models=1"\n'
        'E1121 01:56:39.175055 31668 loading.py:76] "model_unavailable model=m version=1 reason=no"\n'
    )
    status, out, err = logs(path, "--level", "error")
    assert (status, err) == (0, "")
    assert "model_unavailable" in out
    assert "server_ready" not in out


def test_what_is_no_log_at_all_is_told(logs, tmp_path):
    path = tmp_path / "log"
    path.write_text("Nov 21 01:56:38 host kernel: something else\n")
    status, out, err = logs(path)
    assert (status, out) == (1, "")
    assert "--log-format=json" in err


def test_a_file_that_cannot_be_read_is_an_error(logs, tmp_path):
    status, _, err = logs(tmp_path / "absent")
    assert status == 1
    assert err == f"error: {tmp_path / 'absent'} can't be read: No such file or directory\n"


def test_a_time_that_is_none_is_told_what_would_be_one(logs, log):
    status, _, err = logs(log, "--since", "yesterday")
    assert status == 1
    assert "5m for five minutes ago, got 'yesterday'" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["log", "--interval", "10s"], "--interval belongs to --rates"),
        (["log", "--top", "3"], "--top belongs to --slowest"),
        (["log", "--follow", "--summary"], "a report needs a log that ends"),
        (["log", "--rates", "--interval", "0"], "longer than 0 s"),
        (["log", "--slowest", "--top", "0"], "at least 1"),
        (["log", "--grep", "("], "is no regular expression"),
        (["log", "--rates", "--summary"], "not allowed with"),
        (["-", "--follow"], "'-' is none"),
        (["server.log.1.gz", "--follow"], "'server.log.1.gz' is none"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(capsys, words, complaint):
    with pytest.raises(SystemExit):
        main(["logs", *words])
    assert complaint in capsys.readouterr().err
