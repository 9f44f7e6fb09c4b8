"""`--watch`: the tree folded to the height of the screen, rounds in a pipe, and the end by a signal."""

import copy
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from engine.cli.folding import FOLDED, SHORT, fold, folded_away, size
from engine.cli.tree import Fitted
from tests.support.answering import answering

NOW = 5000.0


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


def shown(document, height=24, width=80):
    """What a terminal of this size shows, as lines."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=width, height=height)
    console.print(Fitted(document), end="")
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).rstrip("\n").splitlines()


def words(document, **options):
    return " ".join(" ".join(line.strip("│├└─ ") for line in shown(document, **options)).split())


class TestFolding:
    """What stays on the screen, and what is counted."""

    def test_a_tree_that_fits_is_whole(self):
        lines = shown(server_tree(model("a"), connections=2))
        assert len(lines) == 18
        assert "connection-1" in "\n".join(lines)
        assert "folded" not in "\n".join(lines)

    def test_a_tree_that_does_not_fit_says_how_much_of_it_is_folded(self):
        lines = shown(server_tree(*(model(f"m{n}") for n in range(20))))
        assert len(lines) <= 24
        assert re.fullmatch(r"\d+ healthy parts are folded; all of it: tritium tree \| less", lines[-1])
        assert "+80 running" in "\n".join(lines)
        for branch in ("telemetry", "models", "repository", "frontends", "watcher", "lanes"):
            assert any(branch in line for line in lines)

    def test_models_are_unfolded_first_where_there_is_room(self):
        lines = shown(server_tree(*(model(f"m{n}") for n in range(8))), height=18)
        assert sum("version=1" in line for line in lines) == 8

    def test_connections_go_before_anything_else(self):
        lines = shown(server_tree(model("a"), connections=50))
        assert any("connections" in line and "+50 running" in line for line in lines)
        assert any("phase=serving" in line for line in lines)

    @pytest.mark.parametrize(
        "fields",
        [
            {"info": {"phase": "loading"}},
            {"state": "starting"},
            {"state": "backing_off", "restarts": 3, "last_exit": "crashed: no"},
            {"state": "exhausted"},
            {"restarts": 1, "since": NOW - 10},
        ],
    )
    def test_what_is_not_calm_stays_though_hundreds_that_are_go(self, fields):
        models = [model(f"m{n}") for n in range(300)]
        models[150] = model("the one", instance(**fields))
        assert "the one" in words(server_tree(*models))

    def test_what_is_waited_for_stays_and_comes_first(self):
        tree = server_tree(
            *(model(f"m{n}") for n in range(30)),
            watcher=["a in /models since noon: its files are still changing"],
            lanes=[node("b", info={"busy_with": "load", "phase": "reading", "attempt": 1}), node("c")],
        )
        text = words(tree)
        assert "waiting=['a in /models since noon: its files are still changing']" in text
        assert "busy_with=load phase=reading" in text
        assert text.index("waiting=") < text.index("poll_seconds=")

    def test_what_was_restarted_long_ago_gives_way_to_what_was_restarted_now(self):
        models = [model(f"old{n}", instance(restarts=1, since=NOW - 4000)) for n in range(30)]
        models.append(model("fresh", instance(restarts=1, since=NOW - 10)))
        text = words(server_tree(*models))
        assert "fresh" in text
        assert "old3" not in text

    def test_what_does_not_fit_in_any_way_is_cut_and_counted(self):
        lines = shown(server_tree(*(model(f"m{n}", instance(state="exhausted")) for n in range(30))))
        assert len(lines) == 24
        assert re.search(r"folded, \d+ lines do not fit; all of it", lines[-1])

    def test_a_long_reason_wraps_where_there_is_room_and_is_cut_where_there_is_none(self):
        sick = model("sick", instance(state="backing_off", last_exit="crashed: " + "word " * 40 + "end"))
        tree = server_tree(sick, *(model(f"m{n}") for n in range(20)))
        assert "word end" in words(tree)
        assert "word end" not in words(tree, height=10)
        assert "backing off" in words(tree, height=10)

    @given(st.data())
    def test_every_node_is_shown_or_counted(self, data):
        def nodes(depth):
            children = st.lists(st.deferred(lambda: nodes(depth - 1)), max_size=3) if depth else st.just([])
            return st.builds(
                lambda below, state, restarts, name: node(name, *below, state=state, restarts=restarts),
                children,
                st.sampled_from(["running", "starting"]),
                st.sampled_from([0, 0, 1]),
                st.sampled_from(["models", "connections", "a"]),
            )

        tree = data.draw(nodes(4)) | {"now": NOW}
        before = copy.deepcopy(tree)
        most = data.draw(st.integers(1, 30))
        folded = fold(tree, lambda document: size(document) <= most)
        assert size(folded) + folded_away(folded) == size(tree)
        assert unwell(folded) == unwell(tree)
        assert tree == before
        assert all(SHORT in each and FOLDED in each for each in walk(folded))


def walk(tree):
    yield tree
    for child in tree["children"]:
        yield from walk(child)


def unwell(tree):
    return [each["name"] for each in walk(tree) if each["state"] != "running"]


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


@pytest.mark.system
def test_a_terminal_is_given_back_at_the_end(address):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "engine", "tree", "--url", address, "--watch", "0.1"]
    environ = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        seen = b""
        deadline = time.monotonic() + 30
        while b"watcher" not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGTERM)
        try:
            while block := os.read(ours, 65536):
                seen += block
        # A terminal reports in this way that no process has it open any more.
        except OSError:
            pass
        assert process.wait(timeout=30) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in seen
    assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"watcher")
