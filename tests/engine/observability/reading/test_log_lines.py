"""From text to lines of the log: parsing, archives, several files at once, damage, and growing files."""

import bz2
import gzip
import io
import json
import lzma
import math
import os
import sys
from functools import partial
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from actors.values.events import Event
from engine.observability.logs import LogSink, configure_logging
from engine.observability.reading.following import Tail, follow
from engine.observability.reading.formats import Line, parse
from engine.observability.reading.reading import LONGEST, Census, LogUnreadable, read
from engine.observability.reading.selecting import (
    NoTime,
    Selection,
    concerns,
    model_of,
    moment,
    span,
    version_of,
)
from engine.settings.reporting import LogSettings
from tests.engine.observability.reading.written import NOON, line, text


def write(path, *rows, opener=open):
    with opener(path, "wb") as file:
        file.write("".join(f"{row}\n" for row in rows).encode())
    return path


def events(lines):
    return [each.event for each in lines]


# -- one line


def test_what_the_server_renders_is_read_back():
    out = io.StringIO()
    with LogSink(out, out) as sink:
        configure_logging(LogSettings(format="json"), sink, wall_ns=lambda: 1_738_326_896_123_456_789)
        structlog.get_logger().warning(Event.WORKER_EXITED, actor="models/m/1/instances/0", reason="hang")
        structlog.reset_defaults()
    made: Any = parse(out.getvalue())
    assert (made.time, made.level, made.event) == (1_738_326_896.123456, "warning", "worker_exited")
    assert made.matches("worker_exited", {"reason": "hang"})
    assert not made.matches("worker_exited", {"reason": "oom"})
    assert not made.matches("worker_exited", {"unheard_of": None})
    assert made.matches("worker_exited", {"level": made.level})
    assert not made.matches("worker_exited", {"level": "unheard of"})
    assert not made.matches("worker_started", {})


def test_a_line_is_written_as_it_was_read():
    made = line("model_ready", 1.25, model="m", version=1)
    assert json.dumps(made.as_dict()) == text("model_ready", 1.25, model="m", version=1)


@pytest.mark.parametrize(
    "broken",
    [
        *("", "Model  Version  Status", "{", "[]", "null", "7", '"text"', "{}"),
        '{"timestamp": 7, "level": "info", "event": "x"}',
        '{"timestamp": "yesterday", "level": "info", "event": "x"}',
        '{"timestamp": "2026-11-21T12:00:00Z", "level": 3, "event": "x"}',
        '{"timestamp": "2026-11-21T12:00:00Z", "level": "info"}',
        '{"timestamp": "0001-01-01T00:00:00+14:00", "level": "info", "event": "x"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_line_of_the_log_is_none(broken):
    assert parse(broken) is None


@given(st.binary(max_size=200))
def test_no_bytes_make_the_parser_fail(data):
    assert parse(data) is None or isinstance(parse(data), Line)


# -- files


def test_broken_lines_are_passed_over_and_counted_by_file(tmp_path):
    first = write(tmp_path / "a", text(at=1), "a traceback", "", text(at=2)[:30], text(at=3))
    second = write(tmp_path / "b", "noise", text(at=2))
    census = Census()
    assert [each.time - NOON for each in read([first, second], census=census)] == [1, 2, 3]
    assert (census.lines, census.broken) == (3, {str(first): 2, str(second): 1})


def test_several_files_are_merged_by_time_and_each_line_says_where_it_stands(tmp_path):
    out = write(tmp_path / "stdout", text("server_ready", 1), text("model_ready", 3))
    err = write(tmp_path / "stderr", text("worker_exited", 2, "warning"))
    read_back = list(read([str(out), str(err)]))
    assert events(read_back) == ["server_ready", "worker_exited", "model_ready"]
    assert [(each.source, each.number) for each in read_back] == [(str(out), 1), (str(err), 1), (str(out), 2)]


def test_the_lines_of_one_file_keep_their_order_when_the_clock_was_set_back(tmp_path):
    path = write(tmp_path / "log", text("model_loading", 5), text("model_ready", 1))
    assert events(read(path)) == ["model_loading", "model_ready"]


@pytest.mark.parametrize(("ending", "opener"), [("gz", gzip.open), ("bz2", bz2.open), ("xz", lzma.open)])
def test_archives_are_read_as_they_are(tmp_path, ending, opener):
    path = write(tmp_path / f"log.1.{ending}", text("server_ready"), text("server_stopped"), opener=opener)
    assert events(read(path)) == ["server_ready", "server_stopped"]


@pytest.mark.parametrize(("ending", "opener"), [("gz", gzip.open), ("bz2", bz2.open), ("xz", lzma.open)])
def test_an_archive_that_is_cut_off_gives_what_is_left_of_it(tmp_path, ending, opener):
    rows = [text("server_ready", number, noise=os.urandom(400).hex()) for number in range(2000)]
    path = write(tmp_path / f"log.{ending}", *rows, opener=opener)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    census = Census()
    assert 0 <= len(list(read(path, census=census))) < 2000
    assert census.truncated == [str(path)]


NO_ZSTD = pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python reads zstd")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("log.gz", r"log\.gz is no gzip archive"),
        pytest.param("log.zst", r"3\.14.*zstd -dc", marks=NO_ZSTD),  # it says what can read it
        ("absent/log", "absent/log can't be read: No such file"),
    ],
)
def test_what_cannot_be_read_is_told_by_name(tmp_path, name, reason):
    for plain in ("log.gz", "log.zst"):
        write(tmp_path / plain, text())
    with pytest.raises(LogUnreadable, match=reason):
        list(read(tmp_path / name))


