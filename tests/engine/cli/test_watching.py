"""`--watch`: the live page of recorded servers, rounds in a pipe, and the end by a key or by a signal."""

import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from engine.cli.client import ServerUnavailable, watch
from engine.cli.tree.keys import Key, keys
from engine.cli.tree.page import Screen, View, chosen, page
from engine.cli.tree.reading import Reading, rates
from engine.cli.tree.rows import rows
from engine.observability.terminals import Ability, ability_of
from tests.support.answering import answering

RECORDED = json.loads(Path(__file__).with_name("recorded_trees.json").read_text())
URL = "http://127.0.0.1:8000"

NOW = 5000.0

LOADING = """\
tritium at http://127.0.0.1:8000
not ready, up 1.1s
  NAME                     STATE           REQ/S     QUEUE      MEMORY  RESTARTS
▸ broken/1                 unavailable
    Internal: RuntimeError: the weights are not where they should be:
    /nowhere/weights.bin
▸ digits_onnx/1            loading                                             0
    loading, for 0.3s
▸ sequence_accumulate/1    loading                                             0
    loading, for 0.2s
▸ slow/1                   loading                                             0
    loading, for 1.0s
▸ add_sub/1                ready                                               0
▸ identity_fp32/1          ready                                               0
▸ lazy/1                   on demand
▸ telemetry                running       5 parts
▸ services                 running       7 parts
▸ repository               running       10 parts
▸ frontends                running       10 parts
q quit  ↑↓ select  →← open, close  a all
"""
BUSY = """\
tritium at http://127.0.0.1:8000
not ready, up 13.4s, 56.9 requests/s, 118.8 MiB of 18.83 GiB
  NAME                     STATE           REQ/S     QUEUE      MEMORY  RESTARTS
▸ broken/1                 unavailable
    Internal: RuntimeError: the weights are not where they should be:
    /nowhere/weights.bin
▸ add_sub/1                ready            27.8   7.56 ms    18.6 MiB         0
▸ digits_onnx/1            ready             0.0         -    31.5 MiB         0
▸ identity_fp32/1          ready             0.0         -    31.6 MiB         0
▸ lazy/1                   on demand
▸ sequence_accumulate/1    ready             0.0         -    18.6 MiB         0
▸ slow/1                   ready            29.1   8.32 ms    18.6 MiB         0
▸ telemetry                running       5 parts
▸ services                 running       7 parts
▸ repository               running       10 parts
▸ frontends                running       12 parts
q quit  ↑↓ select  →← open, close  a all
"""
KILLED = """\
tritium at http://127.0.0.1:8000
not ready, up 17.0s, 119.0 MiB of 18.83 GiB
  NAME                     STATE           REQ/S     QUEUE      MEMORY  RESTARTS
▸ broken/1                 unavailable
    Internal: RuntimeError: the weights are not where they should be:
    /nowhere/weights.bin
▸ slow/1                   loading                            18.6 MiB         1
    loading
    instance 0 was restarted 1.9s ago: the worker of instance 'slow_0' died of
    signal 9 (SIGKILL)
▸ add_sub/1                ready                              18.6 MiB         0
▸ digits_onnx/1            ready                              31.7 MiB         0
▸ identity_fp32/1          ready                              31.5 MiB         0
▸ lazy/1                   on demand
▸ sequence_accumulate/1    ready                              18.5 MiB         0
▸ telemetry                running       5 parts
▸ services                 running       7 parts
▸ repository               running       10 parts
▸ frontends                running       11 parts
q quit  ↑↓ select  →← open, close  a all
"""
OPEN = """\
▸ broken/1                  unavailable
    Internal: RuntimeError: the weights are not where they should be: /nowhere/weights.bin
▾ slow/1                    loading                            18.6 MiB         1
    loading
    instances               running       for 16.9s
      0                     running       for 1.9s, 1 restart, kind CPU, lanes 1, phase loading, pi…
        last ended: the worker of instance 'slow_0' died of signal 9 (SIGKILL)
    scheduler               running       for 16.9s, scheduler direct
▸ add_sub/1                 ready                              18.6 MiB         0
▸ digits_onnx/1             ready                              31.7 MiB         0
"""
NARROW = """\
tritium at http://127.0.0.1:8000
not ready, up 17.0s, 119.0 MiB of 18.83 GiB
  NAME                 STATE           REQ/S
> broken/1             unavailable
    Internal: RuntimeError: the weights are
    not where they should be: /nowhere/weig~
> slow/1               loading
    loading
    instance 0 was restarted 1.9s ago: the
    worker of instance 'slow_0' died of sig~
> add_sub/1            ready
q quit  arrows: select, open, close  a all ~
"""