def test_a_line_beyond_any_bound_is_one_broken_line_and_the_next_is_read(tmp_path):
    path = write(tmp_path / "log", "x" * (2 * LONGEST + 5), text())
    census = Census()
    assert events(read(path, census=census)) == ["server_ready"]
    assert sum(census.broken.values()) == 1


# -- files that grow


def appended(path, *rows, end="\n"):
    with open(path, "ab") as file:
        file.write(("\n".join(rows) + end).encode())


@pytest.fixture
def growing(tmp_path):
    """The path of a log that is not there yet, what follows it, and what was counted of it."""
    path, census = tmp_path / "log", Census()
    tail = Tail(str(path), census)
    yield path, tail, census
    tail.close()


def test_a_line_is_seen_once_its_end_is_written(growing):
    path, tail, _ = growing
    row = text("server_ready")
    appended(path, row[:20], end="")
    assert tail.look() == []
    appended(path, row[20:])
    assert events(tail.look()) == ["server_ready"]
    assert tail.look() == []


def test_a_renamed_file_is_read_to_its_end_and_then_the_new_one_of_its_name(growing):
    path, tail, _ = growing
    appended(path, text("server_starting"))
    assert events(tail.look()) == ["server_starting"]
    old = path.rename(path.with_name("log.1"))
    appended(old, text("server_ready"))
    # The name leads nowhere, and the writer still has the old file.
    assert events(tail.look()) == ["server_ready"]
    appended(old, text("server_draining"))
    appended(path, text("server_stopped"))
    assert events(tail.look()) == ["server_draining", "server_stopped"]


def test_a_truncated_file_is_read_from_its_beginning(growing):
    path, tail, _ = growing
    write(path, text("server_starting"), text("server_ready"))
    assert len(tail.look()) == 2
    write(path, text("server_stopped"))
    assert events(tail.look()) == ["server_stopped"]


def test_a_line_that_rotation_cut_off_is_broken_and_not_joined_to_the_next_files_first(growing):
    path, tail, census = growing
    appended(path, text()[:25], end="")
    assert tail.look() == []
    path.rename(path.with_name("log.1"))
    appended(path, text("model_ready"))
    assert events(tail.look()) == ["model_ready"]
    assert sum(census.broken.values()) == 1


def test_a_file_that_does_not_exist_yet_is_waited_for(growing):
    path, tail, _ = growing
    assert tail.look() == []
    appended(path, text("server_ready"))
    assert events(tail.look()) == ["server_ready"]


def test_a_growing_line_beyond_any_bound_is_one_broken_line(growing):
    path, tail, census = growing
    for _ in range(3):
        appended(path, "x" * LONGEST, end="")
        assert tail.look() == []
    appended(path, "", text("server_ready"))
    assert events(tail.look()) == ["server_ready"]
    assert sum(census.broken.values()) == 1


def test_following_gives_what_is_there_and_then_what_comes(tmp_path):
    out, err = (
        write(tmp_path / "out", text("server_ready", 2)),
        write(tmp_path / "err", text("model_ready", 1)),
    )
    rounds = iter([[(out, "model_loading", 9), (err, "worker_exited", 8)], [(out, "server_stopped", 20)], []])

    def pause():
        written = next(rounds)
        for path, event, at in written:
            appended(path, text(event, at))
        return bool(written)

    assert events(follow([str(out), str(err)], pause=pause)) == [
        *("model_ready", "server_ready", "worker_exited", "model_loading", "server_stopped"),
    ]


def test_following_from_the_end_passes_over_what_is_there(tmp_path):
    path = write(tmp_path / "log", text("server_starting"))
    pauses = iter([True, False])

    def pause():
        more = next(pauses)
        if more:
            appended(path, text("server_ready"))
        return more

    assert events(follow([str(path)], from_end=True, pause=pause)) == ["server_ready"]


# -- which lines


def test_the_model_and_version_are_known_by_key_or_by_the_place_in_the_tree():
    assert model_of(line(model="a", actor="models/b/2/instances/0")) == "a"
    by_place = line(actor="models/b/2@3/instances/0")
    assert (model_of(by_place), version_of(by_place)) == ("b", 2)
    assert (model_of(line(actor="frontends/http")), version_of(line())) == ("", 0)
    assert model_of(line(model=7, actor=8)) == ""


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (Selection(), True),
        (Selection(models=["resnet"]), True),
        (Selection(models=["bert", "res*"]), True),
        (Selection(models=["bert"]), False),
        (Selection(instances=["resnet_0"]), True),
        (Selection(instances=["models/resnet"]), True),
        (Selection(instances=["models/res"]), False),
        (Selection(instances=["models/*/instances/1"]), False),
        (Selection(events=["worker_*"]), True),
        (Selection(events=["worker"]), False),
        (Selection(level="warning"), True),
        (Selection(level="error"), False),
        (Selection(since=NOON + 5), True),
        (Selection(since=NOON + 5.1), False),
        (Selection(until=NOON + 4), False),
        (Selection(request="r1"), True),
        (Selection(request="r9"), False),
    ],
)
def test_a_line_is_wanted_where_it_fits_all_that_is_asked_for(selection, wanted):
    made = line(
        "worker_exited",
        5,
        "warning",
        actor="models/resnet/1/instances/0",
        instance="resnet_0",
        executing=["r1", "r2"],
    )
    assert selection.wants(made) is wanted


@pytest.mark.parametrize(
    ("made", "request_id", "does"),
    [
        (line("request_completed", request_id="r1", serial=4), "r1", True),
        (line("request_completed", request_id="", serial=4), "#4", True),
        (line("request_completed", request_id="", serial=5, parent=4), "#4", True),
        (line("batch_dispatched", requests=["r0", "#4"]), "#4", True),
        (line("batch_bisected", halves=[["r0"], ["r1"]]), "r1", True),
        (line("batch_bisected", halves="r1", requests=1), "r1", False),
        (line("request_failed", request_id="#x"), "#x", True),
        (line("request_completed", request_id="", serial=4), "4", False),
    ],
)
def test_a_line_concerns_the_requests_that_it_names_however_it_does(made, request_id, does):
    assert concerns(made, request_id) is does


@pytest.mark.parametrize(
    ("said", "seconds"), [("250ms", 0.25), ("10s", 10), ("1h30m", 5400), ("2d", 172_800), ("1.5", 1.5)]
)
def test_spans_of_time(said, seconds):
    assert span(said) == seconds


@pytest.mark.parametrize(
    ("read_time", "said", "words"),
    [
        *((span, said, "such as 30s, 5m") for said in ("", "soon", "5x", "-5", "nan", "5m later", "1e999")),
        *(
            (partial(moment, now=NOON), said, "5m for five minutes ago")
            for said in ("", "noon", "25:00", "2026-13-01", "-5m")
        ),
    ],
)
def test_what_is_no_time_is_refused_with_what_would_be(read_time, said, words):
    with pytest.raises(NoTime, match=words):
        read_time(said)


@pytest.mark.parametrize(
    ("said", "after_noon"),
    [
        ("2026-11-21T12:00:05Z", 5),
        ("2026-11-21 12:00:05", 5),
        ("2026-11-21T13:00:05+01:00", 5),
        ("2026-11-21", -12 * 3600),
        ("12:01", 60),
        ("09:00:00.5", -3 * 3600 + 0.5),
        ("5m", -300),
    ],
)
def test_points_in_time_are_absolute_or_before_now(said, after_noon):
    assert math.isclose(moment(said, now=NOON), NOON + after_noon, abs_tol=1e-6)