def node(name, *children, **fields):
    return {
        "name": name,
        "state": "running",
        "since": 100.0,
        "restarts": 0,
        "last_exit": None,
        "info": {},
        "children": list(children),
        **fields,
    }


def instance(**fields):
    info = {"kind": "CPU", "lanes": 1, "phase": "serving", "pid": 7}
    return node("0", **{"info": info, **fields})


def model(name, worker=None):
    return node(
        name, node("instances", worker or instance()), node("scheduler"), info={"model": name, "version": 1}
    )


def server_tree(*models, watcher=(), lanes=(), connections=0):
    return node(
        "root",
        node("telemetry", node("readiness", info={"ready": True, "failed": 0})),
        node("models", *models),
        node(
            "repository",
            node("lanes", *lanes),
            node("watcher", info={"poll_seconds": 1.0, "waiting": list(watcher), "unavailable": {}}),
        ),
        node(
            "frontends",
            node("http", node("connections", *(node(f"connection-{n}") for n in range(connections)))),
        ),
        now=NOW,
    )


def readings(name):
    return [Reading(**each) for each in RECORDED[name]]


def shown(before, reading, *, width=80, height=40, selected="", opened=(), lost="", wide=True, keyboard=True):
    """What a terminal of this size shows, as lines."""
    ability = Ability(draws=True, colours=True, wide=wide)
    screen = Screen(width=width, height=height, ability=ability, keys=keyboard)
    view = View(selected=selected, opened=frozenset(opened))
    return [line.plain.rstrip() for line in page(URL, before, reading, view, screen, lost=lost)]


class TestThePage:
    """What a terminal shows of servers whose documents were recorded."""

    def test_a_server_that_loads(self):
        assert shown(None, *readings("loading")) == LOADING.splitlines()

    def test_a_server_at_work(self):
        assert shown(*readings("busy")) == BUSY.splitlines()

    def test_a_worker_that_died_comes_first_and_says_of_what(self):
        assert shown(None, *readings("killed")) == KILLED.splitlines()

    def test_an_open_model_tells_of_its_parts(self):
        lines = shown(None, *readings("killed"), width=100, opened={"models/slow/1"})
        assert lines[3:13] == OPEN.splitlines()

    def test_a_narrow_terminal_shows_the_most_important_columns(self):
        lines = shown(None, *readings("killed"), width=44, height=12, wide=False)
        assert lines == NARROW.splitlines()

    def test_a_model_in_use_shows_more_where_there_is_room(self):
        heading = shown(*readings("busy"), width=120)[2]
        assert heading.split() == [
            "NAME",
            "STATE",
            "REQ/S",
            "QUEUE",
            "MEMORY",
            "RESTARTS",
            "INFER",
            "FAIL/S",
            "WORKERS",
        ]

    def test_a_server_that_went_away_is_told_above_what_was_last_seen(self):
        lines = shown(*readings("busy"), lost="no server answers; waiting for it to come back")
        assert lines[1] == "no server answers; waiting for it to come back"
        assert "add_sub/1" in "\n".join(lines)
        assert shown(None, None, lost="gone")[1:] == ["gone"]

    def test_a_client_that_may_not_see_statistics_and_the_index_sees_the_tree(self):
        [reading] = readings("killed")
        lines = shown(None, Reading(tree=reading.tree, at=1.0))
        assert any("slow/1" in line and "loading" in line for line in lines)
        assert not any("broken" in line for line in lines)

    def test_a_server_that_was_replaced_in_between_has_no_rates(self):
        before, after = readings("busy")
        assert (
            rates(after, Reading(tree=before.tree, at=after.at + 1, statistics=before.statistics))[
                ("digits_onnx", "1")
            ].requests
            == 0
        )
        assert ("add_sub", "1") not in rates(
            after, Reading(tree=before.tree, at=after.at + 1, statistics=before.statistics)
        )

    def test_what_does_not_fit_is_counted_and_the_selected_row_stays_in_sight(self):
        [reading] = readings("killed")
        lines = shown(None, reading, height=8)
        assert "lines below" in lines[-1]
        lines = shown(None, reading, height=8, selected="frontends")
        assert any(line.startswith("▸ frontends") for line in lines)
        assert "lines above" in lines[-1]

    @given(st.integers(1, 160), st.integers(1, 50), st.booleans(), st.sampled_from(["loading", "killed"]))
    def test_no_line_is_wider_and_no_page_longer_than_the_screen(self, width, height, wide, name):
        [reading] = readings(name)
        everything = [row.key for row in rows(None, reading, frozenset())]
        lines = shown(None, reading, width=width, height=height, wide=wide, opened=everything)
        assert len(lines) <= height
        assert all(cell_len(line) <= width for line in lines)
        assert wide or all(line.isascii() for line in lines)


class TestKeys:
    """What a viewer does."""

    @pytest.mark.parametrize(
        ("pressed", "meant"),
        [
            (b"q", [Key.QUIT]),
            (b"\x1b[A\x1b[B\x1bOA", [Key.UP, Key.DOWN, Key.UP]),
            (b"jk\r", [Key.DOWN, Key.UP, Key.TURN]),
            (b"\x1b[5~\x1b[6~", [Key.PAGE_UP, Key.PAGE_DOWN]),
            (b"\x1b[1;5Cx\x1b", []),
            (b"\x1b[2~a", [Key.ALL]),
        ],
    )
    def test_bytes_mean_keys(self, pressed, meant):
        assert list(keys(pressed)) == meant

    @given(st.binary(max_size=12))
    def test_any_bytes_are_read(self, pressed):
        assert all(isinstance(key, Key) for key in keys(pressed))

    def test_arrows_select_open_and_close(self):
        [reading] = readings("killed")

        def after(view, *pressed):
            for key in pressed:
                view = chosen(view, key, rows(None, reading, view.opened))
            return view

        first = after(View(), Key.DOWN)
        assert first.selected == "models/broken/1"
        opened = after(first, Key.DOWN, Key.OPEN, Key.DOWN)
        assert opened == View(selected="models/slow/1/instances", opened=frozenset({"models/slow/1"}))
        assert after(opened, Key.CLOSE) == View(selected="models/slow/1")
        assert after(first, Key.LAST).selected == "frontends"
        assert after(first, Key.ALL, Key.ALL) == first
        assert after(first, Key.PAGE_UP, Key.UP) == first
        assert after(first, Key.TURN, Key.TURN) == first


class TestAbilities:
    """What a terminal is taken to show."""

    @pytest.mark.parametrize(
        ("environ", "draws", "colours"),
        [
            ({"TERM": "xterm"}, True, True),
            ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
            ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
            ({"TERM": "dumb"}, False, False),
            ({}, False, False),
        ],
    )
    def test_no_color_and_dumb_terminals_are_obeyed(self, environ, draws, colours):
        ours, theirs = os.openpty()
        with open(theirs, "w", encoding="utf-8") as stream:
            ability = ability_of(stream, environ)
        os.close(ours)
        assert (ability.draws, ability.colours, ability.wide) == (draws, colours, True)

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
    def test_an_encoding_without_our_marks_gets_ascii(self, tmp_path, encoding):
        with (tmp_path / "out").open("w", encoding=encoding) as stream:
            ability = ability_of(stream, {"TERM": "xterm"})
        assert not ability.wide
        assert ability.shown("é…") == "\\xe9..."


@pytest.fixture
def address():
    """The address of a server with a small tree."""
    with answering(lambda request: (200, json.dumps(server_tree(model("a"))).encode())) as url:
        yield url


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_into_a_pipe_each_round_is_written_whole_and_a_signal_ends_it_cleanly(address, number):
    command = [sys.executable, "-m", "engine", "tree", "--url", address, "--watch", "0.1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # a shell's background job ignores SIGINT
    ) as process:
        rounds, said = 0, cast("TextIO", process.stdout)
        while rounds < 2:  # each is there before the next, though the pipe is not full
            rounds += said.readline().startswith("root  running")
        process.send_signal(number)
        try:
            rest, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert "\x1b" not in rest


def test_into_a_pipe_a_server_that_is_away_is_told_of_once(monkeypatch, capsys):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    rounds = iter(["gone", "gone", "here", "here", "gone", "refused"])

    def ask():
        answer = next(rounds, None)
        if answer is None:
            raise KeyboardInterrupt
        if answer != "here":
            raise ServerUnavailable(answer)
        return answer

    assert watch(ask, 1.0, drawn=str, plain="{}\n".format) == 0
    waiting = "; waiting for it to come back"
    told = capsys.readouterr().out.splitlines()
    assert told == [f"gone{waiting}", "here", "here", f"gone{waiting}", f"refused{waiting}"]


@pytest.mark.system
@pytest.mark.parametrize("end", ["a key", "a signal"])
def test_a_terminal_is_given_back_at_the_end(address, end):
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "engine", "tree", "--url", address, "--watch", "0.1"]
    environ = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        seen = b""
        deadline = time.monotonic() + 30
        while b"telemetry" not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 65536)
        if end == "a key":
            os.write(ours, b"q")
        else:
            process.send_signal(signal.SIGTERM)
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65536)
        after = termios.tcgetattr(theirs)
        os.close(theirs)
        try:
            while block := os.read(ours, 65536):
                seen += block
        # A terminal reports in this way that no process has it open any more.
        except OSError:
            pass
        assert process.wait(timeout=30) == 0
    os.close(ours)
    assert after == before
    assert b"\x1b[?1049h" in seen
    assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"telemetry")
